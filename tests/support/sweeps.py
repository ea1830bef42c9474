"""Run the sweep that `runs.write_sweep` writes, in this process."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from rich.console import Console

from bytewright.experiments.execute import SweepContext, execute_plan, prepare_data, write_plan
from bytewright.experiments.plan import make_plan
from bytewright.experiments.sweep import Sweep, read_sweep
from bytewright.model import TransformerLM
from bytewright.storage import atomic
from bytewright.train.config import TrainConfig
from bytewright.train.session.loop import TextSampler


def short_samples(config: TrainConfig) -> TextSampler:
    """Return a sampler that generates no text."""
    return lambda model, step: "text"


def interrupting(config: TrainConfig) -> TextSampler:
    """Return a sampler that sends SIGTERM to this process."""

    def sample(model: TransformerLM, step: int) -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        return "text"

    return sample


class SweepRunner:
    """The sweep of `rates.toml` in one folder; `run` can be called repeatedly."""

    def __init__(self, place: Path, *, name: str = "out", make_sampler: object = short_samples) -> None:
        self.sweep: Sweep = read_sweep(place / "rates.toml")
        self.folder = place / name
        self.said: list[str] = []
        self.context = SweepContext(
            folder=self.folder,
            data_root=place / "data",
            keep=self.sweep.keep,
            make_sampler=make_sampler,  # type: ignore[arg-type]
            print_line=self.said.append,
            progress=lambda *_: None,
            console=Console(quiet=True),
        )

    def run(self) -> None:
        """Execute all runs of the sweep that are not finished."""
        plan = make_plan(self.sweep, self.folder)
        prepared = prepare_data([planned.trial for planned in plan], self.context)
        write_plan(self.sweep, self.folder)
        execute_plan(plan, prepared, self.context)

    def outcome(self, name: str) -> dict[str, object]:
        """Return the recorded outcome of a run."""
        return atomic.read_document(self.folder / name / "outcome.json")

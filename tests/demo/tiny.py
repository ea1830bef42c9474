"""A demo that takes seconds. It runs every stage, with a model too small to learn anything."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bytewright.demo import Outcome, Plan, run_demo
from bytewright.formatting import PhaseProgress

TINY = Plan(
    train_bytes=60_000,
    validation_bytes=6_000,
    vocab_size=600,
    context_length=640,
    d_model=16,
    num_layers=1,
    num_heads=1,
    batch_size=1,
    num_steps=4,
    num_evaluations=2,
    num_samples=2,
)


@contextlib.contextmanager
def no_progress() -> Iterator[PhaseProgress]:
    yield lambda phase, done, total, unit: None


@dataclass(frozen=True)
class Shown:
    outcome: Outcome
    text: str


def show_tiny(folder: Path, plan: Plan = TINY) -> Shown:
    """Run the demo without a terminal, and return its outcome and its output."""
    out = io.StringIO()
    outcome = run_demo(folder, plan=plan, out=Console(file=out, width=10_000), progress=no_progress)
    return Shown(outcome, out.getvalue())

"""Hooks of the training loop: probes and custom displays."""

from __future__ import annotations

import io
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from bytewright.model import TransformerLM
from bytewright.train import resume, train
from bytewright.train.metrics_log import read_metrics
from runs import digest, make_config


class Silent:
    """A display that stores all records."""

    def __init__(self, console: Console, title: str) -> None:
        self.title = title
        self.records: list[Mapping[str, Any]] = []
        self.is_closed = False

    def record(self, record: Mapping[str, Any], num_steps: int | None) -> None:
        self.records.append(record)

    def close(self) -> None:
        self.is_closed = True


def measure_head(model: TransformerLM) -> dict[str, float]:
    return {"head": model.output_weight.norm().item()}


def test_a_probe_measures_at_every_evaluation_and_its_figures_are_recorded(tmp_path: Path) -> None:
    train(make_config(tmp_path), tmp_path / "run", probe=measure_head, console=Console(file=io.StringIO()))
    for record in read_metrics(tmp_path / "run" / "metrics.jsonl"):
        assert ("head" in record) == ("validation_loss" in record)


def test_a_custom_display_receives_every_record(tmp_path: Path) -> None:
    shown: list[Silent] = []

    def make_display(console: Console, title: str) -> Silent:
        shown.append(Silent(console, title))
        return shown[-1]

    train(make_config(tmp_path), tmp_path / "run", display=make_display)
    assert shown[0].records
    assert shown[0].records == list(read_metrics(tmp_path / "run" / "metrics.jsonl"))
    assert shown[0].is_closed


def test_a_run_with_a_probe_is_resumed_bit_for_bit(tmp_path: Path) -> None:
    quiet = Console(file=io.StringIO())
    config = make_config(tmp_path)
    train(config, tmp_path / "whole", probe=measure_head, console=quiet)

    def interrupt(model: TransformerLM) -> dict[str, float]:
        signal.raise_signal(signal.SIGTERM)
        return measure_head(model)

    assert train(config, tmp_path / "run", probe=interrupt, console=quiet).received
    resume(tmp_path / "run", probe=measure_head, console=quiet)
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")

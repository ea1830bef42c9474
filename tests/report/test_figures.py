"""What a report compares is what its complete runs have, whatever others are still to come to."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from bytewright.experiments.records import RunRecord
from bytewright.experiments.results import SweepInfo
from bytewright.report.compare import BITS, TRAINING, VALIDATION, Metric, choose_metric
from bytewright.report.compose import build_report, write_report
from imagined_runs import make_record

WHOLE = make_record("whole", labels={"optimizer.lr": 1e-3})


def cut(num_lines: int, **more: Any) -> RunRecord:
    """Make a run that has so many lines; the fifth is its first with a validation loss."""
    record = make_record("cut", labels={"optimizer.lr": 3e-3}, **({"status": "stopped"} | more))
    return dataclasses.replace(record, lines=record.lines[:num_lines])


def unevaluated() -> RunRecord:
    lines = [{"step": line["step"], "loss": line["loss"]} for line in WHOLE.lines]
    return dataclasses.replace(WHOLE, lines=lines)


@pytest.mark.parametrize(
    ("records", "metric"),
    [
        ([WHOLE, cut(3)], VALIDATION),
        ([WHOLE, cut(0, status="failed")], VALIDATION),
        ([WHOLE, cut(3, status="diverged")], VALIDATION),
        ([cut(6), cut(3)], VALIDATION),
        ([cut(6, status="diverged"), cut(3)], VALIDATION),
        ([cut(3), cut(2)], TRAINING),
        ([cut(0)], TRAINING),
        ([unevaluated(), WHOLE], TRAINING),
        ([WHOLE, cut(3, settings={"model.vocab_size": 2000})], BITS),
    ],
)
def test_a_run_without_an_evaluation_does_not_decide_what_is_compared(
    records: list[RunRecord], metric: Metric
) -> None:
    assert choose_metric(records) == metric


@pytest.mark.parametrize("early", [cut(3, reason="at step 3"), cut(0, status="failed", reason="no memory")])
def test_a_report_of_a_sweep_that_goes_on_shows_the_validation_loss(early: RunRecord, tmp_path: Path) -> None:
    about = SweepInfo(name="rates", axes=["optimizer.lr"])
    facts = build_report([WHOLE, early], about).figures
    assert facts is not None
    assert facts.figures[0] == ("lowest validation loss", "1.6045", "nats per token")
    page = write_report([WHOLE, early], about, tmp_path).with_suffix(".md").read_text()
    assert "Validation loss by steps" in page
    assert early.reason in page

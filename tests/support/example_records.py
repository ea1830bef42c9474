"""Run records without runs, for tests of reports and results."""

from __future__ import annotations

import math
from typing import Any

from bytewright.experiments.records import RunRecord
from bytewright.train.outcome import Ending, State


def make_record(
    name: str,
    end: float = 1.5,
    *,
    status: State = "complete",
    labels: dict[str, Any] | None = None,
    floor: float | None = None,
    reason: str = "",
    settings: dict[str, Any] | None = None,
) -> RunRecord:
    """Return the record of a run whose loss decreases from 5 to `end`."""
    lines = []
    for step in range(1, 41):
        loss = end + (5 - end) * math.exp(-step / 6)
        line: dict[str, Any] = {
            "step": step,
            "tokens": step * 1024,
            "seconds": step * 0.5,
            "loss": loss,
            "lr": 1e-3,
            "gradient_norm": 0.5,
            "tokens_per_second": 2048.0,
            "mfu": 0.25,
        }
        if step % 5 == 0:
            line |= {"validation_loss": loss + 0.1, "bits_per_byte": (loss + 0.1) / 2}
        lines.append(line)
    return RunRecord(
        name=name,
        settings={"model.vocab_size": 1000, "batch_size": 4, "model.context_length": 256, "seed": 0}
        | (settings or {}),
        lines=lines,
        status=status,
        ending=Ending.DIVERGED if "not finite" in reason else None,
        reason=reason,
        labels=labels or {},
        environment={"bytewright": "1.0", "commit": "abc123", "started": name},
        samples={40: f"The {name} sat. <b>"},
        predicted={"seconds": 21.0, "memory_bytes": 2.5e9},
        measured={"seconds": 20.0, "tokens_per_second": 2048.0, "mfu": 0.25, "memory_bytes": 2.4e9},
        floor=floor,
    )

"""Train the runs of the examples of fine_tuning.md."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

from rich.console import Console
from tiny_run import STEPS, train_tiny_run

from bytewright.train import BudgetConfig, Run


def prepare(folder):
    run = train_tiny_run(folder)
    pair = {"prompt": "An owl sat", "completion": " in an old oak."}
    (Path(folder) / "pairs.jsonl").write_text(json.dumps(pair) + "\n")
    config = dataclasses.replace(Run.open(run).config, budget=BudgetConfig(steps=4))
    return {"run": run, "folder": Path(folder), "config": config, "quiet": Console(file=io.StringIO())}


GIVEN = {
    "have the value -100": "the value that torch uses",
    "and gradient are 0": "the definition of a mean over nothing",
}
FIGURES = [f">>> init.step\n{STEPS}"]

"""Compute the figures of checkpoints.md, and train the run of its examples."""

from __future__ import annotations

from records import result
from tiny_run import train_tiny_run

comparisons = result("2026-11-15-h200-exact-resume.json")["differences"].values()
differing = sum(len(names) for comparison in comparisons for names in comparison.values())


def prepare(folder):
    return {"run": train_tiny_run(folder)}


FIGURES = [
    # Stop, load, continue: the same bits
    f"tensors and metrics were compared, and {differing} differed ([the",
]

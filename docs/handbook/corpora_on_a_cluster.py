"""Compute the figures of corpora_on_a_cluster.md."""

from __future__ import annotations

from pathlib import Path

GIVEN = {"n^0.6 times": "the usual exponent for English, which benchmarks/cluster.py uses"}


def prepare(folder: Path) -> dict[str, object]:
    from bytewright.corpus.storybook import write_stories

    path = folder / "stories.txt"
    write_stories(path, 20_000, seed=1)
    return {"text": str(path)}

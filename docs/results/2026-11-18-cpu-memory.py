"""Compute the figures of 2026-11-18-cpu-memory.md."""

from __future__ import annotations

from records import result

memory = result("2026-11-18-cpu-memory.json")
before = memory["before"]


def megabytes(num_bytes):
    return f"{num_bytes / 1e6:,.0f}"


def rows():
    yield ("recipe", "predicted", "measured")
    for name, row in memory["recipes"].items():
        found = ", ".join(map(megabytes, row["measured"]))
        yield (name, megabytes(row["predicted"]), found)


FIGURES = [
    f"{megabytes(min(before['measured']))} to {megabytes(max(before['measured']))} MB",
    f"{megabytes(before['predicted'])} MB were predicted",
    list(rows()),
]
GIVEN = {
    "64 bytes": "the alignment of torch",
    "before 2.39": "the version of glibc with the fix",
    "bug 30723": "the number of the bug",
    "two cores": "the machine",
    "glibc 2.36": "the machine",
    "torch 2.13.0": "the machine",
    "12 steps": "98,304 tokens in batches of 8,192",
    "40 MB of text": "the text that was made",
}

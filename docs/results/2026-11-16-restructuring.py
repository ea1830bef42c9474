"""Compute the figures of 2026-11-16-restructuring.md."""

from __future__ import annotations

from statistics import median

from records import result

speeds = result("2026-11-16-restructuring.json")


def speed_rows():
    yield ("operation", "unit", "before", "after", "after ÷ before")
    for key, unit in (("tokens_per_second", "tokens/s"), ("megabytes_per_second", "MB/s")):
        for operation, values in speeds[key].items():
            before, after = median(values["before"]), median(values["after"])
            yield (operation, unit, f"{before:,.0f}", f"{after:,.0f}", f"{after / before:.2f}")


FIGURES = [
    f"with torch {speeds['torch']}",
    f"commit {speeds['before']}",
    f"commit {speeds['after']}",
    f"commit {speeds['after_encode_file']}",
    list(speed_rows()),
]
GIVEN = {
    "16 cores": "the machine",
    "100 MB of storybook text": "the text of the benchmark",
    "of 10,000 tokens": "the vocabulary of the benchmark",
    "400 MB": "the file of the benchmark",
}

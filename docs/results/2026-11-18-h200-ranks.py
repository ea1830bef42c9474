"""Compute the figures of 2026-11-18-h200-ranks.md."""

from __future__ import annotations

from records import result

measured = result("2026-11-18-h200-ranks.json")


def digest_rows():
    yield ("processes", "weights", "optimizer state", "metrics")
    for label, digests in measured["digests"].items():
        yield (label, *(digests[kind][:12] for kind in ("weights", "optimizer", "metrics")))


def speed_rows():
    yield ("operation", "before, ms", "after, ms", "after ÷ before", "quartiles", "same code")
    for operation, row in measured["speeds"].items():
        times = f"{row['before_ms']:.2f}", f"{row['after_ms']:.2f}", f"{row['ratio']:.3f}"
        low, high = row["quartiles"]
        yield (operation, *times, f"{low:.3f} to {high:.3f}", f"{row['same_code_ratio']:.3f}")


assert len({str(digests) for digests in measured["digests"].values()}) == 1, "all rows are equal"

FIGURES = [
    f"with torch {measured['torch']}",
    f"commit {measured['commit']}",
    f"commit {measured['before']}",
    f"for {measured['steps']} steps of {measured['num_parts']} parts",
    f"{measured['rounds']} rounds",
    list(digest_rows()),
    list(speed_rows()),
]
GIVEN = {
    "one H200 and 16 cores": "the machine",
    "23 million parameters": "the base experiment",
    "vary by 4 %": "the quartiles of the table",
    "A difference of\n2 %": "the bound that was asked for",
}

"""Compute the figures of tokenizer_experiments.md."""

from __future__ import annotations

import sys

from records import percent, result

made = result("../handbook/tokenizer_experiments.json")["bytes_per_token"]
encoding = result("2026-11-15-tokenizer-encoding.json")["columns"]
(column,) = [column for column in encoding if column["title"] == "file-100mb warm"]
(ours,) = [row for row in column["results"] if row["contestant"] == "bytewright"]
bytes_per_second = column["num_bytes"] / ours["seconds"]["median"]

PILE = 825e9
more_tokens = made["prose"][1] / made["prose"][0] - 1
"""How many more tokens the novels take under the tokenizer of the stories."""


def cross_rows():
    rows = [
        (f"ten documents of {name}", *(f"{ratio:.2f}" for ratio in ratios)) for name, ratios in made.items()
    ]
    return [("bytes per token", "stories' tokenizer, 10,000", "prose's tokenizer, 32,000"), *rows]


FIGURES = [
    # Ten documents under each tokenizer
    cross_rows(),
    f"novels take {percent(more_tokens)} more tokens",
    # How long would the Pile take?
    f"in memory at {bytes_per_second / 1e6:.0f} MB/s ([the",
    f"this rate the {PILE / 1e9:.0f} GB of the Pile take {PILE / bytes_per_second / 60:.0f} minutes",
    # Why is uint16 right for token files?
    f"ids are below {2**16:,}",
    f"Python integers takes {8 + sys.getsizeof(10_000)} bytes per",
]
GIVEN = {
    "a file of 100 MB": "the size of the benchmark's file",
}

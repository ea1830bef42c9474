"""Compute the figures of 2026-11-15-two-cores.md."""

from __future__ import annotations

from statistics import median

from records import percent, result

from bytewright.account import find_preset
from bytewright.account.parameters import count_parameters

training = result("2026-11-15-two-cores-training.json")
generation = result("2026-11-15-two-cores-generation.json")
parameters = count_parameters(find_preset("base")).total
CONTESTANTS = ("bytewright", "plain compiled", "transformers Llama")


def speeds_of(measured):
    return {row["name"]: row["tokens_per_second"] for row in measured["columns"][0]["results"]}


def training_rows():
    rows = [("", "ours", "plain compiled", "transformers' Llama, compiled", "ours ÷ the fastest")]
    bf16 = result("2026-11-15-two-cores-training-bf16.json")
    for name, speeds in (("float32", speeds_of(training)), ("bfloat16", speeds_of(bf16))):
        turns = [speeds[contestant] for contestant in CONTESTANTS]
        ours, *others = map(median, turns)
        cells = [f"{median(turn):,.0f} ({min(turn):,.0f}–{max(turn):,.0f})" for turn in turns]
        rows.append((name, *cells, f"{ours / max(others):.2f}"))
    return rows


def share(word):
    """Return the share of a step that is spent in kernels with a word in their names."""
    profile = training["columns"][0]["results"][0]["profile"]
    return percent(sum(it["ms"] for it in profile if word in it["name"]) / sum(it["ms"] for it in profile))


def generation_rows():
    rows = [("batch", "ours", "transformers, dynamic cache", "ours ÷ theirs")]
    for batch in (1, 32):
        here = [row for row in generation["rows"] if row["batch_size"] == batch]
        ours, theirs = (row["tokens_per_second"]["median"] for row in here)
        rows.append((batch, f"{ours:,.0f}", f"{theirs:,.0f}", f"{ours / theirs:.2f}"))
    return rows


FIGURES = [
    (
        f"EPYC (AVX-512), Python {training['python']}, torch {training['versions']['torch']}, "
        f"transformers {training['versions']['transformers']}"
    ),
    f"base experiment's, with {parameters / 1e6:.1f} million parameters",
    training_rows(),
    f"{share('mm')} of our",
    f"Attention takes {share('attention')}",
    f"a compiled step {2048 / median(speeds_of(training)['bytewright']):.2f} s",
    generation_rows(),
]
GIVEN = {
    "factor of 1.05": "the goal",
    "batch 8 × 256": "the arguments of the benchmark",
    "took 2.08 s": "noted when it was measured",
    "step takes 1.62 s": "noted when it was measured",
    "16 prompt tokens, 200 new tokens": "the arguments of the benchmark",
}

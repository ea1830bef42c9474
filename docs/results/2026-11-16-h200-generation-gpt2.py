"""Compute the figures of 2026-11-16-h200-generation-gpt2.md."""

from __future__ import annotations

from records import result

generation = result("2026-11-16-h200-generation-gpt2.json")
rows = {(row["batch_size"], row["contestant"]): row for row in generation["rows"]}
OURS, STATIC, DYNAMIC = "bytewright", "transformers, static cache, compiled", "transformers, dynamic cache"


def speed(batch, contestant):
    return rows[batch, contestant]["tokens_per_second"]["median"]


def generation_rows():
    yield ("batch", "ours", STATIC, DYNAMIC, "ours ÷ the faster", "time ÷ matrix products")
    for batch in (1, 32):
        speeds = [speed(batch, name) for name in (OURS, STATIC, DYNAMIC)]
        ratio = speeds[0] / max(speeds[1:])
        floor = rows[batch, OURS]["time_over_floor"]
        yield (batch, *(f"{value:,.0f}" for value in speeds), f"{ratio:.1f}", f"{floor:.2f}")


settings, versions = generation["settings"], generation["versions"]
FIGURES = [
    f"with torch {versions['torch']} and transformers {versions['transformers']}",
    f"prompts of {settings['prompt_tokens']} tokens by {settings['new_tokens']} greedy tokens",
    list(generation_rows()),
    f"the first {generation['in_float32'][0]['num_tokens']} ids of every sequence",
]
GIVEN = {
    "12 layers, width 768, vocabulary 50,257 and context 1,024": "--shape gpt2",
    "at batch 32": "the arguments of the benchmark",
}

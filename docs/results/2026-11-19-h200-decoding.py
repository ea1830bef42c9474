"""Compute the figures of 2026-11-19-h200-decoding.md."""

from __future__ import annotations

from statistics import median

from records import result

measured = result("2026-11-19-h200-decoding.json")
earlier = result("2026-11-18-h200-decoding.json")
CASES = {
    ("gpt2", 1, 16): "GPT-2 small, 1 prompt of 16 tokens",
    ("gpt2", 1, 768): "GPT-2 small, 1 prompt of 768 tokens",
    ("gpt2", 32, 16): "GPT-2 small, 32 prompts of 16 tokens",
    ("gpt2", 32, 768): "GPT-2 small, 32 prompts of 768 tokens",
    ("base", 1, 16): "base model, 1 prompt of 16 tokens",
}
GOALS = dict(zip(CASES, (5_000, 5_000, 80_000, 50_000, 8_500), strict=True))
SHAPES = {"gpt2": "GPT-2 small", "base": "base model"}
ATTENTION = {
    "gpt2-66": "GPT-2 small, 256 sequences of 66 tokens",
    "gpt2-mixed": "GPT-2 small, 256 sequences of 1 to 232 tokens",
    "base-66": "base model, 256 sequences of 66 tokens",
    "base-mixed": "base model, 256 sequences of 1 to 232 tokens",
    "gpt2-32x870": "GPT-2 small, 32 sequences of 870 tokens",
}


def call_rows():
    yield ("greedy", "tokens/s", "2026-11-18", "goal")
    before = {
        row["case"]: row["tokens_per_s"] for row in earlier["generation"] if row["sampling"] == "greedy"
    }
    for row in measured["calls"]:
        case = tuple(row["case"])
        speeds = row["tokens_per_s"], before[str(case)], GOALS[case]
        yield (CASES[case], *(f"{speed:,.0f}" for speed in speeds))


def turns(section, shape, steps=8):
    """Return the speeds of both in each turn after the first one, which captures."""
    found = [row for row in measured[section] if (row["shape"], row["steps"]) == (shape, steps)]
    return [(row["static batch"], row["engine"]) for row in found[1:]]


def engine_rows():
    yield ("tokens/s, medians", "static batch", "engine", "ratio", "ratios of the turns", "ratio before")
    for shape, name in SHAPES.items():
        static, engine = (median(values) for values in zip(*turns("engine", shape), strict=True))
        old = [median(values) for values in zip(*turns("engine-before", shape), strict=True)]
        ratios = ", ".join(f"{ours / theirs:.2f}" for theirs, ours in turns("engine", shape))
        speeds = f"{static:,.0f}", f"{engine:,.0f}"
        yield (name, *speeds, f"{engine / static:.2f}", ratios, f"{old[1] / old[0]:.2f}")


def attention_rows():
    yield ("microseconds of one layer", "splits of 64", "whole, registers", "whole, matrix units", "floor")
    for case, name in ATTENTION.items():
        times = measured["attention"][case]
        kinds = times["split64"], times["loop-64-2"], times["dots-64-1-3"], times["floor"]
        yield (name, *(f"{time:.1f}" for time in kinds))


def step(attention, tokens, variant="now"):
    """Return the microseconds of a step of 32 rows."""
    return next(
        row["us"]
        for row in measured["steps of 32 rows"]
        if (row["attention"], row["tokens"], row["variant"]) == (attention, tokens, variant)
    )


def change_rows():
    heads = {(row["rows"], row["columns"]): row["us"] for row in measured["products of the head"]}
    reading, chunks = measured["reading"]["32 x 768, kernels"], measured["reading"]["first chunks, graph"]
    steps = measured["steps of 256 rows"]
    yield ("microseconds", "before", "after")
    same, gpt2 = "the same", "GPT-2 small"
    rows = {
        "product with the head, 256 rows: 50,304 columns instead of 50,257": (
            heads[256, 50257],
            heads[256, 50304],
        ),
        f"product with the head, 32 rows: {same}": (heads[32, 50257], heads[32, 50304]),
        "kernels that read 32 prompts of 768 tokens": (reading["before"], reading["now"]),
        f"first chunks, {gpt2}: 512 packed tokens instead of 32 × 64": (
            chunks["gpt2 32 x 64"],
            chunks["gpt2 512 packed"],
        ),
        f"first chunks, base model: {same}": (chunks["base 32 x 64"], chunks["base 512 packed"]),
    }
    changes = ("whole sequences", "splits", "now"), ("two chains", "now", "chains")
    for change, old, new in changes:
        for tokens in (768, 16):
            times = step("whole", tokens, old), step("whole", tokens, new)
            rows[f"step, {gpt2}, 32 rows, {tokens} tokens: {change}"] = times
    for shape, name in SHAPES.items():
        rows[f"step, {name}, 256 rows: all changes"] = steps[shape]["before"], steps[shape]["now"]
    yield from ((name, f"{before:,.0f}", f"{after:,.0f}") for name, (before, after) in rows.items())


def rounds(shape, steps):
    """Return the best ratio of a turn with this number of steps per round."""
    return max(ours / theirs for theirs, ours in turns("engine", shape, steps))


versions = measured["versions"]
static = median(theirs for theirs, _ in turns("engine", "gpt2"))
engine, before = (median(ours for _, ours in turns(name, "gpt2")) for name in ("engine", "engine-before"))
slow = min(ours for _, ours in turns("engine", "base"))
FIGURES = [
    f"torch {versions['torch']} and triton {versions['triton']}",
    list(call_rows()),
    list(engine_rows()),
    list(attention_rows()),
    list(change_rows()),
    f"generates {engine / before:.1f} times as many tokens per second as before",
    f"one turn has only {slow:,.0f}",
    f"the best ratios with 10 steps per round were {rounds('gpt2', 10):.2f} and {rounds('base', 10):.2f}",
]
GIVEN = {
    "commit 0ab271c5": "the commit that contains the measured code",
    "one H200 and 16 cores": "the machine",
    "12 layers, width 768, vocabulary 50,257 and context 1,024": "--shape gpt2",
    "by 200 tokens": "SamplingConfig(max_new_tokens=200)",
    "runs 256 slots": "--slots 256",
    "prompts of 1 to 32 tokens": "serving_engine.py",
    "1 to 200 new tokens": "serving_engine.py",
    "100 tokens after 16": "serving_engine.py",
    "goal of 0.85": "set before the measurement",
    "4.3 TB/s": "the copy speed of 2026-11-15",
    "took 149 to 171 ms of about 840\nms": "gc.callbacks in that session",
    "256 programs": "kernels/decoding.py",
    "32 prompts of 768 tokens missed": "the arguments of the benchmark",
    "programs of 64 positions": "kernels/decoding.py",
    "one of 16 rows": "kernels/decoding.py",
    "kernel for 50,257 columns": "--shape gpt2",
    "read 32 prompts in rows of 64 tokens": "generate/slots.py of the day before",
    "packed into\n  512 tokens": "generate/prompt_chunks.py",
    "product of 32 rows": "the arguments of the benchmark",
    "one text at 32 places": "generate/prompt_chunks.py",
    "heads of 8": "the failed tests",
    "26 tests": "printed by pytest in that session",
}

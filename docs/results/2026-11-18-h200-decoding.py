"""Compute the figures of 2026-11-18-h200-decoding.md."""

from __future__ import annotations

from records import result

decoding = result("2026-11-18-h200-decoding.json")
peers = {
    "gpt2": result("2026-11-16-h200-generation-gpt2.json"),
    "base": result("2026-11-15-h200-generation.json"),
}
CASES = {
    ("gpt2", 1, 16): "GPT-2 small, 1 prompt of 16 tokens",
    ("gpt2", 1, 768): "GPT-2 small, 1 prompt of 768 tokens",
    ("gpt2", 32, 16): "GPT-2 small, 32 prompts of 16 tokens",
    ("gpt2", 32, 768): "GPT-2 small, 32 prompts of 768 tokens",
    ("base", 1, 16): "base model, 1 prompt of 16 tokens",
}
GREEDY, SAMPLED, FILTERED = "greedy", "sampled", "top-k 50, top-p 0.95"
KINDS = (GREEDY, SAMPLED, FILTERED)
VARIANTS = {
    "default": "in the calls",
    "overlap": "overlap",
    "no overlap": "no overlap",
    "split 64, 2 warps": "splits of 64",
    "library qkv and up": "library qkv and up",
}


def values(section, key, variant=None):
    """Return a value of each case and kind of sampling."""
    rows = [row for row in decoding[section] if variant in (None, row["variant"])]
    return {(row["case"], row["sampling"]): row[key] for row in rows}


def peer_speed(case):
    """Return the tokens per second of `transformers`, static and compiled, for prompts of 16 tokens."""
    shape, batch_size, length = case
    names = {"transformers, static cache, compiled"}
    rows = [row for row in peers[shape]["rows"] if row["contestant"] in names]
    speeds = {row["batch_size"]: row["tokens_per_second"]["median"] for row in rows}
    return speeds[batch_size] if length == 16 else None


def generation_rows():
    new, old = values("generation", "tokens_per_s"), values("generation-base", "tokens_per_s")
    shares = values("generation", "bandwidth")
    yield ("greedy", "tokens/s", "before", "ratio", "transformers", "ratio", "memory bandwidth")
    for case, name in CASES.items():
        key = str(case), GREEDY
        peer = peer_speed(case)
        compared = ("", "") if peer is None else (f"{peer:,.0f}", f"{new[key] / peer:.1f}")
        speeds = f"{new[key]:,.0f}", f"{old[key]:,.0f}", f"{new[key] / old[key]:.1f}"
        yield (name, *speeds, *compared, f"{100 * shares[key]:.0f} %")


def step_rows():
    new, old = values("steps", "us", "default"), values("steps-before", "us")
    yield ("microseconds of a step", *(f"{kind}{when}" for kind in KINDS for when in ("", ", before")))
    for case, name in CASES.items():
        times = [found[str(case), kind] for kind in KINDS for found in (new, old)]
        yield (name, *(f"{time:,.0f}" for time in times))


def option_rows():
    yield ("microseconds of a greedy step", *VARIANTS.values())
    times = {variant: values("steps", "us", variant) for variant in VARIANTS}
    for case, name in CASES.items():
        found = [times[variant].get((str(case), GREEDY)) for variant in VARIANTS]
        yield (name, *("" if time is None else f"{time:,.0f}" for time in found))


def speed_of_step(case):
    """Return the tokens per second by a greedy step with the options that are used now."""
    variant = "split 64, 2 warps" if case[1] == 1 else "overlap" if case[2] == 16 else "default"
    return f"{values('steps', 'tokens_per_s', variant)[str(case), GREEDY]:,.0f}"


def agreement():
    """Return how many sequences of the float32 checks have the ids of the reference, and of how many."""
    counts = [row[kind].split("/") for row in decoding["check"] if GREEDY in row for kind in KINDS]
    return sum(int(same) for same, _ in counts), sum(int(total) for _, total in counts)


versions = decoding["versions"]
same, total = agreement()
assert all(row["same bits"] for row in decoding["check"] if "same bits" in row)
FIGURES = [
    f"torch {versions['torch']}, triton {versions['triton']}",
    list(generation_rows()),
    list(step_rows()),
    list(option_rows()),
    f"{', '.join(map(speed_of_step, CASES))} tokens/s in the order of the table",
    f"{same} of {total} sequences",
]
GIVEN = {
    "12 layers, width 768, vocabulary 50,257 and context 1,024": "--shape gpt2",
    "by 200 tokens": "the arguments of the benchmark",
    "same prompts of 16 tokens": "the arguments of the benchmark",
    "with prompts of 768 tokens": "the arguments of the benchmark",
    "by 4.8 TB/s": "the data sheet of the H200",
    "after 30 to 110 new tokens": "benchmarks/decoding.py",
    "splits of 128 slots": "generate/fused_step.py",
    "for 32 rows": "the arguments of the benchmark",
    "splits of 64,": "generate/fused_step.py",
    "at most 512 slots": "generate/fused_step.py",
    "more than 64 rows": "generate/fused_step.py",
    "1, 2, 33 and 70 rows": "benchmarks/decoding.py",
    "256 slots": "benchmarks/decoding.py",
    "goals of 80,000 and 50,000 tokens/s for 32 prompts of 16 and 768 tokens": "set before the measurement",
}

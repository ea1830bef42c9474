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
    "no overlap": "no overlap of kernels",
    "split 128": "splits of 128",
    "4 warps": "4 warps",
    "128 inputs": "128 inputs",
    "library qkv and up": "cuBLAS for qkv and up",
}


def values(section, key, variant=None):
    """Return a value of each case and kind of sampling."""
    rows = [row for row in decoding[section] if variant in (None, row["variant"]) and key in row]
    return {(row["case"], row["sampling"]): row[key] for row in rows}


def peer_speed(case):
    """Return the tokens per second of `transformers`, static and compiled, for prompts of 16 tokens."""
    shape, batch_size, length = case
    names = {"transformers, static cache, compiled"}
    rows = [row for row in peers[shape]["rows"] if row["contestant"] in names]
    speeds = {row["batch_size"]: row["tokens_per_second"]["median"] for row in rows}
    return speeds[batch_size] if length == 16 else None


def generation_rows():
    sections = ("generation", "generation-base", "generation-eight-kernels")
    new, old, first = (values(section, "tokens_per_s") for section in sections)
    shares = values("generation", "bandwidth")
    headings = ("tokens/s", "before", "eight kernels", "÷ before", "transformers", "÷ transformers")
    yield ("greedy", *headings, "memory bandwidth")
    for case, name in CASES.items():
        key = str(case), GREEDY
        peer = peer_speed(case)
        compared = ("", "") if peer is None else (f"{peer:,.0f}", f"{new[key] / peer:.1f}")
        speeds = f"{new[key]:,.0f}", f"{old[key]:,.0f}", f"{first[key]:,.0f}", f"{new[key] / old[key]:.1f}"
        yield (name, *speeds, *compared, f"{100 * shares[key]:.0f} %")


def step_rows():
    new, old = values("steps", "us", "default"), values("steps-before", "us")
    yield ("microseconds of a step", *(f"{kind}{when}" for kind in KINDS for when in ("", ", before")))
    for case, name in CASES.items():
        times = [found.get((str(case), kind)) for kind in KINDS for found in (new, old)]
        yield (name, *("" if time is None else f"{time:,.0f}" for time in times))


def option_rows():
    yield ("microseconds of a greedy step", *VARIANTS.values())
    times = {variant: values("steps", "us", variant) for variant in VARIANTS}
    for case, name in CASES.items():
        found = [times[variant].get((str(case), GREEDY)) for variant in VARIANTS]
        yield (name, *("" if time is None else f"{time:,.0f}" for time in found))


def log_rows():
    yield ("change", "16 tokens, before", "after", "768 tokens, before", "after")
    for row in decoding["log"]:
        times = zip(row["before"], row["after"], strict=True)
        yield (row["change"], *(f"{time:,.0f}" for pair in times for time in pair))


def engine_rows():
    before = {row["shape"]: row["ratio"] for row in decoding["engine-before"]}
    yield ("tokens/s", "static batch", "engine", "ratio", "ratio before")
    for row, name in zip(decoding["engine"], ("GPT-2 small", "base model"), strict=True):
        speeds = f"{row['static batch']:,.0f}", f"{row['engine']:,.0f}"
        yield (name, *speeds, f"{row['ratio']:.2f}", f"{before[row['shape']]:.2f}")


def agreement():
    """Return how many sequences of the float32 checks have the ids of the reference, and of how many."""
    counts = [row[kind].split("/") for row in decoding["check"] if GREEDY in row for kind in KINDS]
    return sum(int(same) for same, _ in counts), sum(int(total) for _, total in counts)


versions = decoding["versions"]
same, total = agreement()
assert all(row["same bits"] for row in decoding["check"] if "same bits" in row)
assert all(row[kind] for row in decoding["rows"] for kind in KINDS)
errors = [
    row[kind]
    for row in decoding["check"]
    if row["precision"] == "fp32"
    for kind in ("before", "fused")
    if kind in row
]
assert max(errors) < 3e-5
repeated = result("2026-11-19-h200-decoding.json")["generation"]
assert [(row["case"], row["sampling"]) for row in repeated] == [
    (row["case"], row["sampling"]) for row in decoding["generation"]
]
assert len(repeated) == 15, "the next day has the same fifteen measurements"
assert not any("error" in row for row in repeated), "none of them failed"
call = 32 * 200 / values("generation", "tokens_per_s")[str(("gpt2", 32, 768)), GREEDY]
warps = next(row for row in decoding["log"] if "2 warps instead of 4" in row["change"])
FIGURES = [
    f"commit {decoding['commit']}",
    f"torch {versions['torch']} and triton {versions['triton']}",
    list(generation_rows()),
    list(step_rows()),
    list(log_rows()),
    list(option_rows()),
    list(engine_rows()),
    f"{1e3 * call:.0f} ms of a call",
    f"gained\n  {100 * (1 - warps['after'][0] / warps['before'][0]):.0f} %",
    f"{same} of {total} sequences",
]
GIVEN = {
    "one H200 and 16 cores": "the machine",
    "12 layers, width 768, vocabulary 50,257 and context 1,024": "--shape gpt2",
    "by 200 tokens": "the arguments of the benchmark",
    "same prompts of 16 tokens": "the arguments of the benchmark",
    "with prompts of 768 tokens": "the arguments of the benchmark",
    "bandwidth of 4.8 TB/s": "the data sheet of the H200",
    "For prompts of 16 tokens, 32 rows exceed the goal of 80,000": "set before the measurement",
    "For prompts of 768 tokens, the goal of 50,000": "set before the measurement",
    "32 such prompts are 24,576 tokens": "32 times 768",
    "15\nms of": "a call of DeviceSteps.start, timed in the session",
    "goal of 5,000 tokens/s": "set before the measurement",
    "after 30 to 110 new tokens": "benchmarks/decoding.py",
    "1 prompt of 768 tokens with filters": "the row with an error",
    "step of 32 rows": "the arguments of the benchmark",
    "Products with 32 rows and 16 outputs": "generate/fused_step.py",
    "256 positions in a loop": "a row of the table",
    "32 prompts of 768 tokens took about 34 ms": "200 / 39,180 per prompt minus 199 steps of 648 µs",
    "takes 15\n  ms now": "a call of DeviceSteps.start, timed in the session",
    "runs 256 slots": "the arguments of the benchmark",
    "prompts of 1 to 32 tokens and 1 to 200 new ones": "serving_engine.py",
    "100 tokens after 16": "serving_engine.py",
    "commit 98f6621": "the record of that session",
    "goal of 0.85": "set before the measurement",
    "first chunks of 32 prompts": "generate/slots.py",
    "busy 94 %": "the profiler: 512 ms of kernels in 548 ms",
    "0.3 ms": "256 divided by the tokens per second of the static batch",
    "0.63 to 0.74": "printed in the other sessions",
    "512 requests in 256 slots": "benchmarks/decoding_checks.py",
    "below 3e-5": "asserted by the script of this page",
    "1, 2, 33 and 70 rows": "benchmarks/decoding.py",
}

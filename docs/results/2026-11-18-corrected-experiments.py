"""Compute the figures of 2026-11-18-corrected-experiments.md."""

from __future__ import annotations

from records import result, spell, sweep

NAME = "2026-11-18-corrected-experiments"
measured = result(f"{NAME}.json")
plan, floors = measured["plan"], measured["floors"]
runs = [run for run in measured["runs"] if "error" not in run]
assert len(runs) == len(measured["runs"]), "no run failed"


def above(run, split="test") -> float:
    """Return the bits per byte above the floor."""
    return run[f"{split}_bits_per_byte"] - floors[split]


def first_seed(variant: str):
    """Return the runs of a variant with seed 0 by rate."""
    return {run["lr"]: run for run in runs if run["variant"] == variant and run["seed"] == 0}


def best(variant: str):
    """Return the run with the best rate on validation stories."""
    return min(first_seed(variant).values(), key=lambda run: above(run, "validation"))


def signed(value: float) -> str:
    return f"{value:+.5f}".replace("-", "−")


def rows(title: str, variants: dict[str, str], base: str):
    rates_differ = any(len(first_seed(variant)) > 1 for variant in variants)
    yield (
        title, "updates", "tokens, millions", "rates tried" if rates_differ else "rate", "best rate",
        "above the floor", f"to {variants[base]}",
    )  # fmt: skip
    for variant, words in variants.items():
        found = best(variant)
        yield (
            words,
            f"{found['steps']:,}",
            f"{found['tokens'] / 1e6:.1f}",
            ", ".join(f"{lr:g}" for lr in sorted(first_seed(variant))),
            f"{found['lr']:g}",
            f"{above(found):.5f}",
            "" if variant == base else signed(above(found) - above(best(base))),
        )


def to_base(variant: str, base: str = "baseline") -> float:
    return above(best(variant)) - above(best(base))


repeated = [
    above(run) for run in runs if run["variant"] == "baseline" and run["lr"] == best("baseline")["lr"]
]
assert len(repeated) == 2
noise = max(repeated) - min(repeated)


# The old experiments in bits per byte


def old(name: str, key: str, value) -> float:
    (run,) = (run for run in sweep(name)["runs"] if str(run["labels"][key]) == str(value))
    return next(each for each in reversed(run["metrics"]["bits_per_byte"]) if each is not None)


VOCABULARY, CONTEXT = ("tokenizers", "corpus.vocab_size"), ("context_length", "model.context_length")
old_vocabulary = old(*VOCABULARY, 512) - old(*VOCABULARY, 10_000)
old_context = old(*CONTEXT, 256) - old(*CONTEXT, 512)

FIGURES = [
    f"{len(runs)} runs",
    f"Each run reads {plan['tokens'] // 10**6} million tokens",
    f"width {plan['model'][0].split('=')[1]}",
    f"{plan['stories']:,} test stories",
    f"entropy of these stories, {floors['test']:.5f}",
    f"end at {min(repeated):.5f} and {max(repeated):.5f}, {noise:.5f} apart",
    list(rows("feed-forward", {"baseline": "SwiGLU", "silu": "SiLU"}, "baseline")),
    list(rows("position", {"baseline": "rotary", "no positions": "none"}, "baseline")),
    list(
        rows(
            "batch",
            {
                "batch 32": "32 windows",
                "batch 64": "64 windows",
                "baseline": "128 windows",
                "batch 256": "256 windows",
                "batch 512": "512 windows",
            },
            "baseline",
        )
    ),
    list(
        rows(
            "vocabulary",
            {
                "vocabulary 512": "512 tokens",
                "vocabulary 1024": "1,024 tokens",
                "vocabulary 4096": "4,096 tokens",
                "context 512": "10,000 tokens",
            },
            "context 512",
        )
    ),
    list(
        rows(
            "context",
            {
                "context 64": "context of 64",
                "context 128": "context of 128",
                "baseline": "context of 256",
                "context 512": "context of 512",
            },
            "baseline",
        )
    ),
    f"512 tokens cost {old_vocabulary:.4f} bits per byte more than 10,000",
    f"by {old_context:.4f} bits per byte",
    f"{to_base('context 64') / noise:.0f} times",
    f"{to_base('context 128') / noise:.0f} times the difference of the two seeds",
    f"{to_base('batch 512') / noise:.0f} times",
    f"{to_base('batch 256') / noise:.1f} times",
    f"The best rate of both is {spell(best('silu')['lr'])}",
]
GIVEN = {
    "5 % of the updates": "WARM_UP of the script",
    "75 MB": "bytes_per_run of the plan",
    "40 million tokens": "the log of experiments",
    "width 256": "the plan",
    "128 windows": "the names of the variants",
    "256 and 512 windows": "the names of the variants",
    "With 256 windows": "the names of the variants",
    "with 512 windows": "the names of the variants",
    "from 64 to 512 windows": "the log of experiments",
    "context is 512 tokens": "the plan",
    "Contexts of 64 and 128 tokens": "the names of the variants",
    "about 180 tokens": "the log of experiments, 184",
    "beyond 256 tokens": "the log of experiments",
    "from 256 to 512": "the log of experiments",
}

"""Compute the figures of 2026-11-18-corrected-experiments.md."""

from __future__ import annotations

from math import sqrt
from statistics import mean

from records import result, signed, spell, sweep

from bytewright.laws.inference import Difference, compare_means, holm

NAME = "2026-11-18-corrected-experiments"
measured = result(f"{NAME}.json")
plan, floors = measured["plan"], measured["floors"]
runs = measured["runs"]
assert not any("error" in run for run in runs)

EXPERIMENTS = {
    "feed-forward": {"baseline": "SwiGLU", "silu": "SiLU"},
    "position": {"baseline": "rotary", "no positions": "none"},
    "batch": {
        "baseline": "128 windows",
        "batch 32": "32 windows",
        "batch 64": "64 windows",
        "batch 256": "256 windows",
        "batch 512": "512 windows",
    },
    "vocabulary": {
        "context 512": "10,000 tokens",
        "vocabulary 512": "512 tokens",
        "vocabulary 1024": "1,024 tokens",
        "vocabulary 4096": "4,096 tokens",
    },
    "context": {
        "baseline": "256 tokens",
        "context 64": "64 tokens",
        "context 128": "128 tokens",
        "context 512": "512 tokens",
    },
}
"""The variants of each experiment, the one that others are compared with first."""


def above(run, split="test") -> float:
    """Return the bits per byte above the floor."""
    return run[f"{split}_bits_per_byte"] - floors[split]


def first_seed(variant: str):
    """Return the runs of a variant with seed 0 by rate."""
    return {run["lr"]: run for run in runs if run["variant"] == variant and run["seed"] == 0}


def best(variant: str):
    """Return the run of seed 0 with the best rate on validation stories."""
    return min(first_seed(variant).values(), key=lambda run: above(run, "validation"))


def seeds(variant: str) -> dict[int, float]:
    """Return the bits per byte above the floor by seed, at the best rate."""
    lr = best(variant)["lr"]
    return {run["seed"]: above(run) for run in runs if (run["variant"], run["lr"]) == (variant, lr)}


def compare(variant: str, base: str) -> Difference:
    found = compare_means(seeds(variant), seeds(base))
    assert found is not None
    assert found.is_paired
    return found


differences = {
    (title, variant): compare(variant, next(iter(variants)))
    for title, variants in EXPERIMENTS.items()
    for variant in list(variants)[1:]
}
corrected = holm([each.p_value for each in differences.values()])
p_values = dict(zip(differences, corrected, strict=True))
not_decided = [variant for (_, variant), p in p_values.items() if p >= 0.05]
assert not_decided == ["silu", "no positions", "batch 64", "context 512"], "the words of the page"
for rates in (sorted(first_seed(variant)) for variant in EXPERIMENTS["batch"]):
    (lr,) = {best(each)["lr"] for each in EXPERIMENTS["batch"] if sorted(first_seed(each)) == rates}
    assert rates[0] < lr < rates[-1], "the best rate of every batch is inside of the rates"


def difference_to_base(title: str, variant: str) -> str:
    found = differences[title, variant]
    return signed(found.value, found.half_width(), digits=5)


def format_p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def rows(title: str):
    variants = EXPERIMENTS[title]
    base = next(iter(variants))
    yield (
        title, "updates", "rates tried", "best rate", "seeds", "above the floor", f"to {variants[base]}", "p",
    )  # fmt: skip
    for variant, words in variants.items():
        yield (
            words,
            f"{best(variant)['steps']:,}",
            ", ".join(f"{lr:g}" for lr in sorted(first_seed(variant))),
            f"{best(variant)['lr']:g}",
            len(seeds(variant)),
            f"{mean(seeds(variant).values()):.5f}",
            "" if variant == base else difference_to_base(title, variant),
            "" if variant == base else format_p(p_values[title, variant]),
        )


def rule(variant: str) -> str:
    """Return the best rate of a batch as a multiple of the square-root rule."""
    batch = int(variant.split()[1])
    return f"{best(variant)['lr'] / (best('baseline')['lr'] * sqrt(batch / 128)):.1f}"


repeat = next(run for run in runs if run["variant"] == "repeat of baseline")
largest_gain = (
    differences["context", "context 512"].half_width() - differences["context", "context 512"].value
)
vocabulary = [-differences["vocabulary", each].value for each in list(EXPERIMENTS["vocabulary"])[1:]]


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
    f"correction for the {len(differences)} comparisons",
    *(list(rows(title)) for title in EXPERIMENTS),
    f"p is {p_values['position', 'no positions']:.2f}",
    f"{rule('batch 64')} times the rate of this rule",
    f"with 256 and 512 windows {rule('batch 256')} times",
    f"by {min(vocabulary):.4f} to {max(vocabulary):.4f} bits per byte",
    f"512 tokens cost {old_vocabulary:.4f} bits per byte more than 10,000",
    f"at most {largest_gain:.4f} bits per byte",
    f"by {old_context:.4f} bits per byte",
    f"The best rate of both is {spell(best('silu')['lr'])}",
    f"have only {best('batch 512')['steps']} updates",
    f"ended at {above(repeat):.5f} instead of {above(best('baseline')):.5f}",
]
assert rule("batch 256") == rule("batch 512")
GIVEN = {
    "5 % of the updates": "WARM_UP of the script",
    "75 MB": "bytes_per_run of the plan",
    "40 million tokens": "the log of experiments",
    "95 % t interval": "the usual level",
    "p is below 0.05": "the usual level",
    "lowest with 64 or 128 windows": "the names of the variants",
    "with 32, 256 and 512 windows": "the names of the variants",
    "rate with 64 windows": "the names of the variants",
    "From 64 windows on": "the names of the variants",
    "runs with 512 windows": "the names of the variants",
    "from 64 to 512 windows": "the log of experiments",
    "context is 512 tokens": "the plan",
    "than 10,000 tokens at": "the names of the variants",
    "Contexts of 64 and 128 tokens": "the names of the variants",
    "context of 512 tokens": "the names of the variants",
    "about 180 tokens": "the log of experiments, 184",
    "beyond 256 tokens": "the log of experiments",
    "from 256 to 512": "the log of experiments",
}

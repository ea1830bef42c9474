"""Compute the figures of accounting.md."""

from __future__ import annotations

from dataclasses import replace

from records import percent, recipe, result, signed

from bytewright.account import (
    DEVICES,
    TrainingSetup,
    account,
    find_device,
    find_preset,
    propose_shape,
    training_costs,
    training_days,
)
from bytewright.account.flops import growth, training_flops_per_token
from bytewright.account.parameters import count_parameters
from bytewright.account.predict import TOKENS_PER_PARAMETER
from bytewright.account.shapes import RATIO, TOLERANCE
from bytewright.account.time import roofline
from bytewright.model import ModelConfig

first = account(find_preset("gpt2-xl"))
second = account(replace(find_preset("gpt2-xl"), d_ff=4288))
base = account(find_preset("base"))
TOKENS = 327_680_000
measured = result("2026-11-15-accounting-h200-memory.json")["rows"]
furthest_off = max(abs(row["predicted"] / row["measured"] - 1) for row in measured)
exact_flops = TOKENS * base.flops.training / base.config.context_length
small, xl, xl_long = growth()[0], growth()[6], growth()[7]


def giga(n):
    return f"{n / 1e9:,.2f}"


def gibi(n):
    return f"{n / 2**30:,.2f}"


def tera(n):
    return f"{n / 1e12:,.3f}"


def parameter_rows():
    names = ["embeddings", "attention", "feed_forward", "norms_in_blocks", "final_norm", "head", "total"]
    names += ["without_embeddings", "without_embeddings_and_head"]
    counts = [[f"{getattr(it.parameters, name):,}" for it in (first, second)] for name in names]
    rows = [(name.replace("_", " "), *pair) for name, pair in zip(names, counts, strict=True)]
    return [("", "d_ff 6,400", "d_ff 4,288"), *rows]


def matmul_rows():
    rows = [("product", "times", "shape", "TFLOP", "share", "TFLOP at 4,288", "share at 4,288")]
    for left, right in zip(first.matmuls, second.matmuls, strict=True):
        shape = f"({left.m:,} × {left.k:,}) ({left.k:,} × {left.n:,})"
        cells = [
            cell
            for flops, it in ((left.flops, first), (right.flops, second))
            for cell in (tera(flops), percent(flops / it.flops.forward, 1))
        ]
        rows.append((left.name, f"{left.times:,}", shape, *cells))
    totals = [cell for it in (first, second) for cell in (tera(it.flops.forward), percent(1, 1))]
    return [*rows, ("forward", "", "", *totals)]


def step_rows():
    counts = {"all scores": first.flops, "causal scores only": first.causal_flops}
    rows = [
        (name, tera(flops.training), giga(flops.training / first.tokens)) for name, flops in counts.items()
    ]
    return [("forward and backward of one sequence", "TFLOP", "GFLOP per token"), *rows]


def errors_of_rule(config):
    """Return the relative error of 6·N per token for three meanings of N."""
    exact, count = training_flops_per_token(config), count_parameters(config)
    counts = (count.total, count.without_embeddings, count.without_embeddings_and_head)
    return [6 * n / exact - 1 for n in counts]


def rule_rows():
    models = {
        "`recipes/tiny.toml`": ModelConfig(**recipe("tiny")["model"]),
        "base": base.config,
        "gpt2-small": find_preset("gpt2-small"),
        "gpt2-xl": first.config,
        "gpt2-xl, long context": replace(first.config, context_length=16384),
    }
    meanings = ("6·all parameters", "6·without embeddings", "6·without embeddings and head")
    rows = [("model", "context", "exact, MFLOP", *meanings)]
    for name, config in models.items():
        exact = f"{training_flops_per_token(config) / 1e6:,.1f}"
        offs = [f"{signed(100 * off, digits=1)} %" for off in errors_of_rule(config)]
        rows.append((name, f"{config.context_length:,}", exact, *offs))
    return rows


def equal_context():
    """Return the context at which attention of gpt2-xl costs as much as all products with weights."""
    count = first.parameters
    weights = count.attention + count.feed_forward + count.head
    return weights / (2 * first.config.num_layers * first.config.d_model)


def growth_rows(models=None):
    rows = [("model", "context", "TFLOP", "projections", "attention", "feed-forward", "head")]
    for it in growth(models):
        shares = [percent(share, 1) for share in it.shares().values()]
        rows.append((it.name, f"{it.context_length:,}", tera(it.flops.forward), *shares))
    return rows


FAMILY = ("gpt2-small", "gpt2-medium", "gpt2-large", "gpt2-xl")
narrow = {
    f"{name}, d_ff {config.ffn_width:,}": config
    for name in FAMILY
    for config in [replace(find_preset(name), d_ff=None)]
}


def memory_rows():
    parts = ("weights", "gradients", "state", "kept", "T² of it", "logits", "other")
    rows = [("GB (10⁹ bytes)", "peak", "moment", *parts)]
    for setting, memory in first.training.items():
        part = memory.peak_moment.parts
        squares = part.get("attention matrices", 0)
        kept = part.get("activations", 0) + part.get("weight copies", 0) + squares
        other = part.get("temporaries", 0) + part["workspace"]
        sizes = (part["parameters"], part["gradients"], part["optimizer state"], kept, squares)
        cells = map(giga, (*sizes, part.get("logits", 0), other))
        name = setting.name
        rows.append((name, giga(memory.peak), memory.peak_moment.name, *cells))
    return rows


def run_setup(device, **changes):
    """Return the base experiment on a GPU."""
    settings = {"batch_size": recipe("base")["batch_size"], "num_tokens": TOKENS, "precision": "bf16"}
    return TrainingSetup(**settings, compiled=True, device=find_device(device), **changes)


def run_rows():
    rows = [("GPU", "memory needed", "largest batch", "tokens/s", "minutes", "Wh")]
    for name in ("rtx3060", "rtx4090", "rtx5090", "a100", "h200"):
        costs = training_costs(base.config, run_setup(name))
        rows.append(
            (
                find_device(name).name,
                f"{giga(costs.memory_bytes)} GB",
                f"{costs.largest_batch:,}",
                f"{costs.tokens_per_second:,.0f}",
                f"{costs.seconds / 60:.1f}",
                f"{1000 * costs.kilowatt_hours:.0f}",
            )
        )
    return rows


def shape_rows():
    names = ("width", "layers", "heads", "feed-forward", "vocabulary", "parameters")
    rows = [("requested", *names)]
    for label, number in {"10 million": 1e7, "100 million": 1e8, "1 billion": 1e9, "7 billion": 7e9}.items():
        shape = propose_shape(number)
        sizes = (shape.d_model, shape.num_layers, shape.num_heads, shape.ffn_width, shape.vocab_size)
        rows.append((label, *(f"{size:,}" for size in (*sizes, count_parameters(shape).total))))
    return rows


billion = propose_shape(1e9)
billion_costs = training_costs(billion, replace(run_setup("h100"), batch_size=8, num_tokens=0))


def days(it, device, rate):
    peak = find_device(device).peak(rate)
    return training_days(it.config, num_steps=400_000, batch_size=1024, flops_per_second=peak)


def day_rows():
    devices = {"A100, fp32, 19.5 TFLOP/s": ("a100", "fp32"), "H100, TF32, 495 TFLOP/s": ("h100", "tf32")}
    rows = [
        (name, *(f"{days(it, *device):,.0f}" for it in (first, second))) for name, device in devices.items()
    ]
    return [("days", "d_ff 6,400", "d_ff 4,288"), *rows]


parts = roofline(base.config, DEVICES["h100"], batch_size=128)
other_seconds = sum(
    part.seconds for part in parts if "products" not in part.name and part.name != "attention"
)
other_share = other_seconds / sum(part.seconds for part in parts)


def roofline_rows():
    rows = [("part", "GFLOP", "GB", "FLOP per byte", "bound by")]
    for part in parts:
        cells = f"{part.flops / 1e9:,.1f}", giga(part.num_bytes), f"{part.intensity:,.1f}", part.bound
        rows.append((part.name, *cells))
    return rows


FIGURES = [
    # How many parameters, and how much memory to load them?
    parameter_rows(),
    f"The model has {first.parameters.total:,} parameters, or {second.parameters.total:,} in the",
    (
        f"each) that is {giga(4 * first.parameters.total)} GB ({gibi(4 * first.parameters.total)} GiB), "
        f"or {giga(4 * second.parameters.total)} GB ({gibi(4 * second.parameters.total)} GiB"
    ),
    # Which matrix products does a forward pass consist of, and what do they cost?
    f"one sequence of {first.config.context_length:,} tokens",
    matmul_rows(),
    f"would leave out {tera(first.matmuls[7].flops)} TFLOP",
    f"forward pass takes {tera(first.causal_flops.forward)} TFLOP instead of {tera(first.flops.forward)}",
    step_rows(),
    # How good is 6·N·D?
    rule_rows(),
    f"rule is within {percent(max(map(abs, errors_of_rule(first.config))))} for every",
    f"for gpt2-xl is {equal_context():,.0f} tokens",
    f"V·d each, are {percent(2 * base.parameters.head / base.parameters.total)} of the",
    f"a factor of {base.parameters.total / base.parameters.without_embeddings_and_head:.1f}",
    (
        f"The {TOKENS:,} tokens of the base experiment take {exact_flops / 1e15:.1f} PFLOP by the exact "
        f"count, and {TOKENS * 6 * base.parameters.total / 1e15:.1f} PFLOP by"
    ),
    # Which parts take the most?
    (
        f"feed-forward layers take {percent(first.flops.shares()['feed_forward'], 1)} of the forward pass "
        f"({percent(second.flops.shares()['feed_forward'], 1)} in the"
    ),
    (
        f"of the context, take {percent(xl.shares()['attention'], 1)} at this context. The head takes "
        f"{percent(first.flops.shares()['head'], 1)}"
    ),
    # How do the shares change with the size of the model and with the context?
    growth_rows(),
    f"head falls from {percent(small.shares()['head'], 1)} to {percent(xl.shares()['head'], 1)}",
    (
        f"of XL takes {xl_long.flops.forward / 1e12:.1f} TFLOP, which is "
        f"{xl_long.flops.forward / xl.flops.forward:.1f} times as many. Scores and weighting grow "
        f"{16**2}-fold, from {percent(xl.shares()['attention'], 1)} to "
        f"{percent(xl_long.shares()['attention'], 1)}"
    ),
    growth_rows(narrow),
    # How much memory does a training step with AdamW need?
    (
        f"is N = {first.textbook_memory.parameters_formula}, and one sequence needs a = "
        f"{first.textbook_memory.per_sequence_formula} bytes of"
    ),
    f"a = {giga(first.textbook_memory.a)} GB, b = {giga(first.textbook_memory.b)} GB",
    f"a = {giga(second.textbook_memory.a)} GB, b = {giga(second.textbook_memory.b)} GB",
    (
        f"A batch of {first.textbook_memory.largest_batch(80e9)} fits into 80 GB, or of "
        f"{second.textbook_memory.largest_batch(80e9)} in the"
    ),
    f"GiB, which is {(80 * 2**30 - 80e9) / 1e9:.1f} GB more",
    (
        f"the same ({first.textbook_memory.largest_batch(80 * 2**30)} and "
        f"{second.textbook_memory.largest_batch(80 * 2**30)}"
    ),
    f"alone, 8·H·L·T², are {giga(8 * 25 * 48 * 1024**2)} GB of",
    memory_rows(),
    (
        f"on an H200](../results/2026-11-15-accounting.md), {len(measured)} kinds of step are predicted "
        f"within {percent(furthest_off, 1)}"
    ),
    # How many operations is one step of AdamW?
    (
        f"That is {giga(first.updates['adamw'].flops)} GFLOP ({giga(second.updates['adamw'].flops)} in "
        f"the second year's shape), or {percent(first.updates['adamw'].flops / first.flops.training, 1)} "
        "of a"
    ),
    f"move at least {giga(first.updates['adamw'].num_bytes)} GB",
    f"Muon's update takes {first.updates['muon'].flops / 1e12:.1f} TFLOP",
    f"and backward of {first.updates['muon'].flops / first.flops.training:.1f} sequences",
    # How long does it take to train for 400K steps at batch 1,024?
    day_rows(),
    f"precision that is {days(first, 'a100', 'fp32') / 365.25:.1f} years",
    f"the H100 is {find_device('h100').peak('fp32') / 1e12:.0f} TFLOP/s",
    # What does a whole run need?
    run_rows(),
    f"a run has {TOKENS_PER_PARAMETER} tokens per parameter",
    # Which shape has a billion parameters?
    f"within {percent(TOLERANCE)} of the request",
    f"is nearest to {RATIO} times the number of layers",
    shape_rows(),
    f"With {TOKENS_PER_PARAMETER} tokens",
    (
        f"takes {billion_costs.num_tokens / 1e9:.1f} billion tokens and "
        f"{billion_costs.flops / 1e18:.0f} EFLOP. On one H100 this is predicted to take "
        f"{billion_costs.seconds / 86_400:.1f} days and "
        f"{billion_costs.kilowatt_hours:.0f} kWh"
    ),
    # Which parts are bound by memory, and which by arithmetic?
    f"An H100 executes {find_device('h100').balance('bf16'):.0f} bf16 operations",
    roofline_rows(),
    f"By this count, {percent(other_share)} of the",
]
GIVEN = {
    "width of 6,400 (first year) and of 4,288": "the questions of both years",
    "10⁹ bytes": "the definition",
    "12·T·d": "three times 4·T·d",
    "16·N bytes": "the sum of 4, 4 and 8",
    "at a context of 1,024": "the context of GPT-2",
    "With a context of 16,384": "the question",
    "d_ff 6,400: a =": "the shapes of both years",
    "d_ff 4,288: a =": "the shapes of both years",
    "80 GB": "the question",
    "80 GiB": "the question",
    "400K steps at batch 1,024": "the question",
    "batch size 128": "the batch of the base experiment's first run",
    "512 columns": "the width of the base model",
    "al. (2022)": "the year of the paper",
    "a multiple of 128 (less below 1,024)": "the rule of propose_shape",
    "heads have 128 dimensions (less below a width of 2,048)": "the rule of propose_shape",
}

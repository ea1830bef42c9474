"""Compute the figures of experiments.md."""

from __future__ import annotations

from math import exp, log
from statistics import mean

from records import (
    by_label,
    bytes_per_token,
    curve,
    difference,
    final,
    finals,
    million_tokens_per_second,
    percent,
    recipe,
    result,
    seconds,
    signed,
    spell,
    spread,
    steady_seconds,
    sweep,
)

SWEEPS = (
    "learning_rate", "learning_rate_edge", "batch_size", "no_norm", "post_norm", "no_position", "silu_ffn",
    "other_corpus", "context_length", "adamw", "tokenizers", "generate", "base_experiment", "speedrun_search",
    "half_time", "speedrun",
)  # fmt: skip
QUOTED = [recipe(name)[key] for name in SWEEPS for key in ("question", "expectation")]
GUESSING = log(10_000)


def single(name):
    """Return the runs of a sweep with one seed by label."""
    return {label: run for label, (run,) in by_label(name).items()}


def loss_of(run):
    return f"{final(run):.4f}" + (" (diverged)" if run["status"] == "diverged" else "")


def above(name, label, base):
    return signed(*difference(name, label, base))


# Learning rate, batch size, context

rate = {float(label): run for label, run in single("learning_rate").items()}
novels = {
    run["run"].split("=")[-1]: run["loss"]
    for run in result("2026-11-15-h200-learning.json")["runs"]
    if run["contestant"] == "plain"
}
edge = {float(label): runs for label, runs in by_label("learning_rate_edge").items()}
batch = {int(label.split(",")[0]): run for label, run in single("batch_size").items()}
context = {int(label): run for label, run in single("context_length").items()}
same_seeds = spread(finals("no_norm", "with norms"))


def rate_rows():
    return [("peak rate", "validation loss"), *((spell(lr), loss_of(run)) for lr, run in rate.items())]


def novels_rows():
    rates = sorted(novels, key=float)
    return [("peak rate on novels", "validation loss"), *((lr, f"{novels[lr]:.4f}") for lr in rates)]


def edge_rows():
    return [
        ("peak rate", "seed 0", "seed 1"),
        *((spell(lr), *map(loss_of, runs)) for lr, runs in edge.items()),
    ]


def batch_rows():
    rows = [("windows", "million tokens", "validation loss", "million tokens/s", "GB")]
    for size, run in batch.items():
        tokens, gigabytes = run["metrics"]["tokens"][-1] / 1e6, run["measured"]["memory_bytes"] / 1e9
        speed = million_tokens_per_second(run)
        rows.append((f"{size:,}", f"{tokens:.0f}", loss_of(run), f"{speed:.2f}", f"{gigabytes:.2f}"))
    return rows


def context_rows():
    rows = [("context", "validation loss", "perplexity", "ms per update")]
    for length, run in context.items():
        milliseconds = f"{32.768 / million_tokens_per_second(run):.1f}"
        rows.append((f"{length:,}", loss_of(run), f"{exp(final(run)):.3f}", milliseconds))
    return rows


# Architecture, optimizer, data

corpus = single("other_corpus")
adamw = {run["name"]: run for run in sweep("adamw")["runs"]}
vocabulary = {int(label.split(",")[0]): run for label, run in single("tokenizers").items()}


def at_update_100(label):
    return mean(dict(curve(run))[100] for run in by_label("no_position")[label])


def to_baseline(name):
    return signed(final(adamw[name]) - final(adamw["baseline"]))


def vocabulary_rows():
    rows = [("vocabulary", "bytes per token", "bits per byte")]
    for size, run in vocabulary.items():
        rows.append((f"{size:,}", f"{bytes_per_token(run):.3f}", f"{final(run, 'bits_per_byte'):.4f}"))
    return rows


def sampling_rows():
    cuts = (0.8, 0.95, 1.0)
    share = {
        tuple(run["labels"].values()): run["metrics"]["consistent"][0] for run in sweep("generate")["runs"]
    }
    rows = [("temperature", *(f"consistent at top-p {p:g}" for p in cuts))]
    return rows + [(t, *(percent(share[t, p], 1) for p in cuts)) for t in sorted({t for t, _ in share})]


# The base experiment and the speedruns

(base,) = sweep("base_experiment")["runs"]
base_gap = final(base, "bits_per_byte") - base["floor"]
before = result("2026-11-15-lab/base_experiment/earlier-runs.json")["runs"][-1]["validations"][-1]
whole = result("2026-11-15-lab/base_experiment/whole-stories.json")
windows_gap = whole["validation_bits_per_byte"] - whole["whole_stories"]["floor"]
search = single("speedrun_search")
half = by_label("half_time")
race = single("speedrun")
first_race = {
    run["labels"]["variant"]: run for run in result("2026-11-15-lab/speedrun/first-race.json")["runs"]
}
(seed_1,) = result("2026-11-15-lab/speedrun/seed-1.json")["runs"]
plain_races = [final(first_race["plain"]), final(race["plain"])]
speedruns = [final(first_race["speedrun"]), final(race["speedrun"]), final(seed_1)]


def steady(label):
    return mean(map(steady_seconds, half[label]))


def half_rows():
    rows = [("", "million tokens", "validation loss", "to speedrun", "seconds")]
    for label, runs in half.items():
        tokens = f"{runs[0]['metrics']['tokens'][-1] / 1e6:.0f}"
        gap = "" if label == "speedrun" else above("half_time", label, "speedrun")
        rows.append((label, tokens, f"{mean(map(final, runs)):.4f}", gap, f"{steady(label):.1f}"))
    return rows


def race_rows():
    rows = [("", "updates", "million tokens", "validation loss", "seconds")]
    for label, run in race.items():
        steps, tokens = run["metrics"]["step"][-1], run["metrics"]["tokens"][-1] / 1e6
        rows.append((label, f"{steps:,}", f"{tokens:,.0f}", loss_of(run), f"{seconds([run]):.1f}"))
    return rows


FIGURES = [
    # The learning rate
    rate_rows(),
    f"loss rose to {max(value for _, value in curve(rate[1.0])):.0f}; a uniform guess has {GUESSING:.2f}",
    novels_rows(),
    (
        f"best rate costs {novels['1e-3'] - novels['4e-3']:.2f} nats, twice the best rate "
        f"{novels['8e-3'] - novels['4e-3']:.2f}"
    ),
    f"the best rate {novels['16e-3'] - novels['4e-3']:.2f}",
    # The edge of divergence
    edge_rows(),
    f"rates on, by {spread(list(map(final, edge[0.0113]))):.3f} nats",
    f"seeds agree within {same_seeds:.4f}",
    # The batch size
    batch_rows(),
    f"windows end within {spread([final(batch[n]) for n in (64, 128, 256, 512)]):.3f} nats",
    # Without norms
    f"stable and ends {above('no_norm', 'without norms, lr 4e-4', 'with norms')[1:]} above norms",
    f"the loss is {final(rate[0.0003]):.4f}",
    f"`4e-4` it is {mean(finals('no_norm', 'without norms, lr 4e-4')):.4f}",
    # Post-norm
    (
        f"the loss by {above('post_norm', 'post-norm', 'pre-norm')} at the base rate and by "
        f"{above('post_norm', 'post-norm, lr 1.3e-3', 'pre-norm')} at a"
    ),
    f"`1e-3` ends at {final(rate[0.001]):.4f} (one seed",
    f"`1.3e-3` ends at {mean(finals('post_norm', 'post-norm, lr 1.3e-3')):.4f}",
    # Without positions
    f"is higher by {above('no_position', 'none', 'rope')[1:]}",
    f"the difference is {at_update_100('none') - at_update_100('rope'):.1f} nats",
    # Without the gate
    f"{2 * 512 * 2048:,} and {3 * 512 * 1344:,} per layer",
    (f"loss is higher by {above('silu_ffn', 'silu', 'swiglu')[1:]}"),
    # Another corpus
    (
        f"Stories take {final(corpus['stories'], 'bits_per_byte'):.3f} bits per byte and novels "
        f"{final(corpus['prose'], 'bits_per_byte'):.3f}; in nats per token {final(corpus['stories']):.3f} "
        f"and {final(corpus['prose']):.3f}"
    ),
    # The context length
    context_rows(),
    # AdamW, one setting at a time
    f"runs end within {spread(list(map(final, adamw.values()))):.4f} nats",
    (
        f"β1 0.98 ({to_baseline('beta1-0.98')}), a decay of 1 ({to_baseline('weight-decay-1')}) and β2 "
        f"0.9 ({to_baseline('beta2-0.9')}). Better is β2 0.999 ({to_baseline('beta2-0.999')}"
    ),
    f"most and costs {to_baseline('warmup-0')}",
    # The size of the vocabulary
    vocabulary_rows(),
    # Temperature and top-p
    sampling_rows(),
    # The base experiment
    f"validation loss is {final(base):.4f}, which is {base_gap:.4f} bits per",
    (
        f"There it is {whole['whole_stories']['above_floor']:.4f} above the floor, and on windows "
        f"{windows_gap:.4f}"
    ),
    f"The run took {seconds([base]):.1f} s ({base['predicted']['seconds']:.1f} s were",
    f"the goal), or {steady_seconds(base):.1f} s without",
    (
        f"another card. It ended at {before['validation_loss']:.4f}, which is "
        f"{final(base) - before['validation_loss']:.4f} lower"
    ),
    # The search for a speedrun
    f"ends lowest, at {final(search['Muon']):.4f}",
    f"rate ends at {final(search['AdamW at 4e-3']):.4f}",
    (
        "tying gets below "
        f"{min(final(run) for name, run in search.items() if not name.startswith('Muon')):.4f}"
    ),
    (
        f"as four, at {million_tokens_per_second(search['3 layers']):.2f} instead of "
        f"{million_tokens_per_second(search['AdamW at 2e-3']):.2f} million tokens/s"
    ),
    # The same loss in half the time
    half_rows(),
    f"all seeds, in {steady('speedrun') / steady('plain'):.2f} of its",
    (
        f"cache it takes {seconds(half['speedrun']) / seconds(half['plain']):.2f} of the time, and "
        f"{seconds(half['speedrun'][:1]) / seconds(half['plain'][:1]):.2f} in seed"
    ),
    f"and β2 ends {above('half_time', 'without Muon', 'plain').lstrip('−')} below plain",
    # The speedrun
    race_rows(),
    f"race ended at {plain_races[0]:.4f} (plain) and {speedruns[0]:.4f} (speedrun",
    f"the speedrun at {speedruns[2]:.4f}",
    f"on average by {mean(plain_races) - mean(speedruns):.4f}",
    f"differ by up to {spread(speedruns):.4f}.",
    f"so {300 - seconds([race['plain']]):.0f} of the",
]
FIGURES += QUOTED
SETTINGS = "the settings of the sweep"
LOG = "docs/results/experiments.md computes it"
GIVEN = {
    "95 % t interval": "the usual level",
    "40 million tokens nearly exhaust": SETTINGS,
    "below about 0.002 nats": LOG,
    "by more than 0.001": "the threshold",
    "16 times the best rate": "1.6e-2 by 1e-3",
    "80 million tokens of novels": SETTINGS,
    "16 to 128 windows": SETTINGS,
    "At 40 million, batches of 64 to 512 windows": SETTINGS,
    "4,096 windows": SETTINGS,
    "16 windows": SETTINGS,
    "about 0.001 ahead": LOG,
    "At update 100": SETTINGS,
    "multiple of 64": "ModelConfig",
    "184 tokens": LOG,
    "Beyond 256 tokens": SETTINGS,
    "At 2,048 tokens": SETTINGS,
    "tokens an update takes 1.5 times as long as at 256": "the quotient in the table",
    "longer at 32": SETTINGS,
    "from 4,096 tokens on": SETTINGS,
    "all windows have 256 tokens": SETTINGS,
    "200 stories each": SETTINGS,
    "both at 0.8": SETTINGS,
    "goal of 1.45 on TinyStories": "the course",
    "2.1 GB": "the size of that corpus",
    "256 instead of 512 windows": SETTINGS,
    "95 s were the goal": "the goal that was set before the run",
    "94 s by an estimate": LOG,
    "Batches of 64": SETTINGS,
    "of the 300 seconds": SETTINGS,
}

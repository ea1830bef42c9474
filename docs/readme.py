"""Compute the figures of README.md."""

from __future__ import annotations

from math import ceil
from statistics import median

from records import predictions, result

from bytewright.account.parameters import count_parameters
from bytewright.account.shapes import find_preset
from bytewright.demo.plan import Plan

demo_parameters = count_parameters(Plan().model_config()).total
base_parameters = count_parameters(find_preset("base")).total
whole = result("2026-11-15-lab/base_experiment/whole-stories.json")["whole_stories"]
memory = result("2026-11-15-accounting-h200-memory.json")["rows"]
time = result("2026-11-15-accounting-h200-time.json")["rows"]
fits = [row["verdict"] for row in time if row["part"] == "fit"]
resumed = result("2026-11-15-h200-exact-resume.json")["differences"].values()
differing = [name for comparison in resumed for names in comparison.values() for name in names]
ratios = [ratio for _, ratio in predictions()]


def tokenizer_race(measured, title):
    """Return our seconds, and how many times as long the fastest peer takes."""
    (column,) = [
        column
        for column in result(f"2026-11-15-tokenizer-{measured}.json")["columns"]
        if column["title"] == title
    ]
    taken = {row["contestant"]: row["seconds"]["median"] for row in column["results"] if not row["error"]}
    ours = taken.pop("bytewright")
    return ours, min(taken.values()) / ours


def training_race():
    """Return our tokens per second at batch 256 on the H200, and how many times those of a plain model."""
    (column,) = [it for it in result("2026-11-15-h200-training.json")["columns"] if it["batch_size"] == 256]
    speeds = {row["name"]: median(row["tokens_per_second"]) for row in column["results"]}
    return speeds["bytewright"], speeds["bytewright"] / speeds["plain compiled"]


def generation_race(name, batch_size):
    """Return our tokens per second on the H200, and how many times those of the fastest peer."""
    rows = [row for row in result(f"{name}.json")["rows"] if row["batch_size"] == batch_size]
    speeds = {row["contestant"]: row["tokens_per_second"]["median"] for row in rows}
    ours = speeds.pop("bytewright")
    return ours, ours / max(speeds.values())


def decoding_race(shape, batch_size):
    """Return our tokens per second with the fused step, and how many times those of the peer."""
    rows = result("2026-11-19-h200-decoding.json")["generation"]
    case = str((shape, batch_size, 16))
    (ours,) = [row["tokens_per_s"] for row in rows if row["case"] == case and row["sampling"] == "greedy"]
    earlier, ratio = generation_race(PEERS[shape], batch_size)
    return ours, ours * ratio / earlier


def serving_race(clients):
    """Return the tokens per second of our server, and how many times those of the faster peer."""
    rows = [row for row in result("2026-11-19-serving.json")["rows"] if row["round"] == 1]
    speeds = {row["server"]: row["tokens_per_second"] for row in rows if row["clients"] == clients}
    ours = speeds.pop("bytewright")
    return ours, ours / max(speeds.values())


PEERS = {"base": "2026-11-15-h200-generation", "gpt2": "2026-11-16-h200-generation-gpt2"}


def furthest_off(rows):
    """Return the largest relative error of predictions, rounded up to a whole per cent."""
    return f"{ceil(100 * max(abs(row['predicted'] / row['measured'] - 1) for row in rows))} %"


def claims():
    trained, trained_ratio = tokenizer_race("training", "100mb-10k")
    cold, cold_ratio = tokenizer_race("encoding", "file-100mb cold")
    warm, warm_ratio = tokenizer_race("encoding", "file-100mb warm")
    speed, speed_ratio = training_race()
    (one, one_ratio), (many, many_ratio) = decoding_race("base", 1), generation_race(PEERS["base"], 256)
    (large, large_ratio), (batch, batch_ratio) = decoding_race("gpt2", 1), decoding_race("gpt2", 32)
    served, served_ratio = serving_race(32)
    decoding = "[decoding](docs/results/2026-11-19-h200-decoding.md)"
    page = "docs/results/2026-11-15"
    return [
        ("measured", "result", "compared with", "details"),
        (
            "tokenizer training: 100 MB, 10,000 tokens, two cores",
            f"{trained:.2f} s",
            f"{trained_ratio:.1f} times as fast as the fastest peer",
            f"[tokenizer]({page}-tokenizer.md)",
        ),
        (
            "encoding: 100 MB file, two cores, first and later calls",
            f"{cold:.2f} s and {warm:.2f} s",
            f"{cold_ratio:.1f} and {warm_ratio:.1f} times as fast as the fastest peer",
            f"[tokenizer]({page}-tokenizer.md#encoding)",
        ),
        (
            "training: 23 million parameters, H200",
            f"{speed / 1e6:.1f} million tokens/s",
            f"{speed_ratio:.2f} times as fast as PyTorch's own layers, compiled",
            f"[H200]({page}-h200.md#training)",
        ),
        (
            "generation: the same model, H200, 1 and 256 prompts",
            f"{round(one, -2):,.0f} and {round(many, -3):,.0f} tokens/s",
            f"{one_ratio:.1f} and {many_ratio:.1f} times as fast as `transformers`",
            f"{decoding}, [H200]({page}-h200.md#generation)",
        ),
        (
            "generation: a model as large as GPT-2 small, H200, 1 and 32 prompts",
            f"{round(large, -2):,.0f} and {round(batch, -3):,.0f} tokens/s",
            f"{large_ratio:.1f} and {batch_ratio:.1f} times as fast as `transformers`",
            decoding,
        ),
        (
            "server: a model of the recipe `tiny`, two cores, 32 clients",
            f"{round(served, -2):,.0f} tokens/s",
            f"{served_ratio:.1f} times as fast as the faster of two peers",
            "[serving](docs/results/2026-11-19-serving.md)",
        ),
        (
            f"predicted peak GPU memory, {len(memory)} kinds of training step",
            f"error at most {furthest_off(memory)}",
            "the allocator's count",
            f"[accounting]({page}-accounting.md)",
        ),
        (
            "a run killed and resumed, 23 million parameters, H200",
            "not one bit differs" if not any(differing) else "differs",
            "an uninterrupted run",
            f"[H200]({page}-h200.md#exact-resume)",
        ),
    ]


FIGURES = [
    # Bytewright
    claims(),
    # What it offers
    f"A model with {base_parameters / 1e6:.0f} million parameters ended {whole['above_floor']:.4f} bits per",
    f"whole stories, which is {100 * whole['above_floor'] / whole['floor']:.1f} % of",
    f"an H200 in {fits.count('held')} of {len(fits)} cases",
    f"The speed of {sum(abs(ratio - 1) <= 0.1 for ratio in ratios)} of {len(ratios)} recorded runs",
    f"is up to {max(ratios):.1f} times too high",
    f"demo's model ({round(demo_parameters, -3):,} parameters",
]
GIVEN = {
    "Python 3.11": "pyproject.toml",
    "within 10 %": "the limit that is counted against",
    "200 stories": "the demo's plan",
    "2.3 GB": "the size of the files that bytewright corpus get downloads",
}

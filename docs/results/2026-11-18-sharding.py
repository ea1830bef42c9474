"""Compute the figures of 2026-11-18-sharding.md."""

from __future__ import annotations

from statistics import median

from records import result

from bytewright.account import Ranks, count_parameters, find_device, find_preset, sent_bytes
from bytewright.account.predict import EFFICIENCY, StepKind
from bytewright.account.time import least_seconds, roofline

measured = result("2026-11-18-sharding.json")
of_base = result("2026-11-15-h200-training.json")

NVLINK, NETWORK = 450e9, 50e9
"""Bytes per second that one GPU can send: NVLink 4 of an H200 (data sheet: 900 GB/s both ways), and one
network card of 400 Gbit/s per GPU."""
SEQUENCES = {"base": 256, "gpt2-xl": 8}
"""Sequences that a GPU computes at once."""


def memory_rows():
    yield (
        "ranks",
        "strategy",
        "sent by rank 0",
        "predicted",
        "memory, MB",
        "predicted, MB",
        "measured ÷ predicted",
    )
    for case in measured["cases"]:
        found, predicted = max(case["measured"]["memory_bytes"]), case["predicted"]["memory_bytes"]
        yield (
            case["num_ranks"],
            f"{case['strategy']}, {case['reduction']}",
            f"{case['measured']['sent_bytes']:,}",
            f"{sum(case['predicted']['sent'].values()):,}",
            f"{found / 1e6:,.0f}",
            f"{predicted / 1e6:,.0f}",
            f"{found / predicted:.3f}",
        )


def compute_seconds(name):
    """Return the seconds that one H200 computes in a step: measured, or by the accountant."""
    config, num_sequences = find_preset(name), SEQUENCES[name]
    if name == "base":
        column = next(one for one in of_base["columns"] if one["batch_size"] == num_sequences)
        ours = next(one for one in column["results"] if one["name"] == "bytewright")
        return num_sequences * config.context_length / median(ours["tokens_per_second"])
    device = find_device("h200")
    parts = roofline(config, device, batch_size=num_sequences)
    return (
        least_seconds(parts) / EFFICIENCY[StepKind("cuda", "bf16", compiled=True, has_measured_rates=False)]
    )


def scaling_rows():
    yield ("model", "GPUs", "strategy", "compute, ms", "sent, GB", "exchange, ms", "exact", "fast")
    for name in SEQUENCES:
        seconds = compute_seconds(name)
        for num_ranks, link in ((8, NVLINK), (512, NETWORK)):
            for strategy in ("replicate", "shard"):
                ranks = Ranks(num_ranks=num_ranks, strategy=strategy, accumulate=num_ranks)
                sent = sum(sent_bytes(find_preset(name), ranks).values())
                exchange = sent / link
                yield (
                    name,
                    num_ranks,
                    strategy,
                    f"{1e3 * seconds:.1f}",
                    f"{sent / 1e9:.2f}",
                    f"{1e3 * exchange:.1f}",
                    f"{seconds / (seconds + exchange):.0%}",
                    f"{seconds / max(seconds, exchange):.0%}",
                )


model = measured["model"]
shape = f"{model['num_layers']} layers of width {model['d_model']:,}"
FIGURES = [
    list(memory_rows()),
    list(scaling_rows()),
    f"{shape} with a vocabulary of {model['vocab_size']:,}",
    f"{count_parameters(find_preset('gpt2-xl')).total / 1e9:.2f} billion parameters",
    f"at commit {measured['commit']}",
]
GIVEN = {
    "450 GB/s": "half of the 900 GB/s of NVLink in NVIDIA's data sheet of the H200",
    "400 Gbit/s": "assumed: one network card per GPU",
    "64 nodes of 8 GPUs": "the size that the page extrapolates to",
    "8 GPUs": "the size that the page extrapolates to",
    "within 5 %": "the bound that the prediction is held to",
    "64 tokens": "the setting of the benchmark",
    "at batch 256": "the batch of the measured step",
}

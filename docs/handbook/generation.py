"""Compute the figures of generation.md, and train the run of its examples."""

from __future__ import annotations

from records import by_label, percent, result
from tiny_run import STEPS, train_tiny_run


def speed_rows():
    rows = [("greedy, 200 new tokens, base model", "batch", "tokens/s", "fastest peer", "ratio")]
    machines = {"two CPU cores, float32": "two-cores", "H200, bfloat16": "h200"}
    newer = {("h200", 1): fused_step_speed()}
    for machine, name in machines.items():
        measured = result(f"2026-11-15-{name}-generation.json")["rows"]
        for batch in sorted({row["batch_size"] for row in measured}):
            speeds = {
                row["contestant"]: row["tokens_per_second"]["median"]
                for row in measured
                if row["batch_size"] == batch
            }
            measured_then = speeds.pop("bytewright")
            if (name, batch) == ("h200", 32):
                continue  # the fused step was not measured with 32 prompts
            ours, peer = newer.get((name, batch), measured_then), max(speeds.values())
            rows.append((machine, batch, f"{ours:,.0f}", f"{peer:,.0f}", f"{ours / peer:.1f}"))
    return rows


def fused_step_speed():
    """Return tokens per second of the base model for one prompt on the H200, with the fused step."""
    rows = result("2026-11-19-h200-decoding.json")["generation"]
    case = str(("base", 1, 16))
    (speed,) = [row["tokens_per_s"] for row in rows if row["case"] == case and row["sampling"] == "greedy"]
    return speed


def consistent(temperature, top_p):
    (run,) = by_label("generate")[f"{temperature}, {top_p}"]
    return run["metrics"]["consistent"][0]


def prepare(folder):
    return {"run": train_tiny_run(folder)}


FIGURES = [
    # From a run to text
    f"was trained for {STEPS} steps on",
    # Seeds, and the two implementations
    speed_rows(),
    f"Without either, {percent(consistent(1.0, 1.0))} of the",
    f"top-p of 0.8, {percent(consistent(0.8, 0.8))} are",
]
GIVEN = {"a temperature of 0.8": "the setting"}

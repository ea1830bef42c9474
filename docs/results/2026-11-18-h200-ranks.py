"""Compute the figures of 2026-11-18-h200-ranks.md."""

from __future__ import annotations

from records import result

measured = result("2026-11-18-h200-ranks.json")


def digest_rows():
    yield ("processes", "weights", "optimizer state", "metrics")
    for label, digests in measured["digests"].items():
        yield (label, *(digests[kind][:12] for kind in ("weights", "optimizer", "metrics")))


def torchrun_rows():
    yield ("run", "tokens/s")
    for label, speeds in measured["torchrun"]["tokens_per_second"].items():
        yield (label, f"{speeds[0]:,.0f}")


def speed_rows():
    yield ("operation", "before, ms", "after, ms", "after ÷ before", "quartiles", "second process")
    rows = compared["rows"]
    for before, after, again in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        steps = compared["steps"] if "training" in before["operation"] else 1
        times = (f"{row['milliseconds'] / steps:.2f}" for row in (before, after))
        low, high = after["quartiles"]
        name = before["operation"] + (", one step" if steps > 1 else "")
        yield (name, *times, f"{after['ratio']:.3f}", f"{low:.3f} to {high:.3f}", f"{again['ratio']:.3f}")


assert len({str(digests) for digests in measured["digests"].values()}) == 1, "all rows are equal"
compared, torchrun = measured["versions"], measured["torchrun"]
(alone,), (one_rank,) = torchrun["tokens_per_second"].values()

FIGURES = [
    f"with torch {measured['torch']}",
    f"At commit {measured['commit']}",
    f"compares commit {compared['commits']['before']}",
    f"with commit {compared['commits']['after']}",
    f"{torchrun['steps']} steps of 4 parts, at commit {torchrun['commit']}",
    f"for {measured['steps']} steps of {measured['num_parts']} parts",
    f"{compared['rounds']} rounds; one round of training is {compared['steps']} steps",
    f"The ratio is {one_rank / alone:.3f}",
    list(digest_rows()),
    list(torchrun_rows()),
    list(speed_rows()),
]
GIVEN = {
    "one H200 and 16 cores": "the machines",
    "23 million parameters": "the base experiment",
    "the goal was at least 0.98": "set before the measurement",
    "goal of 2 %": "set before the measurement",
}

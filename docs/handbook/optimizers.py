"""Compute the figures and pictures of optimizers.md."""

from __future__ import annotations

from math import ceil, prod, sqrt

import torch
from records import difference, percent, result, signed
from torch.nn import Parameter

from bytewright.optim.reference import NEWTON_SCHULZ, orthogonalise
from bytewright.report.charts import Axis, Chart, Series
from bytewright.report.draw import draw_chart
from bytewright.train import SGD

# SGD on the mean of squares

RATES = (1, 10, 100, 1000)
SHRINK = 2 / 100
"""The gradient of the mean of 100 squares is this times the weight."""


def descend(rate):
    weight = Parameter(5 * torch.randn(10, 10, generator=torch.Generator().manual_seed(0)))
    optimizer, losses = SGD([weight], lr=rate), []
    for _ in range(11):
        loss = (weight**2).mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


def factors(rate, steps):
    """Return the factors by which the first steps multiply every weight."""
    return [1 - SHRINK * rate / sqrt(t + 1) for t in range(steps)]


def short(x):
    return "0" if x < 1e-10 else f"{x:.2g}" if x < 1e6 else f"{x:.1e}"


def toy_rows():
    rows = [("α", "start", "step 1", "step 2", "step 3", "step 5", "step 10", "by formula, step 10")]
    for rate in RATES:
        losses = descend(rate)
        measured = (short(losses[step]) for step in (0, 1, 2, 3, 5, 10))
        rows.append((f"{rate:,}", *measured, short(losses[0] * prod(factors(rate, 10)) ** 2)))
    return rows


def toy_series(rate):
    points = [(step, 25 * prod(factors(rate, step)) ** 2) for step in range(11)]
    return Series(f"α = {rate:,}", [(step, loss) for step, loss in points if 1e-2 < loss < 1e12])


# Muon's polynomial


def after_five_rounds(value):
    """Return the result of five rounds for a singular value given as a share of the Frobenius norm."""
    a, b, c = NEWTON_SCHULZ
    for _ in range(5):
        value = a * value + b * value**3 + c * value**5
    return value


shares = torch.logspace(-6, 0, 200_001, dtype=torch.float64)
ends = after_five_rounds(shares)
lowest, highest = ends[shares > 0.01].min(), ends.max()
smallest_share = shares[ends >= lowest][0]
square = torch.linalg.svdvals(
    orthogonalise(torch.randn(512, 512, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
)
tall = torch.linalg.svdvals(
    orthogonalise(torch.randn(1344, 512, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
)
none_below = "none" if bool((tall >= lowest).all()) else "some"

# Runs on novels

CONTESTANTS = {"plain": "baseline, AdamW of PyTorch", "adamw": "AdamW", "muon": "Muon"}
runs = {
    name: [run for run in result("2026-11-15-h200-learning.json")["runs"] if run["contestant"] == name]
    for name in CONTESTANTS
}
best = {name: min(found, key=lambda run: run["loss"]) for name, found in runs.items()}
(same_settings,) = [run for run in runs["adamw"] if run["run"] == "adamw optimizer.lr=4e-3"]
(less_decay,) = [run for run in runs["muon"] if "weight_decay=0.03 optimizer.muon_lr=0.02" in run["run"]]


def learning_rows():
    rows = [("80 million tokens of novels, one seed", "settings", "validation loss", "bits per byte")]
    for name, label in CONTESTANTS.items():
        words = [
            word for word in best[name]["run"].split() if word.startswith("optimizer.") and "name" not in word
        ]
        settings = ", ".join(word.partition(".")[2] for word in words)
        rows.append((label, settings, f"{best[name]['loss']:.4f}", f"{best[name]['bits_per_byte']:.4f}"))
    return rows


def novels_series(name, label):
    return Series(label, [(tokens / 1e6, loss) for tokens, loss in best[name]["training_curve"]])


def last_training_loss(run):
    return f"{run['training_curve'][-1][1]:.2f}"


def without(variant):
    """Return how much higher the speedrun on stories ends without an ingredient."""
    return signed(*difference("half_time", variant, "speedrun")).lstrip("+")


PICTURES = {
    "sgd.svg": draw_chart(
        Chart(
            title="Mean of the squares after each step",
            x=Axis("step", ticks=range(0, 11, 2)),
            y=Axis("loss", log=True, limits=(1e-2, 1e12)),
            series=[toy_series(rate) for rate in RATES],
            ordered=True,
        )
    ),
    "novels.svg": draw_chart(
        Chart(
            title="Training loss on novels",
            x=Axis("million tokens"),
            y=Axis("nats per token", limits=(3.0, 5.0)),
            series=[
                novels_series(*names)
                for names in (("plain", "baseline"), ("adamw", "AdamW"), ("muon", "Muon"))
            ],
        )
    ),
}
FIGURES = [
    # SGD: a problem that can be solved by hand
    f"is 2θ/n, here {SHRINK}·θ",
    f"weight by 1 − {SHRINK}·α/√(t+1",
    toy_rows(),
    f"factor is exactly {factors(100, 1)[0]:.0f}",
    f"step it is {factors(100, 4)[3]:.0f}",
    f"the factors are {', '.join(f'{it:.0f}' for it in factors(1000, 3))} and so",
    # Muon: equal steps in all directions of a matrix
    (
        f"of at least {smallest_share:.4f} of the Frobenius norm ends between {lowest:.2f} "
        f"and {ceil(100 * highest) / 100:.2f}"
    ),
    f"by at most {NEWTON_SCHULZ[0] ** 5:.0f}",
    (
        f"× 512 matrix {percent((square < lowest).double().mean())} of the directions "
        f"end below {lowest:.2f}, the smallest at {square.min():.2f}. For a 1,344 × "
        f"512 matrix {none_below} do"
    ),
    learning_rows(),
    f"several settings ({len(runs['plain'])}, {len(runs['adamw'])} and {len(runs['muon'])}",
    f"AdamW ends at {same_settings['loss']:.2f} and the baseline at {best['plain']['loss']:.2f}",
    (
        f"training loss of {last_training_loss(less_decay)} instead of {last_training_loss(best['muon'])}, "
        f"and at a validation loss of {less_decay['loss']:.2f} instead of {best['muon']['loss']:.2f}"
    ),
    f"schedule: {without('without Muon')}",
    f"tenth: {without('with cosine to a tenth')}",
    f"norms): {without('with beta2 of 0.95')}",
]
GIVEN = {
    "95 % t interval": "the usual level",
    "10 × 10 weight": "the question",
    "random 512 × 512 matrix": "the shape that the script draws",
    "decay of 0.03 instead of 0.1": "the settings of the runs",
    "40 million tokens": "recipes/half_time.toml",
    "β2 of 0.98 instead of 0.95": "recipes/half_time.toml",
}

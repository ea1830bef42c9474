"""Compute the figures of scaling_laws.md: examples with an invented law, and fits in docs/results."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path

import numpy as np
from records import percent, result

from bytewright.corpus.worldbook.world import World
from bytewright.laws.isoflop import fit_parabola
from bytewright.laws.law import Law, fit_law
from bytewright.laws.points import Point, Points
from bytewright.laws.recovery import recover_limit

CAPACITY = run_path(str(Path(__file__).parents[1] / "results" / "2026-11-19-capacity.py"))
LAW = Law(limit=0.2, size_scale=1.4, size_exponent=0.3, data_scale=9.0, data_exponent=0.28)
"""The invented law of the examples, in bits per byte."""
LOPSIDED = Law(limit=0.2, size_scale=200.0, size_exponent=0.6, data_scale=2.0, data_exponent=0.2)
"""A law whose exponents differ much."""
LEVELS = (5e14, 2e15, 8e15)


def points_of(law, sizes_of_level, noise=0.0, num_seeds=1):
    """Return points of a law at three levels of compute; the sizes are factors of the best size."""
    random = np.random.default_rng(7)
    points = []
    for flops in LEVELS:
        for factor in sizes_of_level:
            size = law.best_size(flops) * factor
            for seed in range(num_seeds):
                loss = float(law.loss(size, flops / 6 / size)) * float(np.exp(noise * random.normal()))
                tokens = flops / 6 / size
                points.append(Point(parameters=size, tokens=tokens, seed=seed, loss=loss, floor=law.limit))
    return Points(points=points)


# What parabolas get wrong

DESIGNS = {
    "from 1/2 to 2 times the best size": np.geomspace(0.5, 2, 5),
    "from 1/10 to 10 times": np.geomspace(0.1, 10, 5),
    "from 1/3 to 30 times": np.geomspace(1 / 3, 30, 5),
    "from 1/30 to 3 times": np.geomspace(1 / 30, 3, 5),
}


def bias_rows():
    yield (
        "sizes of the level", "best N ÷ true", "lowest loss − true", "lopsided law: best N ÷ true",
        "lopsided law: lowest loss − true",
    )  # fmt: skip
    for words, factors in DESIGNS.items():
        cells = []
        for law in (LAW, LOPSIDED):
            points = points_of(law, factors)
            found = fit_parabola(points.select(points.compute < 1e15))
            true = law.best_size(LEVELS[0])
            lowest = float(law.loss(true, LEVELS[0] / 6 / true))
            cells += [f"{found.best_size / true:.2f}", f"{found.lowest - lowest:+.5f}".replace("-", "−")]
        yield words, *cells


# How E is recovered

NOISE = 0.001
example = points_of(LAW, np.geomspace(0.25, 4, 6), noise=NOISE, num_seeds=5)
exact = fit_law(points_of(LAW, np.geomspace(0.25, 4, 6)))
recovered = recover_limit(example, num_resamples=40)


def recovery_rows():
    yield "procedure", "points", "E", "interval", "true E", "in standard errors"
    for each in recovered:
        if each.estimate is None:
            yield each.procedure, each.data, "–", "not possible", f"{each.true:.4f}", "–"
        else:
            low, high = each.estimate.interval
            yield (
                each.procedure,
                each.data,
                f"{each.estimate.value:.4f}",
                f"{low:.4f} to {high:.4f}".replace("-", "−"),
                f"{each.true:.4f}",
                f"{each.errors:+.1f}".replace("-", "−"),
            )


# The runs on the H200

LARGE = "2026-11-18-scaling"
FITS = {"all documents": LARGE, "those that fit into the context": f"{LARGE}/fitting"}
fits = {documents: result(f"{folder}/fit.json") for documents, folder in FITS.items()}
facts = result(f"{LARGE}/facts/fit.json")


def interval(value, digits):
    """Write a value with its interval."""
    low, high = value["interval"]
    return f"{value['value']:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})".replace("-", "−")


def limit_rows():
    """Yield the E that each procedure finds from all points, next to the entropy."""
    yield "procedure", "documents", "E", "true E", "difference"
    for documents, fit in fits.items():
        for each in fit["recovery"]:
            if each["data"] == "all":
                difference = percent(each["estimate"]["value"] / each["true"] - 1, 1)
                sign = "" if difference.startswith("-") else "+"
                found = interval(each["estimate"], 4)
                yield (
                    each["procedure"],
                    documents,
                    found,
                    f"{each['true']:.4f}",
                    sign + difference.replace("-", "−"),
                )


def exponent_rows():
    """Yield the exponents of the excess of facts, predicted and measured."""
    yield "exponent of the excess of facts", "predicted limit", "measured"
    for each in facts["predictions"]:
        yield each["name"], f"{each['asymptotic']:.3f}", interval(each["measured"], 3)


FIGURES = [
    f"E = {LAW.limit:.1f}, A = {LAW.size_scale:.1f}, a = {LAW.size_exponent:.1f}, B = {LAW.data_scale:.1f}"
    f" and b = {LAW.data_exponent:.2f}",
    f"E = {exact.limit:.5f}, a = {exact.size_exponent:.5f} and b = {exact.data_exponent:.5f}",
    f"noise of {percent(NOISE, 1)}",
    f"its exact values, {len(LEVELS) * 6} points at",
    list(bias_rows()),
    f"has a = {LOPSIDED.size_exponent:.1f} and b = {LOPSIDED.data_exponent:.1f}",
    list(recovery_rows()),
    f"fit of {fits['all documents']['num_points']} runs",
    f"by default s = {World().exponent}",
    list(limit_rows()),
    list(exponent_rows()),
    *CAPACITY["GROWTH"],
    "last two exponents are {1:.2f} and {2:.2f}".format(*CAPACITY["inner"]),
]
GIVEN = {
    "In a world of 8,192 people": "the page of results",
    "In a world of 32,768 people": "the page of results",
    "128 tokens": "the recipe",
    "25 to 320 thousand parameters": "the comment in the recipe",
    "of 95 %": "the usual level",
    "Hoffmann et al., 2022": "the year of the paper",
}

"""Compute the figures of scaling_laws.md.

`python tests/docs/figures.py docs/handbook/scaling_laws.md` writes the sections on the laptop and the H200,
from the fits in docs/results. `bytewright fit FILE` makes the fits. Without a fit, a section says so.
"""

from __future__ import annotations

import numpy as np
from records import DOCS, percent, result

from bytewright.laws.isoflop import fit_parabola
from bytewright.laws.law import SYMBOLS, Law, fit_law
from bytewright.laws.points import Point, Points
from bytewright.laws.recovery import recover_limit

LAPTOP, LARGE = "2026-11-18-isoflop-laptop", "2026-11-18-scaling"
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


# Sections that are written from fits


def fit_of(folder: str):
    """Return a committed fit, or None."""
    return result(f"{folder}/fit.json") if (DOCS / "results" / folder / "fit.json").exists() else None


def interval(value, digits=3):
    if value["interval"] is None:
        return f"{value['value']:.{digits}f}"
    low, high = value["interval"]
    return f"{value['value']:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})".replace("-", "−")


def law_rows(fit, title):
    yield title, *(SYMBOLS[name] for name in ("limit", "size_exponent", "data_exponent"))
    for each in fit["fits"]:
        values = each["values"]
        yield each["name"], interval(values["E"], 4), interval(values["a"]), interval(values["b"])


def recovered_rows(fit, title):
    yield title, "points", "E", "true E", "difference", "in standard errors"
    for each in fit["recovery"]:
        if each["estimate"] is None:
            yield each["procedure"], each["data"], "–", f"{each['true']:.4f}", "–", "–"
            continue
        errors = each["errors_from_true"]
        yield (
            each["procedure"],
            each["data"],
            interval(each["estimate"], 4),
            f"{each['true']:.4f}",
            f"{each['estimate']['value'] / each['true'] - 1:+.1%}".replace("-", "−").replace("%", " %"),
            "–" if errors is None else f"{errors:+.1f}".replace("-", "−"),
        )


def level_rows(fit, title):
    yield title, "runs", "best N, thousands", "best D, millions", "lowest loss", "inside the sizes"
    for each in fit["levels"]:
        inside = each["sizes"][0] <= each["best_size"] <= each["sizes"][1]
        yield (
            f"{each['flops']:.2g} FLOPs".replace("e+", "e"),
            each["num_points"],
            f"{each['best_size'] / 1000:,.0f}",
            f"{each['best_tokens'] / 1e6:,.2f}",
            f"{each['lowest']:.4f}",
            "yes" if inside else "no",
        )


def blocks_of_laptop():
    """Return the paragraphs and tables of the section on the laptop."""
    fit = fit_of(LAPTOP)
    if fit is None:
        return ["No fit of these runs is committed yet."]
    best = fit["optima"]["best_size_exponent"] if fit["optima"] else None
    return [
        f"This is the fit of {fit['num_points']} runs on one core of a shared machine. The entropy of the "
        f"validation text is {fit['floor']:.4f} bits per byte.",
        list(law_rows(fit, "laptop: fit")),
        list(level_rows(fit, "laptop: level")),
        *([f"On the laptop the best N grows as compute to the power of {interval(best)}."] if best else []),
        list(recovered_rows(fit, "laptop: procedure")),
    ]


def describe_recovery(fit):
    """Return a sentence on the E of the joint fits to all points."""
    found = [
        each["estimate"]["value"] / each["true"] - 1
        for each in fit["recovery"]
        if each["data"] == "all" and each["estimate"] and "envelope" not in each["procedure"]
    ]
    low, high = percent(min(found), 1).replace("-", "−"), percent(max(found), 1).replace("-", "−")
    return (
        f"The three joint fits to all points find an E that differs from the entropy by {low} to {high}. The "
        "predictions expected an E that is too high: a model whose context is shorter than a document cannot "
        "recall what lies further back, so its loss has a limit of its own."
    )


def blocks_of_large():
    """Return the paragraphs and tables of the section on the H200."""
    fit, short, facts = fit_of(LARGE), fit_of(f"{LARGE}/fitting"), fit_of(f"{LARGE}/facts")
    if fit is None:
        return ["The runs on the H200 have not been made yet, so this section has no figures."]
    blocks = [
        f"This is the fit of {fit['num_points']} runs on an H200, evaluated on test documents. Their entropy "
        f"is {fit['floor']:.4f} bits per byte.",
        list(law_rows(fit, "H200: fit")),
        list(level_rows(fit, "H200: level")),
        list(recovered_rows(fit, "H200: procedure")),
        describe_recovery(fit),
        "[The report](../results/2026-11-18-scaling/fit.md) has the charts.",
    ]
    if short:
        blocks += [
            "The same for documents that fit into the context, where no recall is out of reach. "
            f"Their entropy is {short['floor']:.4f} bits per byte.",
            list(law_rows(short, "H200, short documents: fit")),
            list(recovered_rows(short, "H200, short documents: procedure")),
        ]
    if facts:
        blocks += [
            "The same for the excess of facts alone, which the curves predict; its E is known to be 0. The "
            "[predictions](../results/2026-11-18-scaling-predictions.md#exponents) were committed before.",
            list(law_rows(facts, "H200, facts: fit")),
            [
                ("H200, facts: exponent", "predicted limit", "measured"),
                *(
                    (each["name"], f"{each['limit']:.3f}", interval(each["measured"]))
                    for each in facts["predictions"]
                ),
            ],
        ]
    return blocks


FIGURES = [
    f"E = {LAW.limit:.1f}, A = {LAW.size_scale:.1f}, a = {LAW.size_exponent:.1f}, B = {LAW.data_scale:.1f}"
    f" and b = {LAW.data_exponent:.2f}",
    f"E = {exact.limit:.5f}, a = {exact.size_exponent:.5f} and b = {exact.data_exponent:.5f}",
    f"noise of {percent(NOISE, 1)}",
    f"its exact values, {len(LEVELS) * 6} points at",
    list(bias_rows()),
    f"with a = {LOPSIDED.size_exponent:.1f} and b = {LOPSIDED.data_exponent:.1f}",
    list(recovery_rows()),
]
SECTIONS = {"laptop": blocks_of_laptop(), "H200": blocks_of_large()}
GIVEN = {
    "128 tokens": "the recipe",
    "25 to 320 thousand parameters": "the comment in the recipe",
    "of 95 %": "the usual level",
    "Chinchilla (2022)": "the year of the paper",
}

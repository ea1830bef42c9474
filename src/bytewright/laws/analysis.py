"""Analyse the points of a sweep: laws with and without the known E, isoFLOP optima, and the recovery of E.

The known E is the floor of the points: the entropy of the text that the models were evaluated on. `recovery`
compares the usual procedures by how well they find it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from bytewright.corpus.worldbook.book import load_grammar
from bytewright.corpus.worldbook.curves import (
    capacity_exponent,
    data_exponent,
    fact_bits,
    local_exponent,
    unknown_share,
    unstored_share,
)
from bytewright.errors import UsageError
from bytewright.formatting import Progress
from bytewright.laws import NUM_RESAMPLES
from bytewright.laws.bootstrap import Estimate, estimate
from bytewright.laws.isoflop import (
    Parabola,
    find_levels,
    fit_exponent,
    fit_parabola,
)
from bytewright.laws.law import LAW_FIELDS, SYMBOLS, Law, fit_law
from bytewright.laws.minimisers import Vector
from bytewright.laws.points import Points
from bytewright.laws.power import MAX_EXPONENT, MIN_EXPONENT, Objective
from bytewright.laws.recovery import NUM_PROCEDURES, Recovery, list_parts, recover_limit

LOGS = frozenset({"size_scale", "data_scale", "best_size", "best_tokens"})
"""Positive values, whose intervals are symmetric on a log scale."""


@dataclass(frozen=True, kw_only=True)
class FittedLaw:
    """A law with the intervals of its values."""

    objective: Objective
    known_limit: bool
    law: Law
    estimates: Mapping[str, Estimate]
    residuals: Vector
    """ln of measured over fitted loss, of each point."""

    @property
    def name(self) -> str:
        """The name of the fit in tables."""
        return f"{'known' if self.known_limit else 'fitted'} E, {self.objective}"

    def determines(self, field: str) -> bool:
        """Return whether the losses determine a value: not a known E, or the exponent of a term that is 0."""
        scale = {"size_exponent": self.law.size_scale, "data_exponent": self.law.data_scale}.get(field, 1.0)
        return scale > 0 and not (field == "limit" and self.known_limit)


@dataclass(frozen=True, kw_only=True)
class Level:
    """A level of compute with its parabola, and the intervals of the minimum."""

    parabola: Parabola
    estimates: Mapping[str, Estimate]
    num_points: int


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """An exponent that the world predicts, next to the measured one."""

    name: str
    asymptotic: float
    """The exponent for an unlimited number of people."""
    local: float | None
    """The exponent between the smallest and the largest point of the sweep; None if it is not known."""
    measured: Estimate


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """Everything that `bytewright fit` reports."""

    points: Points
    fits: Sequence[FittedLaw]
    levels: Sequence[Level]
    optima: Mapping[str, Estimate]
    """The exponents of the best N and the best D as powers of compute, if there are two levels."""
    recoveries: Sequence[Recovery]
    predictions: Sequence[Prediction]
    notes: Sequence[str]
    """What could not be computed, and why."""

    @property
    def main(self) -> FittedLaw:
        """The fit that the charts show: with the known E if there is one."""
        return self.fits[0]


def analyse(
    points: Points,
    *,
    objective: Objective = "log",
    num_resamples: int = NUM_RESAMPLES,
    progress: Progress | None = None,
) -> Analysis:
    """Fit everything to the points; raise `UsageError` if they cannot determine a law.

    `progress` receives the number of fits so far and of all fits, each with its resamples.
    """
    notes: list[str] = []
    known = [True, False] if points.floor is not None else [False]
    objectives: list[Objective] = [objective] if objective == "huber" else [objective, "huber"]
    fits: list[FittedLaw] = []
    num_fits = len(objectives) * len(known)
    for each, is_known in product(objectives, known):
        fits.append(_fit(points, each, is_known, num_resamples))
        if progress:
            progress(len(fits), num_fits + len(list_parts(points)) * NUM_PROCEDURES)
    levels, optima = _fit_levels(points, num_resamples, notes)
    count = None if progress is None else lambda done, total: progress(num_fits + done, num_fits + total)
    existing = {fit.objective: fit.estimates["limit"] for fit in fits if not fit.known_limit}
    recoveries = recover_limit(points, existing=existing, num_resamples=num_resamples, progress=count)
    if len(np.unique(points.settings)) == len(points):
        notes.append("No setting has several seeds, so there are no intervals.")
    if 0 < (unknown := [point.floor for point in points.points].count(None)) < len(points):
        notes.append(f"{unknown} of {len(points)} points state no floor, so E is not known.")
    notes += _list_bounds(fits)
    return Analysis(
        points=points,
        fits=fits,
        levels=levels,
        optima=optima,
        recoveries=recoveries,
        predictions=_predict(points, fits[0]),
        notes=notes,
    )


def _fit(points: Points, objective: Objective, known_limit: bool, num_resamples: int) -> FittedLaw:
    law = fit_law(points, objective=objective, known_limit=known_limit)

    def refit(losses: Vector) -> dict[str, float]:
        found = fit_law(points, objective=objective, known_limit=known_limit, losses=losses, start=law)
        return _list_values(found)

    estimates = estimate(points, refit, values=_list_values(law), num_resamples=num_resamples, logs=LOGS)
    if known_limit:
        estimates["limit"] = Estimate(law.limit)
    return FittedLaw(
        objective=objective,
        known_limit=known_limit,
        law=law,
        estimates=estimates,
        residuals=np.log(points.losses / law.loss(points.sizes, points.tokens)),
    )


def _list_bounds(fits: Sequence[FittedLaw]) -> list[str]:
    """Return a note for each value that is at a bound of the fit."""
    reasons = {
        ("limit", 0.0): "these points do not determine E",
        ("size_scale", 0.0): "these losses do not fall with N, so a has no meaning",
        ("data_scale", 0.0): "these losses do not fall with D, so b has no meaning",
        ("size_exponent", MIN_EXPONENT): "these losses hardly fall with N",
        ("data_exponent", MIN_EXPONENT): "these losses hardly fall with D",
        ("size_exponent", MAX_EXPONENT): "these losses fall faster with N than a fit allows",
        ("data_exponent", MAX_EXPONENT): "these losses fall faster with D than a fit allows",
    }
    notes = []
    for (field, bound), reason in reasons.items():
        found = [fit.name for fit in fits if getattr(fit.law, field) == bound and fit.determines(field)]
        if found:
            side = "upper" if bound == MAX_EXPONENT else "lower"
            notes.append(f"{SYMBOLS[field]} is {bound:g}, its {side} bound ({'; '.join(found)}): {reason}.")
    return notes


def _list_values(law: Law) -> dict[str, float]:
    values = {name: float(getattr(law, name)) for name in LAW_FIELDS}
    return values | {
        "best_size_exponent": law.best_size_exponent,
        "envelope_exponent": law.envelope_exponent,
    }


def _fit_levels(
    points: Points, num_resamples: int, notes: list[str]
) -> tuple[list[Level], Mapping[str, Estimate]]:
    """Return the levels with a minimum, and the exponents of the optima."""
    masks, levels = [], []
    for mask in find_levels(points):
        part = points.select(mask)
        try:
            parabola = fit_parabola(part)
        except UsageError as error:
            message = str(error)
            notes.append(f"{message[0].upper()}{message[1:]}.")
            continue

        def fit(losses: Vector, part: Points = part) -> dict[str, float]:
            found = fit_parabola(part, losses)
            return {name: getattr(found, name) for name in ("best_size", "best_tokens", "lowest")}

        estimates = estimate(part, fit, num_resamples=num_resamples, logs=LOGS)
        if not parabola.is_inside:
            notes.append(f"The minimum at {parabola.flops:.3g} FLOPs is outside of the sizes of the level.")
        levels.append(Level(parabola=parabola, estimates=estimates, num_points=len(part)))
        masks.append(mask)
    if len(levels) < 2:
        notes.append("Power laws of the optima need two levels of compute with a minimum.")
        return levels, {}

    def fit_optima(losses: Vector) -> dict[str, float]:
        found = [fit_parabola(points.select(mask), losses[mask]) for mask in masks]
        flops = [each.flops for each in found]
        return {
            "best_size_exponent": fit_exponent(flops, [each.best_size for each in found]),
            "best_tokens_exponent": fit_exponent(flops, [each.best_tokens for each in found]),
        }

    return levels, estimate(points, fit_optima, num_resamples=num_resamples)


def _predict(points: Points, fit: FittedLaw) -> list[Prediction]:
    """Return the exponents that the world predicts; none if the points do not state the world."""
    world, per_token = points.world, points.mentions_per_token
    if world is None or float(world.exponent) <= 1:
        return []
    sizes = [float(points.sizes.min()), float(points.sizes.max())]
    per_person = sum(fact_bits(load_grammar()).values())
    unstored = [unstored_share(world, size, fact_bits_per_person=per_person) for size in sizes]
    data_local = None
    if per_token:
        mentions = [float(each) * per_token for each in (points.tokens.min(), points.tokens.max())]
        data_local = _local_exponent(mentions, [unknown_share(world, each) for each in mentions])
    return [
        Prediction(
            name="a (parameters)",
            asymptotic=capacity_exponent(world),
            local=_local_exponent(sizes, unstored),
            measured=fit.estimates["size_exponent"],
        ),
        Prediction(
            name="b (tokens)",
            asymptotic=data_exponent(world),
            local=data_local,
            measured=fit.estimates["data_exponent"],
        ),
    ]


def _local_exponent(sizes: Sequence[float], shares: Sequence[float]) -> float | None:
    """Return the exponent between two points; None if the share of the larger one is 0."""
    return local_exponent(sizes, shares) if min(shares) > 0 else None


def to_json(analysis: Analysis) -> dict[str, Any]:
    """Return an analysis as JSON values."""
    points = analysis.points
    return {
        "title": points.title,
        "unit": points.unit,
        "floor": points.floor,
        "num_points": len(points),
        "fits": [
            {
                "name": fit.name,
                "objective": fit.objective,
                "known_limit": fit.known_limit,
                "values": {
                    SYMBOLS.get(name, name): dataclasses.asdict(value)
                    for name, value in fit.estimates.items()
                },
                "residuals": [float(each) for each in fit.residuals],
            }
            for fit in analysis.fits
        ],
        "levels": [
            {
                **dataclasses.asdict(level.parabola),
                "num_points": level.num_points,
                "estimates": {name: dataclasses.asdict(each) for name, each in level.estimates.items()},
            }
            for level in analysis.levels
        ],
        "optima": {name: dataclasses.asdict(each) for name, each in analysis.optima.items()},
        "recovery": [
            {**dataclasses.asdict(each), "errors_from_true": each.errors} for each in analysis.recoveries
        ],
        "predictions": [dataclasses.asdict(each) for each in analysis.predictions],
        "notes": list(analysis.notes),
    }

"""Compare procedures by how well they recover the known E.

Each procedure estimates E without the known value, from all points and from those without the largest level
of compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bytewright.errors import UsageError
from bytewright.formatting import Progress
from bytewright.laws import NUM_RESAMPLES
from bytewright.laws.bootstrap import Estimate, Fit, estimate
from bytewright.laws.isoflop import find_levels, fit_envelope, fit_parabolas
from bytewright.laws.law import fit_law
from bytewright.laws.minimisers import Vector
from bytewright.laws.points import Points
from bytewright.laws.power import Objective

ALL_POINTS, SMALLER = "all", "without the largest compute"
JOINT: Mapping[str, Objective] = {
    "joint fit, Huber loss of ln L": "huber",
    "joint fit, squared error of ln L": "log",
    "joint fit, squared error of L": "linear",
}
"""Fits of the law to all points at once: variable projection with different objectives."""
ENVELOPE = "isoFLOP envelope, extrapolated"
NUM_PROCEDURES = len(JOINT) + 1


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """The E that one procedure finds."""

    procedure: str
    data: str
    """Which points were used."""
    estimate: Estimate | None
    """None if the procedure cannot be applied."""
    reason: str = ""
    """Why it cannot be applied."""
    true: float | None = None
    """The known E."""

    @property
    def errors(self) -> float | None:
        """The distance to the known E in standard errors."""
        return self.estimate.errors_from(self.true) if self.estimate and self.true is not None else None


def list_parts(points: Points) -> dict[str, Points]:
    """Return all points, and those without the largest level of compute if there are several levels."""
    parts = {ALL_POINTS: points}
    levels = find_levels(points)
    if len(levels) > 1:
        is_smaller = points.compute < points.compute[levels[-1]].min()
        if is_smaller.any():
            parts[SMALLER] = points.select(is_smaller)
    return parts


def recover_limit(
    points: Points,
    *,
    existing: Mapping[Objective, Estimate] | None = None,
    num_resamples: int = NUM_RESAMPLES,
    progress: Progress | None = None,
) -> list[Recovery]:
    """Return the E of every procedure, with all points and without the largest level of compute.

    `existing` has the E of joint fits of all points, by objective, with the same number of resamples. These
    fits are not repeated.
    """
    parts = list_parts(points)
    procedures: dict[str, Callable[[Points], tuple[float, Fit]]] = {
        name: _fit_jointly(objective) for name, objective in JOINT.items()
    } | {ENVELOPE: _fit_envelope}
    known = {name: existing[each] for name, each in JOINT.items() if existing and each in existing}
    found: list[Recovery] = []
    for data, part in parts.items():
        for name, procedure in procedures.items():
            recovered, reason = None, ""
            if data == ALL_POINTS and name in known:
                recovered = known[name]
            else:
                try:
                    limit, refit = procedure(part)
                    values = {"E": limit}
                    recovered = estimate(part, refit, values=values, num_resamples=num_resamples)["E"]
                except UsageError as error:
                    reason = str(error)
            found.append(
                Recovery(procedure=name, data=data, estimate=recovered, reason=reason, true=points.floor)
            )
            if progress:
                progress(len(found), len(parts) * len(procedures))
    return found


def _fit_jointly(objective: Objective) -> Callable[[Points], tuple[float, Fit]]:
    """Return a function that fits a law, and returns its E and a fit of resamples."""

    def procedure(points: Points) -> tuple[float, Fit]:
        law = fit_law(points, objective=objective)

        def refit(losses: Vector) -> Mapping[str, float]:
            return {"E": fit_law(points, objective=objective, losses=losses, start=law).limit}

        return law.limit, refit

    return procedure


def _fit_envelope(points: Points) -> tuple[float, Fit]:
    """Fit the envelope of the levels; return its E and a fit of resamples."""
    envelope = fit_envelope(fit_parabolas(points))

    def refit(losses: Vector) -> Mapping[str, float]:
        return {"E": fit_envelope(fit_parabolas(points, losses), start=envelope).limit}

    return envelope.limit, refit

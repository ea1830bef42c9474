"""Compare the usual procedures by how well they recover the E that is known.

Each procedure estimates E without it, from all points and from those without the largest level of compute.
The known E is the floor of the points: the entropy of the text that the models were evaluated on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bytewright.errors import UsageError
from bytewright.laws.bootstrap import NUM_RESAMPLES, Estimate, Fit, estimate
from bytewright.laws.isoflop import find_levels, fit_envelope, fit_parabolas
from bytewright.laws.law import fit_law
from bytewright.laws.points import Points
from bytewright.laws.power import Objective, Vector

ALL_POINTS, SMALLER = "all", "without the largest compute"


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


PARAMETRIC: Mapping[str, Objective] = {
    "parametric fit, Huber loss of logarithms": "huber",
    "variable projection, logarithms": "log",
    "variable projection, linear": "linear",
}
ENVELOPE = "isoFLOP envelope, extrapolated"


def without_largest_level(points: Points) -> Points | None:
    """Return the points below the largest level of compute; None without levels."""
    levels = find_levels(points)
    if len(levels) < 2:
        return None
    kept = points.compute < points.compute[levels[-1]].min()
    return points.select(kept)


def recover_limit(points: Points, *, num_resamples: int = NUM_RESAMPLES) -> list[Recovery]:
    """Return the E of every procedure, with all points and without the largest level of compute."""
    parts = {ALL_POINTS: points}
    smaller = without_largest_level(points)
    if smaller is not None and smaller.points:
        parts[SMALLER] = smaller
    found = []
    for data, part in parts.items():
        procedures: dict[str, Callable[[Points], tuple[Fit, Fit]]] = {
            name: _parametric(objective) for name, objective in PARAMETRIC.items()
        } | {ENVELOPE: _envelope}
        for name, make in procedures.items():
            try:
                fit, refit = make(part)
                values = estimate(part, fit, refit=refit, num_resamples=num_resamples)
            except UsageError as error:
                found.append(
                    Recovery(procedure=name, data=data, estimate=None, reason=str(error), true=points.floor)
                )
            else:
                found.append(Recovery(procedure=name, data=data, estimate=values["E"], true=points.floor))
    return found


def _parametric(objective: Objective) -> Callable[[Points], tuple[Fit, Fit]]:
    def make(points: Points) -> tuple[Fit, Fit]:
        law = fit_law(points, objective=objective)

        def refit(losses: Vector) -> Mapping[str, float]:
            return {"E": fit_law(points, objective=objective, losses=losses, start=law).limit}

        return lambda losses: {"E": law.limit}, refit

    return make


def _envelope(points: Points) -> tuple[Fit, Fit]:
    envelope = fit_envelope(fit_parabolas(points))

    def refit(losses: Vector) -> Mapping[str, float]:
        return {"E": fit_envelope(fit_parabolas(points, losses), start=envelope).limit}

    return lambda losses: {"E": envelope.limit}, refit

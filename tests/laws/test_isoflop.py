"""IsoFLOP parabolas agree with closed forms, and E is recovered from laws without noise."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from synthetic import TRUE, law_points

from bytewright.errors import UsageError
from bytewright.laws import analysis, recovery
from bytewright.laws.analysis import analyse
from bytewright.laws.isoflop import find_levels, fit_envelope, fit_exponent, fit_parabola, fit_parabolas
from bytewright.laws.law import Law, fit_law
from bytewright.laws.points import Point, Points
from bytewright.laws.recovery import ALL_POINTS, ENVELOPE, SMALLER, recover_limit


def parabola_points(best: float = 3e6, curvature: float = 0.2, lowest: float = 1.5) -> Points:
    sizes = np.geomspace(5e5, 5e6, 6)
    return Points(
        points=[
            Point(
                parameters=float(n),
                tokens=float(1e15 / 6 / n),
                loss=float(lowest + curvature * np.log(n / best) ** 2),
            )
            for n in sizes
        ]
    )


def test_the_minimum_of_an_exact_parabola_is_found() -> None:
    found = fit_parabola(parabola_points())
    assert found.best_size == pytest.approx(3e6)
    assert found.best_tokens == pytest.approx(1e15 / 6 / 3e6)
    assert found.lowest == pytest.approx(1.5)
    assert found.curvature == pytest.approx(0.2)
    assert found.flops == pytest.approx(1e15)
    assert found.is_inside
    assert not fit_parabola(parabola_points(best=9e6)).is_inside


def test_the_parabola_of_a_law_approaches_the_closed_form_of_its_optimum() -> None:
    """N = (a A / (b B))^(1 / (a + b)) (C / 6)^(b / (a + b)); a narrow range of sizes has a small bias."""
    flops = (1e15, 1e16, 1e17)
    for spread, tolerance in ((1.2, 2e-3), (10.0, 0.5)):
        found = fit_parabolas(law_points(levels=flops, spread=spread))
        assert [each.best_size for each in found] == pytest.approx(
            [TRUE.best_size(each) for each in flops], rel=tolerance
        )
    exponent = fit_exponent(flops, [TRUE.best_size(each) for each in flops])
    assert exponent == pytest.approx(TRUE.best_size_exponent)
    losses = [float(TRUE.loss(n := TRUE.best_size(each), each / 6 / n)) for each in flops]
    above = fit_exponent(flops, [loss - TRUE.limit for loss in losses])
    assert -above == pytest.approx(TRUE.envelope_exponent)


def test_the_best_size_of_a_law_is_a_minimum() -> None:
    best = TRUE.best_size(1e15)
    around = [float(TRUE.loss(n, 1e15 / 6 / n)) for n in (0.99 * best, best, 1.01 * best)]
    assert around[1] < min(around[0], around[2])


def test_levels_are_told_apart_by_their_compute() -> None:
    points = law_points(levels=(1e15, 2e15, 8e15), num_seeds=2)
    sizes = [int(mask.sum()) for mask in find_levels(points)]
    assert sizes == [10, 10, 10]
    two_sizes = Points(points=points.points[:4])
    assert find_levels(two_sizes) == []


@pytest.mark.parametrize("shape", ["two sizes", "downwards"])
def test_levels_without_a_minimum_are_rejected(shape: str) -> None:
    points = (
        parabola_points(curvature=-0.2)
        if shape == "downwards"
        else Points(points=parabola_points().points[:2])
    )
    with pytest.raises(UsageError) as caught:
        fit_parabola(points)
    assert caught.value.key == ("loss" if shape == "downwards" else "parameters")
    assert shape == "downwards" or caught.value.found == 2


def test_all_procedures_recover_the_limit_of_a_law_without_noise() -> None:
    points = law_points(spread=1.5)
    found = recover_limit(points)
    assert len(found) == 8
    assert {each.data for each in found} == {ALL_POINTS, SMALLER}
    for each in found:
        assert each.true == TRUE.limit
        assert each.estimate is not None
        tolerance = 0.02 if each.procedure == ENVELOPE else 1e-4
        assert each.estimate.value == pytest.approx(TRUE.limit, rel=tolerance)


def test_an_analysis_makes_no_fit_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    points = law_points(noise=1e-3, num_seeds=2, num_sizes=4, levels=(1e15, 4e15, 1.6e16))
    separate = recover_limit(points, num_resamples=3)
    searched: list[tuple[int, str, bool]] = []

    def search(points: Points, *, start: Law | None = None, **settings: Any) -> Law:
        if start is None:
            searched.append((len(points), settings["objective"], settings.get("known_limit", False)))
        return fit_law(points, start=start, **settings)

    for module in (analysis, recovery):
        monkeypatch.setattr(module, "fit_law", search)
    assert analyse(points, num_resamples=3).recoveries == separate
    assert len(searched) == len(set(searched))


def test_a_procedure_that_cannot_be_applied_states_why() -> None:
    found = recover_limit(law_points(levels=(1e15, 4e15)))
    failed = [each for each in found if each.estimate is None]
    assert {each.procedure for each in failed} >= {ENVELOPE}
    assert all(each.reason for each in failed)


def test_an_analysis_names_values_at_their_bound() -> None:
    points = law_points(levels=(1e15, 4e15, 1.6e16), num_sizes=3, num_seeds=2, noise=1e-3)
    others = [dataclasses.replace(each, loss=each.loss - TRUE.limit - 5, floor=1.0) for each in points.points]
    found = analyse(Points(points=others), objective="huber", num_resamples=2)
    assert found.fits[1].law.limit == 0
    assert any(note.startswith("E is 0") and "fitted E" in note for note in found.notes)
    assert not any("E is 0" in note for note in analyse(points, objective="huber", num_resamples=2).notes)


def test_an_analysis_reports_its_progress() -> None:
    reports: list[tuple[int, int]] = []
    points = law_points(levels=(1e15, 4e15), num_sizes=5)
    analyse(points, num_resamples=2, progress=lambda *each: reports.append(each))
    assert reports == [(done, 12) for done in range(1, 13)]


def test_an_analysis_states_that_some_points_have_no_floor() -> None:
    points = law_points(num_sizes=3).points
    mixed = Points(points=[dataclasses.replace(points[0], floor=None), *points[1:]])
    found = analyse(mixed, num_resamples=2)
    assert not found.fits[0].known_limit
    assert any(note.startswith("1 of 12 points") for note in found.notes)


def test_the_envelope_needs_three_levels() -> None:
    parabolas = fit_parabolas(law_points(levels=(1e15, 4e15)))
    with pytest.raises(UsageError):
        fit_envelope(parabolas)
    flat = [dataclasses.replace(parabolas[0], flops=1e15 * 4**n, lowest=5.0 + 2.0**-n) for n in range(4)]
    assert fit_envelope(flat).limit == pytest.approx(5.0, rel=1e-4)


@pytest.mark.parametrize("slope", [0.01, 0.1, 1.0])
def test_losses_on_a_line_have_no_minimum(slope: float) -> None:
    """The curvature of the fit is a rounding error of either sign."""
    for scale in (1.0, 1.1, 1.3, 1.7):
        sizes = scale * np.geomspace(1e5, 3e6, 5)
        points = [
            Point(parameters=float(n), tokens=1e15 / float(n), loss=float(20 - slope * np.log(n)))
            for n in sizes
        ]
        with pytest.raises(UsageError) as raised:
            fit_parabola(Points(points=points))
        assert raised.value.key == "loss"


def test_an_envelope_of_losses_below_zero_is_rejected() -> None:
    """The minima are extrapolated far beyond the sizes."""
    points = [
        Point(parameters=n, tokens=flops / 6 / n, loss=3 - k + 0.05 * k**2)
        for flops in (1e12, 1e13, 1e14)
        for k, n in enumerate((1e4, 2e4, 4e4))
    ]
    parabolas = fit_parabolas(Points(points=points))
    with pytest.raises(UsageError) as raised:
        fit_envelope(parabolas)
    assert raised.value.key == "loss"


def test_the_best_size_of_a_flat_law_can_be_infinite() -> None:
    flat = dataclasses.replace(TRUE, size_scale=1e6, size_exponent=0.005, data_scale=1.0, data_exponent=0.005)
    assert flat.best_size(1e18) == np.inf

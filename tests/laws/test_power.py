"""Variable projection finds the coefficients and exponents of sums of power laws."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from synthetic import TRUE, law_points

from bytewright.errors import UsageError
from bytewright.laws import power
from bytewright.laws.law import LAW_FIELDS, fit_law
from bytewright.laws.minimisers import solve_nonnegative
from bytewright.laws.points import Point, Points
from bytewright.laws.power import MAX_EXPONENT, MIN_EXPONENT, OBJECTIVES, Objective, fit_power_laws


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("known_limit", [True, False])
def test_a_law_without_noise_is_found(objective: Objective, known_limit: bool) -> None:
    found = fit_law(law_points(), objective=objective, known_limit=known_limit)
    for name in LAW_FIELDS:
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=1e-4)


def test_noise_moves_the_fit_little_and_outliers_move_huber_least() -> None:
    points = law_points(noise=3e-4, num_seeds=3)
    losses = points.losses.copy()
    for objective in OBJECTIVES:
        assert fit_law(points, objective=objective).limit == pytest.approx(TRUE.limit, rel=0.02)
    losses[::15] *= 1.03
    errors = {
        each: abs(fit_law(points, objective=each, losses=losses).limit - TRUE.limit) for each in OBJECTIVES
    }
    assert errors["huber"] < errors["log"]
    assert errors["huber"] < errors["linear"]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_fit_that_starts_from_a_similar_one_finds_the_same(objective: Objective) -> None:
    points, others = law_points(noise=1e-3, num_seeds=2), law_points(noise=1e-3, num_seeds=2, seed=1)
    start = fit_law(points, objective=objective)
    searched = fit_law(others, objective=objective)
    improved = fit_law(others, objective=objective, start=start)
    assert improved.size_exponent == pytest.approx(searched.size_exponent, rel=2e-3)
    assert improved.limit == pytest.approx(searched.limit, rel=2e-3)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("known_limit", [True, False])
def test_a_fit_at_a_bound_is_improved_without_a_search(
    objective: Objective, known_limit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best E of these losses is negative, or with a known E, the best B."""
    points = law_points(noise=1e-3, num_seeds=2, law=replace(TRUE, limit=1.0))
    if known_limit:  # losses that grow with the tokens
        sizes = replace(TRUE, limit=1.0, data_scale=0.0).loss(points.sizes, points.tokens)
        losses = sizes * (points.tokens / points.tokens.max()) ** 0.01
    else:
        losses = points.losses - 30
    start = fit_law(points, objective=objective, known_limit=known_limit, losses=losses)
    assert 0 in (start.limit, start.data_scale)
    draw = losses * np.exp(1e-3 * np.random.default_rng(1).normal(size=len(losses)))
    searched = fit_law(points, objective=objective, known_limit=known_limit, losses=draw)
    monkeypatch.setattr(power, "_search", None)
    improved = fit_law(points, objective=objective, known_limit=known_limit, losses=draw, start=start)
    for name in ("limit", "size_scale", "size_exponent", "data_scale"):
        assert getattr(improved, name) == pytest.approx(getattr(searched, name), rel=2e-3), name


@pytest.mark.parametrize("objective", ["log", "huber"])
def test_an_exponent_at_a_bound_stays_there_only_if_it_is_best(
    objective: Objective, monkeypatch: pytest.MonkeyPatch
) -> None:
    law = replace(TRUE, limit=1.0, size_scale=20.0, size_exponent=0.001, data_scale=1e54, data_exponent=6.0)
    points = law_points(noise=1e-3, num_seeds=2, law=replace(TRUE, limit=1.0))
    losses = law.loss(points.sizes, points.tokens)
    start = fit_law(points, objective=objective, known_limit=True, losses=losses)
    assert (start.size_exponent, start.data_exponent) == (MIN_EXPONENT, MAX_EXPONENT)
    inside = fit_law(points, objective=objective, known_limit=True, start=start)
    searched = fit_law(points, objective=objective, known_limit=True)
    assert inside.size_exponent == pytest.approx(searched.size_exponent, rel=2e-3)
    draw = losses * np.exp(1e-3 * np.random.default_rng(1).normal(size=len(losses)))
    monkeypatch.setattr(power, "_search", None)
    improved = fit_law(points, objective=objective, known_limit=True, losses=draw, start=start)
    assert (improved.size_exponent, improved.data_exponent) == (MIN_EXPONENT, MAX_EXPONENT)


def test_coefficients_are_the_best_that_are_not_negative() -> None:
    random = np.random.default_rng(1)
    for _ in range(30):
        columns, target = random.normal(size=(8, 3)), random.normal(size=8)
        found = solve_nonnegative(columns, target)
        assert found.min() >= 0
        least = np.square(columns @ found - target).sum()
        steps = np.array(list(itertools.product((-1e-3, 0, 1e-3), repeat=3)))
        near = np.maximum(found + steps, 0)
        assert np.square(near @ columns.T - target).sum(axis=1).min() >= least - 1e-12


def test_a_limit_of_zero_is_found_where_a_negative_one_would_fit_better() -> None:
    x = np.geomspace(1, 100, 9)
    fit = fit_power_laws((x,), 5 * x**-0.5 - 0.01 + 0.02 / x)
    assert fit.limit >= 0


def point(parameters: float, tokens: float, **more: float) -> Point:
    return Point(**{"parameters": parameters, "tokens": tokens, "loss": 1.0, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("points", "key"),
    [
        ([point(n, d) for n in (1e6,) for d in (1e7, 2e7, 4e7, 8e7, 9e7, 1e8)], "parameters"),
        ([point(n, d) for n in (1e6, 2e6, 3e6, 4e6, 5e6, 6e6) for d in (1e7, 2e7)], "tokens"),
        ([point(1e6, 1e7), point(2e6, 2e7), point(3e6, 3e7)], None),
        ([point(n, 1e14 / n) for n in (1e6, 2e6, 3e6, 4e6, 5e6)], None),
    ],
    ids=["one N", "two D", "three points", "five settings"],
)
def test_points_that_cannot_determine_a_law_are_rejected(points: list[Point], key: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        fit_law(Points(points=points))
    assert caught.value.key == key
    assert "\n" not in str(caught.value)


def test_a_known_limit_needs_a_floor() -> None:
    points = [point(n, d) for n in (1e6, 2e6, 3e6) for d in (1e7, 2e7, 3e7)]
    with pytest.raises(UsageError) as caught:
        fit_law(Points(points=points), known_limit=True)
    assert caught.value.key == "floor"

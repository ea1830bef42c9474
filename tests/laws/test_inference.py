"""Student's t distribution agrees with published tables, and intervals cover at their stated rate."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from synthetic import TRUE, law_points

from bytewright.laws.bootstrap import SeedResampler, estimate
from bytewright.laws.inference import (
    compare_means,
    holm,
    incomplete_beta,
    student_quantile,
    student_tail,
)
from bytewright.laws.law import Law, fit_law
from bytewright.laws.minimisers import Vector
from bytewright.laws.points import Point, Points


@pytest.mark.parametrize(
    ("confidence", "degrees", "expected"),
    [  # two-sided quantiles of published tables
        (0.95, 1, 12.7062),
        (0.95, 2, 4.3027),
        (0.95, 3, 3.1824),
        (0.95, 4, 2.7764),
        (0.95, 9, 2.2622),
        (0.95, 30, 2.0423),
        (0.99, 4, 4.6041),
        (0.90, 10, 1.8125),
        (0.999, 5, 6.8688),
        (0.95, 1e7, 1.9600),
    ],
)
def test_quantiles_agree_with_published_tables(confidence: float, degrees: float, expected: float) -> None:
    assert student_quantile(confidence, degrees) == pytest.approx(expected, abs=6e-5)
    assert student_tail(expected, degrees) == pytest.approx(1 - confidence, rel=1e-3)


def test_the_incomplete_beta_function_agrees_with_closed_forms() -> None:
    for x in (0.0, 0.1, 0.5, 0.9, 1.0):
        assert incomplete_beta(x, 1, 1) == pytest.approx(x)
        assert incomplete_beta(x, 3, 1) == pytest.approx(x**3)
        assert incomplete_beta(x, 0.5, 0.5) == pytest.approx(2 / math.pi * math.asin(math.sqrt(x)))


def test_differences_over_common_seeds_are_paired() -> None:
    base = {0: 1.0, 1: 2.0, 2: 4.0}
    ours = {seed: value + 0.1 + 0.01 * seed for seed, value in base.items()}
    found = compare_means(ours, base)
    assert found is not None
    assert found.is_paired
    assert found.value == pytest.approx(0.11)
    assert found.error == pytest.approx(0.01 / math.sqrt(3))
    assert found.half_width() == pytest.approx(4.3027 * 0.01 / math.sqrt(3), rel=1e-4)
    assert found.p_value < 0.01


def test_differences_without_common_seeds_are_those_of_independent_means() -> None:
    ours, theirs = {0: 1.0, 1: 1.2, 2: 1.1}, {3: 2.0, 4: 2.4}
    found = compare_means(ours, theirs)
    assert found is not None
    assert not found.is_paired
    parts = [statistics.variance(values.values()) / len(values) for values in (ours, theirs)]
    assert found.error == pytest.approx(math.sqrt(sum(parts)))
    assert found.degrees == pytest.approx(sum(parts) ** 2 / (parts[0] ** 2 / 2 + parts[1] ** 2))
    assert compare_means({0: 1.0}, {0: 2.0}) is None


def test_equal_values_have_no_error() -> None:
    found = compare_means({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0})
    assert found is not None
    assert (found.value, found.error, found.p_value) == (0, 0, 1)


def test_the_correction_of_holm_controls_the_family() -> None:
    """Of twenty differences without effect, one is significant by chance in 64 % of all sweeps."""
    random = np.random.default_rng(0)
    plain = corrected = 0
    for _ in range(300):
        p_values = random.random(20).tolist()
        plain += min(p_values) < 0.05
        corrected += min(holm(p_values)) < 0.05
    assert plain > 150
    assert corrected < 30
    assert holm([0.02, 0.9, 0.5]) == [0.06, 1.0, 1.0]


def test_settings_with_the_same_seeds_get_the_same_draws() -> None:
    points = [
        Point(parameters=n, tokens=1e7, seed=seed, loss=1 + seed + n) for n in (1, 2) for seed in range(4)
    ]
    resampler = SeedResampler(Points(points=points))
    for _ in range(20):
        losses = resampler.draw()
        assert (losses[4:] - losses[:4] == 1).all()
        assert set(losses[:4]) <= {2, 3, 4, 5}


def test_a_setting_with_one_seed_gets_deviations_of_the_others() -> None:
    points = [Point(parameters=1, tokens=1, seed=seed, loss=10.0 + 2 * seed) for seed in range(2)]
    points.append(Point(parameters=2, tokens=1, loss=50.0))
    resampler = SeedResampler(Points(points=points))
    assert {float(resampler.draw()[2]) for _ in range(30)} == {49.0, 51.0}


def test_a_resample_with_a_loss_of_zero_or_less_counts_as_missing() -> None:
    points = [Point(parameters=1, tokens=1, seed=seed, loss=10.0 + 8 * seed) for seed in range(2)]
    points.append(Point(parameters=2, tokens=1, loss=4.0))  # with a deviation of 4, up or down
    least = []

    def fit(losses: Vector) -> dict[str, float]:
        least.append(losses.min())
        return {"mean": float(losses.mean())}

    assert estimate(Points(points=points), fit)["mean"].interval is not None
    assert min(least) > 0


def test_without_repeated_seeds_there_is_no_interval() -> None:
    points = law_points()
    found = estimate(points, lambda losses: {"mean": float(losses.mean())})
    assert found["mean"].interval is None


def test_a_value_that_all_resamples_share_has_no_interval() -> None:
    """It is at a bound of the fit; an interval from 0 to 0 would state a certainty that it does not have."""
    points = Points(points=[Point(parameters=1, tokens=1, seed=seed, loss=1.0 + seed) for seed in range(3)])
    found = estimate(points, lambda losses: {"E": 0.0, "A": 0.1 + 1e-17 * losses[0]}, logs=frozenset({"A"}))
    for name in ("E", "A"):
        assert found[name].interval is None
        assert found[name].errors_from(0.2) is None


def test_the_interval_of_a_mean_is_that_of_student() -> None:
    random = np.random.default_rng(3)
    losses = (10 + random.normal(size=6)).tolist()
    points = [Point(parameters=1, tokens=1, seed=n, loss=loss) for n, loss in enumerate(losses)]
    fit = {"mean": lambda values: float(np.mean(values))}
    found = estimate(Points(points=points), lambda values: {"mean": fit["mean"](values)}, num_resamples=4000)[
        "mean"
    ]
    error = statistics.stdev(losses) / math.sqrt(6)
    assert found.error == pytest.approx(error, rel=0.05)
    assert found.interval is not None
    assert found.interval[1] - found.value == pytest.approx(2.5706 * error, rel=0.05)


def test_the_interval_of_a_value_that_is_hardly_determined_is_finite() -> None:
    points = Points(points=[Point(parameters=1, tokens=1, seed=seed, loss=1.0 + seed) for seed in range(2)])
    found = estimate(points, lambda losses: {"A": 10.0 ** (100 * losses[0])}, logs=frozenset({"A"}))["A"]
    assert found.interval is not None
    assert 0 <= found.interval[0] < found.value < found.interval[1] < math.inf


@pytest.mark.parametrize(
    ("num_fits", "num_resamples", "least"),
    [(20, 25, 16), pytest.param(100, 100, 88, marks=pytest.mark.slow)],
)
def test_intervals_of_fitted_values_cover_the_truth_at_about_their_rate(
    num_fits: int, num_resamples: int, least: int
) -> None:
    """If each interval covers the truth with 95 %, fewer than `least` do so with less than 1 in 200."""
    covered = {"size_exponent": 0, "limit": 0}
    for seed in range(num_fits):
        points = law_points(noise=1e-3, num_seeds=4, num_sizes=4, levels=(1e15, 4e15, 1.6e16), seed=seed)
        law = fit_law(points, objective="log")

        def values(losses: Vector, points: Points = points, law: Law = law) -> dict[str, float]:
            found = fit_law(points, objective="log", losses=losses, start=law)
            return {name: getattr(found, name) for name in covered}

        for name, each in estimate(points, values, num_resamples=num_resamples).items():
            assert each.interval is not None
            covered[name] += each.interval[0] <= getattr(TRUE, name) <= each.interval[1]
    assert all(count >= least for count in covered.values()), covered

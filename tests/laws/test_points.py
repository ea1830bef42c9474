"""Points are read from sweeps and JSON; wrong ones are rejected with one sentence."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic import TRUE, law_points

from bytewright.corpus.worldbook import World
from bytewright.errors import BytewrightError, FormatError, UsageError
from bytewright.laws import power
from bytewright.laws.analysis import analyse, to_json
from bytewright.laws.law import Law
from bytewright.laws.points import RANGES, Point, Points, points_of_runs, read_points
from bytewright.laws.power import MAX_EXPONENT, MIN_EXPONENT
from bytewright.report.laws import table_of_exponents, table_of_recovery, write_law_report
from bytewright.train.metrics import finite
from conftest import RunCommand
from rejection import rejects

POINT: dict[str, Any] = {"parameters": 1e6, "tokens": 1e8, "seed": 0, "loss": 0.3, "floor": 0.2}
LAB = Path(__file__).parents[2] / "docs" / "results" / "2026-11-15-lab"


def write(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value))
    return path


def test_points_are_read_from_json(tmp_path: Path) -> None:
    more = POINT | {"seed": 1, "flops": 1e15, "excess": {"fact": 0.05}, "anything": "else"}
    world = {"seed": 3, "exponent": "1.5", "people": 1000}
    file = {"unit": "bits", "title": "T", "points": [POINT, more], "world": world, "mentions_per_token": 0.01}
    points = read_points(write(tmp_path / "points.json", file))
    assert (points.unit, points.title, points.floor, points.mentions_per_token) == ("bits", "T", 0.2, 0.01)
    assert points.world is not None
    assert (points.world.seed, str(points.world.exponent), points.world.num_people) == (3, "1.5", 1000)
    assert points.compute.tolist() == [6e14, 1e15]
    assert points.settings.tolist() == [0, 0]
    assert points.select(points.column("seed") == 1).select_kind("fact").losses.tolist() == [0.05]
    with pytest.raises(UsageError) as caught:
        points.select_kind("fact")
    assert caught.value.found == "fact"
    below = {**more, "excess": {"word": -1e-5}}
    with pytest.raises(UsageError) as caught:  # a model can predict some choices better than on average
        read_points(write(tmp_path / "below.json", [below])).select_kind("word")
    assert (caught.value.key, caught.value.found) == ("excess", -1e-5)
    assert len(read_points(write(tmp_path / "list.json", [POINT]))) == 1


def test_points_are_read_from_the_results_of_a_sweep() -> None:
    points = read_points(LAB / "silu_ffn" / "results.json")
    assert len(points) == 6
    assert points.floor == pytest.approx(0.3518, abs=1e-4)
    assert points.losses.min() > 0.3518


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"loss": 0.1}, "loss"),
        ({"tokens": 0}, "tokens"),
        ({"flops": -1.0}, "flops"),
        ({"parameters": "many"}, "points[1].parameters"),
        ({"seed": 0}, "seed"),
        ({"floor": 0.25}, "floor"),
        ({"floor": -0.1}, "floor"),
        ({"parameters": 1e300}, "parameters"),
        ({"tokens": 1e-300}, "tokens"),
        ({"loss": 1e300}, "loss"),
        ({"flops": 1e-300}, "flops"),
    ],
)
def test_wrong_points_are_rejected(tmp_path: Path, change: dict[str, Any], key: str) -> None:
    path = write(tmp_path / "points.json", {"points": [POINT, POINT | {"seed": 1} | change]})
    with pytest.raises(BytewrightError) as caught:
        read_points(path)
    assert caught.value.key == key
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_rejected(value: float) -> None:
    point = Point(parameters=1e6, tokens=1e8, loss=1.0)
    for key in ("parameters", "tokens", "loss", "floor"):
        with pytest.raises(UsageError) as caught:
            Points(points=[dataclasses.replace(point, **{key: value})])  # type: ignore[arg-type]
        assert caught.value.key == key
        assert caught.value.found == pytest.approx(value, nan_ok=True)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"seed": -1}, "world.seed"),
        ({"exponent": "nan"}, "world.exponent"),
        ({"exponent": "steep"}, "world.exponent"),
        ({"people": 1}, "world.people"),
        ({"people": "all"}, "world.people"),
    ],
)
def test_a_wrong_world_is_rejected_with_its_place(tmp_path: Path, change: dict[str, Any], key: str) -> None:
    path = write(tmp_path / "points.json", {"points": [POINT], "world": change})
    with rejects(FormatError, path=path, key=key):
        read_points(path)


@pytest.mark.parametrize("value", [0, 1e300])
def test_a_wrong_number_of_mentions_is_rejected(tmp_path: Path, value: float) -> None:
    with rejects(UsageError, key="mentions_per_token", found=value):
        read_points(write(tmp_path / "points.json", {"points": [POINT], "mentions_per_token": value}))


@pytest.mark.filterwarnings("ignore")  # NumPy reports values that are hardly determined
@pytest.mark.parametrize("key", ["parameters", "tokens", "flops", "loss"])
def test_points_at_the_ends_of_the_ranges_are_analysed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setattr(power, "NUM_STARTS", 1)  # for speed
    points = law_points(noise=1e-3, num_sizes=3, levels=(1e15, 4e15, 1.6e16))
    for value, mentions in zip(RANGES[key], RANGES["mentions_per_token"], strict=True):
        changed = [dataclasses.replace(each, floor=None) for each in points.points]
        changed[3] = dataclasses.replace(changed[3], **{key: value})  # type: ignore[arg-type]
        made = Points(points=changed, world=World(num_people=1000), mentions_per_token=mentions)
        analysis = analyse(made)
        assert json.dumps(finite(to_json(analysis)), allow_nan=False)
        write_law_report(analysis, tmp_path)
    assert capfd.readouterr().out == "", "LAPACK prints there if it gets numbers that are not finite"


def test_no_points_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_points(write(tmp_path / "points.json", {"points": []}))
    assert (caught.value.key, caught.value.found) == ("points", 0)
    assert "sweep" not in str(caught.value)
    with pytest.raises(FormatError) as raised:
        points_of_runs([], "a sweep without runs")
    assert raised.value.key == "points"


def test_the_command_writes_a_page_and_json(tmp_path: Path, run: RunCommand) -> None:
    points = law_points(noise=1e-3, num_seeds=2, num_sizes=4)
    fields = [{k: v for k, v in dataclasses.asdict(each).items() if v is not None} for each in points.points]
    path = write(
        tmp_path / "points.json",
        {"points": fields, "world": {"exponent": "1.25"}, "mentions_per_token": 0.007},
    )
    done = run("fit", str(path), "--out", str(tmp_path / "fit"), "--resamples", "4")
    assert done.code == 0, done.err
    assert "joint fit, squared error of L" in done.out
    assert done.out.splitlines()[-1] == str(tmp_path / "fit" / "fit.html")
    page = (tmp_path / "fit" / "fit.html").read_text()
    for title in ("Loss against parameters", "IsoFLOP parabolas", "Residuals", "E by procedure"):
        assert title in page
    assert "<script" not in page
    written = json.loads((tmp_path / "fit" / "fit.json").read_text())
    assert written["floor"] == TRUE.limit
    fitted = next(fit for fit in written["fits"] if fit["name"] == "known E, log")
    low, high = fitted["values"]["a"]["interval"]
    assert low < fitted["values"]["a"]["value"] < high
    assert [each["name"] for each in written["predictions"]] == ["a (parameters)", "b (tokens)"]


def test_captions_name_the_kind_whose_excess_was_fitted() -> None:
    points = law_points(noise=1e-3, num_seeds=2, num_sizes=3, levels=(1e15, 4e15, 1.6e16))
    with_excess = [dataclasses.replace(each, excess={"fact": each.loss}) for each in points.points]
    points = dataclasses.replace(points, points=with_excess, world=World(num_people=1000))
    for chosen, words in (
        (points, "everything in the loss"),
        (points.select_kind("fact"), "the excess of fact"),
    ):
        analysis = analyse(chosen, num_resamples=2)
        assert table_of_exponents(analysis).caption.endswith(f"of {words}.")
        is_kind = "the excess of fact" in table_of_recovery(analysis).caption
        assert is_kind == (chosen is not points)


@pytest.mark.filterwarnings("error")  # of NumPy
@pytest.mark.parametrize("kind", ["small world", "flat", "only parameters"])
def test_points_that_a_law_does_not_describe_are_analysed(kind: str) -> None:
    """A world whose people all fit into the largest model, and losses without a term of the law."""
    points = law_points(noise=1e-3, num_seeds=2, num_sizes=3, levels=(1e15, 4e15, 1.6e16))
    if kind == "small world":
        points = dataclasses.replace(points, world=World(num_people=1000), mentions_per_token=0.01)
    else:
        random = np.random.default_rng(0)
        law = Law(limit=1.0, size_scale=10.0, size_exponent=0.3, data_scale=0.0, data_exponent=0.3)
        changed = [
            dataclasses.replace(
                point,
                floor=None,
                loss=(1.0 if kind == "flat" else float(law.loss(point.parameters, point.tokens)))
                + 1e-4 * random.normal(),
            )
            for point in points.points
        ]
        points = Points(points=changed)
    analysis = analyse(points, num_resamples=4)
    assert json.dumps(finite(to_json(analysis)), allow_nan=False)
    assert [each.local for each in analysis.predictions][:1] == ([None] if kind == "small world" else [])
    for level in analysis.levels:
        assert analysis.main.law.best_size(level.parabola.flops) >= 0
    assert all("FLOPs" in note for note in analysis.notes if "minimum at" in note or "losses at" in note)


def test_a_value_at_a_bound_is_stated_in_a_note_and_has_no_interval() -> None:
    """Losses that rise with D, and fall with N faster than any power law that a fit allows."""
    points = law_points(num_seeds=2, num_sizes=3, levels=(1e15, 4e15, 1.6e16))
    random = np.random.default_rng(0)
    changed = [
        dataclasses.replace(
            each,
            floor=1.0,
            loss=1 + (each.tokens / 1e9) ** 0.1 + (each.parameters / 1e6) ** -9 + 1e-4 * random.normal(),
        )
        for each in points.points
    ]
    analysis = analyse(Points(points=changed), num_resamples=2)
    fit = analysis.main
    assert (fit.law.size_exponent, fit.law.data_exponent) == (MAX_EXPONENT, MIN_EXPONENT)
    for name in ("size_exponent", "data_exponent"):
        assert fit.estimates[name].interval is None
    notes = " ".join(analysis.notes)
    assert re.search(r"a is 5, its upper bound \(known E, log[^)]*\)", notes)
    assert re.search(r"b is 0.005, its lower bound \(known E, log[^)]*\)", notes)


def test_the_command_rejects_a_sweep_of_one_size(run: RunCommand) -> None:
    done = run("fit", str(LAB / "silu_ffn" / "results.json"))
    assert done.code == 2
    assert len(done.err.splitlines()) == 1
    assert "parameters" in done.err

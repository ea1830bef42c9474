"""Read committed results and recipes for the scripts that compute the figures of pages.

A sweep is the `results.json` of a folder below `docs/results/2026-11-15-lab`: its settings, and its runs with
labels, settings, metrics by step, and predicted and measured costs.
"""

from __future__ import annotations

import json
import tomllib
from functools import cache
from itertools import pairwise
from math import log
from pathlib import Path
from statistics import mean, median
from typing import Any

from bytewright.laws.inference import compare_means

DOCS = Path(__file__).parent
LAB = "2026-11-15-lab"
Run = dict[str, Any]


@cache
def result(name: str) -> Any:
    """Return a committed result by its path below `docs/results`."""
    return json.loads((DOCS / "results" / name).read_text())


@cache
def recipe(name: str) -> dict[str, Any]:
    """Return a recipe by its name."""
    return tomllib.loads((DOCS.parent / "recipes" / f"{name}.toml").read_text())


def sweep(name: str) -> dict[str, Any]:
    """Return the results of a sweep."""
    found: dict[str, Any] = result(f"{LAB}/{name}/results.json")
    return found


def all_runs() -> list[Run]:
    """Return the runs of all sweeps that trained, each with all its settings, and once if sweeps share it."""
    runs: dict[tuple[float, float], Run] = {}
    for path in sorted((DOCS / "results" / LAB).glob("*/results.json")):
        found = sweep(path.parent.name)
        for run in found["runs"]:
            if "tokens_per_second" in (measured := run["measured"]):
                key = (measured["tokens_per_second"], measured["seconds"])
                runs.setdefault(key, run | {"settings": found["settings"] | run["settings"]})
    return list(runs.values())


def by_label(name: str) -> dict[str, list[Run]]:
    """Return the runs of a sweep by their labels, each as a list over seeds."""
    found: dict[str, list[Run]] = {}
    for run in sweep(name)["runs"]:
        label = ", ".join(str(value) for key, value in run["labels"].items() if key != "seed")
        found.setdefault(label, []).append(run)
    return found


def curve(run: Run, column: str = "validation_loss", start: int = 0) -> list[tuple[int, float]]:
    """Return the steps at which a metric was recorded, with its values."""
    pairs = zip(run["metrics"]["step"], run["metrics"][column], strict=True)
    return [(step, value) for step, value in pairs if value is not None and step >= start]


def final(run: Run, column: str = "validation_loss") -> float:
    """Return the last recorded value of a metric."""
    return curve(run, column)[-1][1]


def finals(name: str, label: str) -> list[float]:
    """Return the final validation losses of the runs of one label that reached their token budget."""
    settings = sweep(name)["settings"]
    return [
        final(run)
        for run in by_label(name)[label]
        if run["metrics"]["tokens"][-1] >= (settings | run["settings"])["budget.tokens"]
    ]


def gap(ours: list[float], theirs: list[float]) -> tuple[float, float]:
    """Return the difference of two means over seeds and half of its 95 % t interval.

    Lists of one length are of the same seeds, in order, and are compared seed by seed.
    """
    apart = 0 if len(ours) == len(theirs) else len(ours)
    found = compare_means(dict(enumerate(ours)), dict(enumerate(theirs, apart)))
    assert found is not None
    return found.value, found.half_width()


def difference(name: str, label: str, base: str) -> tuple[float, float]:
    """Return how far the mean loss of a label is above that of another one, and half of the t interval."""
    return gap(finals(name, label), finals(name, base))


def signed(value: float, error: float | None = None, digits: int = 4) -> str:
    """Write a difference with its sign and, if it has one, half of its interval."""
    text = f"{value:+.{digits}f}".replace("-", "−")
    text = text[1:] if not float(f"{value:.{digits}f}") else text
    return text if error is None else f"{text} ± {error:.{digits}f}"


def steady_seconds(run: Run) -> float:
    """Return the time of all updates at the median time between validations, without one-time costs."""
    columns = (run["metrics"][name] for name in ("step", "seconds", "validation_loss"))
    places = [(step, second) for step, second, value in zip(*columns, strict=True) if value is not None]
    every = places[0][0]
    pairs = pairwise(places)
    times = [after - before for (first, before), (last, after) in pairs if last - first == every]
    total: float = median(times) / every * run["metrics"]["step"][-1]
    return total


def seconds(runs: list[Run]) -> float:
    """Return the mean duration of runs, with one-time costs."""
    return mean(run["measured"]["seconds"] for run in runs)


def million_tokens_per_second(run: Run) -> float:
    """Return the measured speed of a run."""
    speed: float = run["measured"]["tokens_per_second"] / 1e6
    return speed


def bytes_per_token(run: Run) -> float:
    """Return how many bytes a token of the validation data stands for."""
    return final(run) / final(run, "bits_per_byte") / log(2)


def spell(rate: float | str) -> str:
    """Write a learning rate as the recipes do, such as 4e-3."""
    mantissa, _, power = f"{float(rate):e}".partition("e")
    return f"{float(mantissa):g}" + (f"e{int(power)}" if int(power) else "")


def percent(share: float, digits: int = 0) -> str:
    """Write a share in per cent."""
    return f"{100 * share:.{digits}f} %"


def spread(values: list[float]) -> float:
    """Return the difference of the highest and the lowest value."""
    return max(values) - min(values)


@cache
def predictions() -> list[tuple[Any, float]]:
    """Return the settings of all runs on the H200, and the speed predicted today over the measured one."""
    import torch

    from bytewright.account import DEVICES
    from bytewright.storage.config_reader import build
    from bytewright.train.config import TrainConfig
    from bytewright.train.recipe import unflatten
    from bytewright.train.session.costs import predict_run

    found = []
    for run in all_runs():
        config = build(TrainConfig, unflatten(run["settings"]), source=run["name"])
        predicted = predict_run(config, DEVICES["h200"], torch.device("cuda"))["tokens_per_second"]
        found.append((config, predicted / run["measured"]["tokens_per_second"]))
    return found

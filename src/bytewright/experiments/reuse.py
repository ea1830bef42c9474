"""Runs that a sweep need not make, for a sweep beside it has: the baseline of many sweeps is one run.

Two runs are twins if nothing that decides a bit of them differs: the settings, the data by the SHA-256 of its
tokens, the code by version and commit, the machine and its torch, and on a CPU the number of threads, which
decides how sums are cut. Where one of these is not on record there is no twin, nor in a tree that differs
from its commit, nor in a run that went on elsewhere than it began, or has lost some of its record.
`take_over` copies the record of a twin. Knows nothing of plans.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bytewright.errors import BytewrightError
from bytewright.experiments.sweep_file import Labels
from bytewright.train.config import TrainConfig
from bytewright.train.recipe import flatten, to_plain
from bytewright.train.run import Run
from bytewright.train.run_files import describe_environment
from bytewright.train.setup import find_device

CODE_AND_MACHINE = ("bytewright", "commit", "torch", "platform", "num_cores", "cuda")
ON_A_CPU = ("processor", "num_threads")


def find_twin(config: TrainConfig, data: Mapping[str, str], folder: Path) -> Path | None:
    """Find a finished run that is the same as this one would be, in a sweep beside the one in `folder`.

    `data` identifies what is trained on (`corpora.identify`). A batch may have come in other parts.
    """
    config = dataclasses.replace(config, data=config.data.absolute())
    wanted = flatten(to_plain(config)) | {"accumulate": None}
    names = [*CODE_AND_MACHINE, *([] if find_device(config.device).type == "cuda" else ON_A_CPU)]
    here = _among(describe_environment(), names)
    if not data or here["commit"] is None or str(here["commit"]).endswith("-dirty"):
        return None
    for path in sorted(folder.parent.glob("*/*")):
        run = Run(path)
        try:
            outcome = run.outcome
            if outcome.get("status") in ("complete", "diverged") and outcome.get("data") == data:
                found = run.settings | {"accumulate": None}
                if found == wanted and _among(run.environment, names) == here and _is_whole(run):
                    return path
        except BytewrightError:  # a damaged run of another sweep cannot be reused
            continue
    return None


def _is_whole(run: Run) -> bool:
    """Return whether the log of a run is complete and was written in one environment."""
    moved = any(record.get("event") == "environment_changed" for record in run.records)
    return not moved and run.status.state in ("complete", "diverged")


def _among(environment: Mapping[str, object], names: list[str]) -> dict[str, object]:
    return {name: environment.get(name) for name in names}


def take_over(twin: Path, run: Path, config: TrainConfig, labels: Labels) -> dict[str, Any]:
    """Copy the record of a run, with the labels of this sweep, and return its outcome."""
    outcome = Run(twin).outcome | {"labels": labels}
    Run(twin).copy_to(run, dataclasses.replace(config, data=config.data.absolute()), outcome)
    return outcome

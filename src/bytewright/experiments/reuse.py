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
from bytewright.experiments.records import read_object, read_run, read_settings
from bytewright.experiments.sweep_file import Labels
from bytewright.storage import atomic
from bytewright.train.config import TrainConfig
from bytewright.train.metrics import read_metrics
from bytewright.train.recipe import flatten, to_plain
from bytewright.train.run import METRICS, MOVED, OUTCOME, RunFolder, describe_environment
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
    for path in sorted(folder.parent.glob(f"*/*/{OUTCOME}")):
        try:
            outcome = read_object(path)
            if outcome.get("status") in ("complete", "diverged") and outcome.get("data") == data:
                found = read_settings(path.parent) | {"accumulate": None}
                there = _among(read_object(path.with_name("environment.json")), names)
                if found == wanted and there == here and _is_whole(path.parent):
                    return path.parent
        except BytewrightError:  # a damaged run of another sweep cannot be reused
            continue
    return None


def _is_whole(run: Path) -> bool:
    """Say whether the lines of a run go to its end and were all made where it began."""
    moved = any(str(line.get("event")).startswith(MOVED) for line in read_metrics(run / METRICS))
    return not moved and read_run(run).status in ("complete", "diverged")


def _among(environment: Mapping[str, object], names: list[str]) -> dict[str, object]:
    return {name: environment.get(name) for name in names}


def take_over(twin: Path, run: Path, config: TrainConfig, labels: Labels) -> dict[str, Any]:
    """Copy the record of a run, with the labels of this sweep, and return its outcome, which comes last.

    The folder is locked meanwhile, as by whoever trains in it.
    """
    outcome = read_object(twin / OUTCOME) | {"labels": labels}
    with RunFolder.create(run, dataclasses.replace(config, data=config.data.absolute())):
        for path in sorted(path for path in twin.rglob("*") if path.is_file() and not path.is_symlink()):
            inner = path.relative_to(twin)
            if inner.parts[0] not in ("checkpoints", OUTCOME) and not path.name.startswith("."):
                atomic.write_bytes(run / inner, atomic.read_bytes(path), within=run)
        atomic.write_document(run / OUTCOME, outcome)
    return outcome

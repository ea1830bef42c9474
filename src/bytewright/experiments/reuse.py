"""Reuse identical runs of sibling sweeps, such as a common baseline.

Two runs are identical if their settings, tokens and plugins (by SHA-256), code (version and commit), machine
and torch version are equal. On a CPU the number of threads must be equal, too, because it affects rounding. A
run is not reused if one of these is unknown, if its log is incomplete, or if it was continued in another
environment. No run is reused if the source tree differs from its commit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bytewright.errors import BytewrightError
from bytewright.experiments.sweep_file import Labels
from bytewright.plugins import plugin_digests
from bytewright.train.config import TrainConfig
from bytewright.train.recipe import flatten, to_plain
from bytewright.train.run import Run
from bytewright.train.run_files import describe_environment
from bytewright.train.setup import select_device

CODE_AND_MACHINE = ("bytewright", "commit", "torch", "platform", "num_cores", "cuda")
ON_A_CPU = ("processor", "num_threads")


def find_identical_run(config: TrainConfig, data: Mapping[str, str], folder: Path) -> Path | None:
    """Return a finished run of a sibling of the sweep in `folder` that `config` would reproduce.

    `data` holds the digests of the data (`corpora.token_digests`). `accumulate` may differ.
    """
    config = dataclasses.replace(config, data=config.data.absolute())
    wanted = flatten(to_plain(config)) | {"accumulate": None}
    plugins = plugin_digests(wanted)
    names = [*CODE_AND_MACHINE, *([] if select_device(config.device).type == "cuda" else ON_A_CPU)]
    here = _select(describe_environment(), names)
    if not data or here["commit"] is None or str(here["commit"]).endswith("-dirty"):
        return None
    for path in sorted(folder.parent.glob("*/*")):
        run = Run(path)
        try:
            outcome = run.outcome
            if outcome.get("status") in ("complete", "diverged") and outcome.get("data") == data:
                found = run.settings | {"accumulate": None}
                is_same = found == wanted and run.plugin_digests == plugins
                if is_same and _select(run.environment, names) == here and _is_complete(run):
                    return path
        except BytewrightError:  # a damaged run of another sweep cannot be reused
            continue
    return None


def _is_complete(run: Run) -> bool:
    """Return whether the log of a run is complete and was written in one environment."""
    moved = any(record.get("event") == "environment_changed" for record in run.records)
    return not moved and run.status.state in ("complete", "diverged")


def _select(environment: Mapping[str, object], names: list[str]) -> dict[str, object]:
    return {name: environment.get(name) for name in names}


def copy_record(source: Path, run: Path, config: TrainConfig, labels: Labels) -> dict[str, Any]:
    """Copy the record of a run, with the labels of this sweep, and return its outcome."""
    outcome = Run(source).outcome | {"labels": labels}
    Run(source).copy_to(run, dataclasses.replace(config, data=config.data.absolute()), outcome)
    return outcome

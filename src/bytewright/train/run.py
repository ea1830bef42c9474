"""`Run`: read, load and resume a run by its folder.

Reading needs no lock, so a run can be read while another process trains it. It does not need torch either:
the functions that load or resume a model import it. `run_model` opens, measures and imports the models of
runs. The names and the writer of a run's files are in `run_files`, its status is derived in `outcome`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from bytewright.errors import BytewrightError, FormatError, UsageError
from bytewright.plugins import RecordedPlugin, check_loaded, read_plugins
from bytewright.storage import atomic
from bytewright.train import run_files
from bytewright.train.checkpoint_list import (
    CHECKPOINTS,
    CheckpointList,
    Which,
    open_checkpoint,
)
from bytewright.train.config import Precision, TrainConfig
from bytewright.train.metrics_log import MetricsReader, read_metrics
from bytewright.train.outcome import RunStatus, find_status, step_limits
from bytewright.train.recipe import check_fields, flatten

if TYPE_CHECKING:  # these import torch or the native extension, which reading a run does not need
    import torch

    from bytewright.model import TransformerLM
    from bytewright.tokenizer import Tokenizer
    from bytewright.train.checkpoint import CheckpointFolder
    from bytewright.train.session.loop import TrainResult
    from bytewright.train.session.start import SessionOptions

STEP_NUMBER = re.compile("[0-9]{1,18}")
"""How a step is written in the name of a file."""
MAX_SAMPLE_BYTES = 2**20


class Run:
    """A run in a folder. `Run(path)` checks nothing; `Run.open` raises if there is no run at `path`."""

    FILE_NAMES = run_files.FILE_NAMES
    """The names that a run's folder uses."""

    def __init__(self, path: atomic.StrPath) -> None:
        self.path = Path(path)

    @classmethod
    def open(cls, path: atomic.StrPath) -> Run:
        """Return the run at `path`; raise `UsageError` if there is none."""
        run = cls(path)
        if not run.path.exists():
            raise UsageError(f"{path} does not exist; name the folder of a run", path=path)
        if not run.exists and not run.is_imported:
            raise UsageError.at(path, run_files.describe_no_run(run.path))
        return run

    @classmethod
    def create(cls, path: atomic.StrPath, config: TrainConfig) -> Run:
        """Create a run in a new or empty folder, without training it; `resume` starts it."""
        run_files.RunWriter.create(Path(path), config).close()
        return cls(path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def exists(self) -> bool:
        """Whether the folder holds a run that was started."""
        return (self.path / run_files.CONFIG).is_file()

    @property
    def is_imported(self) -> bool:
        """Whether the folder holds an imported model: a checkpoint of step 0, without a config."""
        return run_files.is_imported(self.path)

    @property
    def has_checkpoints(self) -> bool:
        """Whether the run has a checkpoint, from which a model can be loaded."""
        return bool(self._checkpoint_list.steps())

    @property
    def has_environment(self) -> bool:
        """Whether the environment is on record; every run writes it before its config."""
        return (self.path / run_files.ENVIRONMENT).is_file()

    @property
    def has_outcome(self) -> bool:
        """Whether a sweep recorded an outcome in the folder: of a run, or of texts that it sampled."""
        return (self.path / run_files.OUTCOME).is_file()

    @property
    def is_locked(self) -> bool:
        """Whether a process writes the run now."""
        return run_files.is_locked(self.path)

    @property
    def config(self) -> TrainConfig:
        """The resolved config, with absolute paths of the data."""
        return run_files.read_run_config(self.path)

    @property
    def settings(self) -> dict[str, Any]:
        """The config with dotted keys; unlike `config`, also of a run that another version wrote.

        An imported model has only the settings of the model. The source of initial weights is in
        `init.source`, `init.sha256`, `init.step` and `init.optimizer`.
        """
        if self.is_imported:
            model = open_checkpoint(self._checkpoint_list.at(0)).about.get("model")
            return flatten({"model": model if isinstance(model, dict) else {}, "init": self.init})
        fields = run_files.read_if_present(self.path / run_files.CONFIG)
        check_fields(fields, self.path / run_files.CONFIG)
        settings = flatten(fields)
        for name in ("data.train", "data.validation", "data.tokenizer"):
            if isinstance(path := settings.get(name), str):
                settings[name] = os.path.normpath(os.path.join(os.path.realpath(self.path), path))
        return settings | flatten({"init": self.init})

    @property
    def plugins(self) -> list[RecordedPlugin]:
        """The plugins that registered parts of the run's config."""
        return read_plugins(self.path)

    @property
    def plugin_digests(self) -> dict[str, str]:
        """SHA-256 of the plugin of each part, by the key of the part."""
        return {key: plugin.sha256 for plugin in self.plugins for key in plugin.parts}

    @property
    def environment(self) -> dict[str, Any]:
        """The machine and the versions that the run started with."""
        return run_files.read_if_present(self.path / run_files.ENVIRONMENT)

    @property
    def init(self) -> dict[str, Any]:
        """Where the weights came from (source, sha256, step, optimizer); empty if they were random."""
        return run_files.read_init(self.path)

    @property
    def costs(self) -> dict[str, Any]:
        """The predicted costs, and those counted on the model; empty if an earlier version wrote the run."""
        return run_files.read_if_present(self.path / run_files.COSTS)

    @property
    def outcome(self) -> dict[str, Any]:
        """What a sweep recorded about the run: labels, prediction, ending; empty without a sweep."""
        return run_files.read_if_present(self.path / run_files.OUTCOME)

    def write_outcome(self, outcome: Mapping[str, Any]) -> None:
        """Record how a sweep ended the run."""
        atomic.write_document(self.path / run_files.OUTCOME, outcome)

    @property
    def records(self) -> list[dict[str, Any]]:
        """All records of the metrics log: metrics and events, in order."""
        path = self.path / run_files.METRICS_LOG
        return list(read_metrics(path)) if path.is_file() else []

    def follow_records(self) -> MetricsReader:
        """Return a reader of the metrics log that reads what is appended to it."""
        return MetricsReader(self.path / run_files.METRICS_LOG)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of the run: one record for each recorded step, without events."""
        return [record for record in self.records if "event" not in record]

    @property
    def status(self) -> RunStatus:
        """Whether the run is active, complete, stopped, diverged, failed or imported, and why it ended."""
        return self.find_status(self.settings, self.records)

    def find_status(self, settings: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> RunStatus:
        """Return the status, given the settings and records that were read before."""
        if self.is_imported:
            return RunStatus("imported", None, 0)
        return find_status(
            settings,
            records,
            outcome=self.outcome,
            num_steps=self._planned_num_steps(settings),
            has_checkpoints=self.has_checkpoints,
            is_locked=self.is_locked,
        )

    def find_num_steps(self, settings: Mapping[str, Any]) -> int | None:
        """Return the number of steps of the run; None if it has only a time limit and no plan on record."""
        planned = self._planned_num_steps(settings)
        return min(step_limits(settings).values(), default=None) if planned is None else planned

    def _planned_num_steps(self, settings: Mapping[str, Any]) -> int | None:
        """Return the length that the last checkpoint of a run of minutes planned, if it still applies."""
        if settings.get("budget.minutes") is None:
            return None
        state = self._last_state()
        config, num_steps = state.get("config"), state.get("num_steps")
        saved = flatten(config) if isinstance(config, Mapping) else {}
        is_same = all(saved.get(key) == settings[key] for key in settings if key.startswith("budget."))
        return num_steps if is_same and isinstance(num_steps, int) else None

    def _last_state(self) -> dict[str, Any]:
        """Return the state.json of the last checkpoint, or nothing if it cannot be read."""
        try:
            return self._checkpoint_list.read_state(self._checkpoint_list.steps()[-1])
        except (IndexError, BytewrightError):
            return {}

    @property
    def data_digests(self) -> dict[str, Any]:
        """SHA-256 of the token files that the run was trained and validated on, where it recorded them."""
        found = self.outcome.get("data") or self._last_state().get("data")
        return found if isinstance(found, dict) else {}

    @property
    def samples(self) -> dict[int, str]:
        """The texts that the model wrote during training, by step."""
        found, folder = {}, self.path / run_files.SAMPLES
        for path in sorted(folder.glob("step-*.txt")) if folder.is_dir() else ():
            number = path.stem.removeprefix("step-")
            if STEP_NUMBER.fullmatch(number):
                check_no_link(path, self.path)
                found[int(number)] = atomic.read_bytes(path, max_bytes=MAX_SAMPLE_BYTES).decode(
                    errors="replace"
                )
        return found

    @property
    def tokenizer_path(self) -> Path | None:
        """The folder of the run's tokenizer, or None if it has none."""
        path = self.path / run_files.TOKENIZER
        return path if path.is_dir() else None

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the run."""
        from bytewright.tokenizer import Tokenizer
        from bytewright.tokenizer.formats import read_vocabulary

        if self.tokenizer_path is None:
            message = (
                f"{self.path} has no tokenizer, so it cannot process text; train with data.tokenizer set"
            )
            raise UsageError(message, path=self.path, key="data.tokenizer")
        return Tokenizer.from_vocabulary(read_vocabulary(self.tokenizer_path))

    @property
    def checkpoints(self) -> CheckpointFolder:
        """The checkpoints of the run."""
        from bytewright.train.checkpoint import CheckpointFolder

        return CheckpointFolder(self.path / CHECKPOINTS)

    @property
    def _checkpoint_list(self) -> CheckpointList:
        return CheckpointList(self.path / CHECKPOINTS)

    def load_model(
        self, *, which: Which = "best", device: torch.device | str = "cpu", precision: Precision = "fp32"
    ) -> TransformerLM:
        """Load the model of the checkpoint with the lowest validation loss, or of the last one."""
        from bytewright.train.saved_model import load_model
        from bytewright.train.setup import dtype_of

        check_loaded(self.path, of_model_only=True)
        return load_model(self.path, which=which, device=device, compute_dtype=dtype_of(precision))

    def resume(
        self, *, changes: Mapping[str, Any] | None = None, **options: Unpack[SessionOptions]
    ) -> TrainResult:
        """Train on from the last checkpoint to the end of the budget; `changes` replaces settings."""
        from bytewright.train.session import start

        return start.resume(self.path, changes=changes, **options)

    @property
    def is_finished_without_checkpoint(self) -> bool:
        """Whether the run has ended and has no checkpoint to resume from, as runs of sweeps do."""
        if not run_files.has_records(self.path) or self._checkpoint_list.steps():
            return False
        return self.status.is_final

    def copy_to(self, path: Path, config: TrainConfig, outcome: Mapping[str, Any]) -> Run:
        """Copy the record of this run, without checkpoints, to a new run of an equal config.

        The new folder is locked during the copy. `outcome` is written last.
        """
        with run_files.RunWriter.create(path, config):
            for file in sorted(f for f in self.path.rglob("*") if f.is_file() and not f.is_symlink()):
                inner = file.relative_to(self.path)
                if inner.parts[0] not in (CHECKPOINTS, run_files.OUTCOME) and not file.name.startswith("."):
                    atomic.write_bytes(path / inner, atomic.read_bytes(file), within=path)
            copied = Run(path)
            copied.write_outcome(outcome)
        return copied

    def change_setting(self, key: str, value: object) -> None:
        """Replace one top-level value of config.json."""
        atomic.write_document(
            self.path / run_files.CONFIG,
            run_files.read_if_present(self.path / run_files.CONFIG) | {key: value},
        )


def check_no_link(path: Path, run: Path) -> None:
    """Raise if a text of a run is behind a symbolic link: a report must not show files from elsewhere."""
    links = [each for each in (path, *path.parents) if each.is_relative_to(run) and each != run]
    if any(each.is_symlink() for each in links):
        raise FormatError.at(path, "is read through a symbolic link; replace the link by a copy")

"""The checkpoints of a run as folders with a state, without their tensors.

Commands such as `bytewright runs` read only this much. `checkpoint` reads and writes the tensors, with torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bytewright.errors import FormatError
from bytewright.formatting import format_names
from bytewright.storage import atomic

FORMAT = "bytewright checkpoint 1"
CHECKPOINTS = "checkpoints"
"""The folder of the checkpoints in the folder of a run."""
STATE = "state.json"
Which = Literal["best", "last"]
"""The checkpoint of a run with the lowest validation loss, or the last one."""


@dataclass(frozen=True)
class CheckpointList:
    """The checkpoints of a run: `step-000500` and so on, each complete or absent."""

    path: Path

    def steps(self) -> list[int]:
        """List the steps that have a checkpoint, the oldest first."""
        names = [entry.name for entry in self.path.iterdir()] if self.path.is_dir() else []
        return sorted(int(name[5:]) for name in names if re.fullmatch(r"step-\d{6,18}", name))

    def at(self, step: int) -> Path:
        """Return the folder of a step."""
        return self.path / f"step-{step:06d}"

    def read_state(self, step: int) -> dict[str, Any]:
        """Read the state of `step` without its tensors."""
        folder = open_checkpoint(self.at(step))
        state = folder.read_json(STATE)
        if not isinstance(state, dict) or state.get("step") != step or "optimizer" not in state:
            raise FormatError.at(folder.path / STATE, f"is not the state of step {step}")
        return state

    def prune(self, keep_last: int, *others: int | None) -> None:
        """Remove all checkpoints but the last few and `others`, and the temporary files of killed writers."""
        for step in self.steps()[:-keep_last]:
            if step not in others:
                atomic.remove_folder(self.at(step), within=self.path.parent)
        atomic.remove_leftovers(self.path, within=self.path.parent)

    def remove_after(self, step: int) -> None:
        """Remove all checkpoints of later steps, the last first: a kill leaves a run that can be resumed."""
        for later in reversed(self.steps()):
            if later > step:
                atomic.remove_folder(self.at(later), within=self.path.parent)


def open_checkpoint(path: Path) -> atomic.Folder:
    """Open the folder of one checkpoint."""
    folder = atomic.open_folder(path)
    if folder.about.get("kind") != FORMAT:
        kind = folder.about.get("kind")
        raise FormatError.at(path, f"is not a checkpoint but {kind!r}", expected=FORMAT, found=kind)
    return folder


def format_runs_in(folder: Path, marker: str) -> str:
    """Return which runs a folder contains that is not a run itself; an empty string if it contains none.

    The folder of a run contains a path that matches `marker`, and is at most two levels below `folder`.
    """
    depth = len(Path(marker).parts)
    found = {path.parents[depth - 1] for level in ("*", "*/*") for path in folder.glob(f"{level}/{marker}")}
    hidden = {run for run in found if any(part.startswith(".") for part in run.relative_to(folder).parts)}
    runs = sorted(str(run) for run in found - hidden)
    return f"is not a run, but contains runs: {format_names(runs)}; name one of them" if runs else ""

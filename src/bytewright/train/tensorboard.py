"""The metrics of a run as TensorBoard events, for those who ask for them; nothing else needs the package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bytewright.errors import UsageError
from bytewright.storage import atomic


def import_summary_writer() -> Any:
    """Import what writes TensorBoard's events, or say what is missing."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UsageError(
            "tensorboard = true needs the package tensorboard, which is not installed; install it with"
            " pip install 'bytewright[tensorboard]', or leave it out: metrics.jsonl is written in any case"
        ) from None
    return SummaryWriter


class TensorBoard:
    """The numbers of each record as TensorBoard scalars; what is there from `first_step` on is hidden."""

    def __init__(self, folder: Path, first_step: int) -> None:
        atomic.check_no_links(folder, within=folder.parent)
        self._writer = import_summary_writer()(str(folder), purge_step=first_step)

    def write(self, record: Mapping[str, Any]) -> None:
        """Add every number of the record at its step."""
        for name, value in record.items():
            if name != "step" and isinstance(value, int | float) and not isinstance(value, bool):
                self._writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        """Write out what is left."""
        self._writer.close()

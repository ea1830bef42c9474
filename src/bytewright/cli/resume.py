"""`bytewright resume`: a run that was stopped, from its last checkpoint on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bytewright.cli import options
from bytewright.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Continue a run from its last checkpoint, bit for bit as if it had never stopped.

    Before that, the config.json of the run may be edited where it leaves the steps so far as they were: how
    often to look and to save, where the data lies, device, compile, accumulate, and budget or schedule if no
    learning rate so far would have been another (so a constant rate can go on longer). The rest is refused.

    For example:
      bytewright resume runs/base
    """

    path: options.RunFolder

    def run(self) -> int:
        """Train on, and say how it ended."""
        from bytewright.cli import console, inputs
        from bytewright.cli.samples import make_sampler
        from bytewright.cli.train import interruption_told, report
        from bytewright.train import resume
        from bytewright.train.run_folder import config_of

        run = inputs.require_exists(self.path)
        refuse_to_begin_again(run)
        with interruption_told(run):
            return report(resume(run, sample=make_sampler(config_of(run)), console=console.stderr()))


def refuse_to_begin_again(run: Path) -> None:
    """Raise if a run has come to its end and keeps no checkpoint, as those of sweeps: it would be lost."""
    from bytewright.lab.records import read_run
    from bytewright.train.checkpoint import CheckpointFolder

    if not (run / "config.json").is_file() or CheckpointFolder(run / "checkpoints").steps():
        return
    status = read_run(run).status
    if status in ("complete", "diverged"):
        ended = "is complete" if status == "complete" else "has diverged"
        raise UsageError(f"{run} {ended}, and its checkpoints were not kept; there is nothing to go on from")

"""`bytewright resume`: a run that was stopped, from its last checkpoint on."""

from __future__ import annotations

from dataclasses import dataclass

from bytewright.cli import options


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Continue a run from its last checkpoint, bit for bit as if it had never stopped.

    Before that, you may edit the config.json of the run, if you also remove its "checksum". These values may
    change: how often to record, evaluate and save, the paths of the data, device, compile, accumulate, and
    budget or schedule if the learning rates of all completed steps stay the same. Other changes are rejected.

    For example:
      bytewright resume runs/base
    """

    path: options.RunFolder

    def run(self) -> int:
        """Train on, and say how it ended."""
        from bytewright.cli import console, inputs
        from bytewright.cli.train import interruption_told, report
        from bytewright.train import resume

        run = inputs.require_exists(self.path)
        with interruption_told(run):
            return report(resume(run, console=console.stderr()))

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
        from bytewright.cli.samples import make_sampler
        from bytewright.cli.train import interruption_told, report
        from bytewright.lab.records import refuse_to_begin_again
        from bytewright.train import resume
        from bytewright.train.run_folder import config_of

        run = inputs.require_exists(self.path)
        refuse_to_begin_again(run)
        with interruption_told(run):
            return report(resume(run, sample=make_sampler(config_of(run)), console=console.stderr()))

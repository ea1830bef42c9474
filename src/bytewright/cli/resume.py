"""`bytewright resume`: a run that was stopped, from its last checkpoint on."""

from __future__ import annotations

from dataclasses import dataclass

from bytewright.cli import options


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
        from bytewright.lab.records import refuse_to_begin_again
        from bytewright.train import resume
        from bytewright.train.run_folder import config_of

        run = inputs.require_exists(self.path)
        refuse_to_begin_again(run)
        with interruption_told(run):
            return report(resume(run, sample=make_sampler(config_of(run)), console=console.stderr()))

"""`bytewright report`: runs to one page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from bytewright.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Report:
    """Write the report of one run, of several side by side, or of a whole sweep.

    A report is report.html (one file, to be opened in any browser), report.md with its figures beside it, and
    results.json, the numbers themselves, from which the report can be made again without the runs. They go
    into the folder of the run or of the sweep; runs from several folders need --out.

    For example:
      bytewright report runs/base
      bytewright report runs/learning_rate
      bytewright report runs/first runs/second --out comparison
    """

    paths: Annotated[
        tuple[Path, ...],
        tyro.conf.Positional,
        tyro.conf.arg(
            metavar="RUN …",
            help="Folders of runs, one folder of a sweep, or one results.json.",
            help_behavior_hint="(required)",
        ),
    ] = ()

    out: Annotated[
        Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="(default: beside the runs)")
    ] = None
    """Where to write it."""

    def run(self) -> None:
        """Write the report, and say where it is."""
        from bytewright.cli import console, inputs
        from bytewright.experiments.inputs import read_inputs
        from bytewright.report.compose import write_report

        first, *others = inputs.require_some(self.paths, "a run")
        if self.out is None and others:
            raise UsageError("several runs have no folder of their own; say with --out where the report goes")
        about, records = read_inputs(self.paths)
        for name, reason in about.unreadable.items() if about else ():
            console.stderr().print(f"left out: {name}, which cannot be read: {reason}", soft_wrap=True)
        folder = self.out or (first.parent if first.is_file() else first)
        console.stdout().print(str(write_report(records, about, folder)), soft_wrap=True)

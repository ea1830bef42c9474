"""`bytewright runs`: what has been tried."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

SPARED = ("started", "tokens", "seconds", "tokens_per_second")
"""The figures that a narrow terminal does without, one after the other; --json has them all."""


@dataclass(frozen=True, kw_only=True)
class Runs:
    """List the runs below a folder, with their key figures.

    --where keeps the runs that meet a condition on any figure or setting, or on the variant of a sweep;
    --sort orders them by one, and with a minus before it downwards. A setting is called by its full name or
    by the last part of it.

    For example:
      bytewright runs
      bytewright runs runs/learning_rate --where 'lr<=1e-2' --where status=complete --sort validation_loss
      bytewright runs runs/silu_ffn --where variant=silu
      bytewright runs --sort=-started --json
    """

    folders: Annotated[
        tuple[Path, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="FOLDER …", help="Where to look.", help_behavior_hint="(default: runs)"),
    ] = (Path("runs"),)

    where: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="CONDITION")] = ()
    """Keep the runs for which this holds, such as lr<=1e-3; may be given several times."""

    sort: Annotated[str | None, tyro.conf.arg(metavar="KEY", help_behavior_hint="(default: by name)")] = None
    """The figure or setting to sort by."""

    json: bool = False
    """Print all figures and settings as JSON."""

    def run(self) -> None:
        """List."""
        import json

        from bytewright.cli import console
        from bytewright.experiments.listing import (
            KEY_FIGURES,
            UNREADABLE,
            choose,
            list_runs,
            sort_rows,
            word_figure,
        )

        rows = sort_rows(choose(list_runs(self.folders), self.where), self.sort)
        if self.json:
            print(json.dumps(rows, indent=2, allow_nan=False))
            return
        if not rows:
            print("No runs.")
            return
        shown = [name for name in KEY_FIGURES if any(row.get(name) is not None for row in rows)]
        out = console.stdout()
        unbounded = out.options.update(max_width=10_000)
        for left_out in range(len(SPARED) + 1):
            kept = [name for name in shown if name not in SPARED[:left_out]]
            table = console.table(*(name.replace("_", " ") for name in kept))
            for row in rows:
                table.add_row(*(word_figure(name, row.get(name)) for name in kept))
            if out.measure(table, options=unbounded).maximum <= out.width:
                break
        out.print(table)
        for row in rows:
            if row["status"] == UNREADABLE:
                console.stderr().print(f"{UNREADABLE}: {row['reason']}", soft_wrap=True)
            elif row["status"] in ("diverged", "failed"):
                console.stderr().print(f"{row['run']} {row['status']}: {row['reason']}", soft_wrap=True)

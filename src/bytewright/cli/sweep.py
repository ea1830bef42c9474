"""`bytewright sweep`: a question, all its runs, and the report that answers it."""

from __future__ import annotations

import itertools
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from bytewright.cli import console, inputs, options
from bytewright.errors import UsageError
from bytewright.formatting import format_seconds

if TYPE_CHECKING:
    from bytewright.experiments.execute import SweepContext
    from bytewright.experiments.plan import Planned
    from bytewright.experiments.sweep import Sweep
    from bytewright.train.engine import CompiledStepCache


@dataclass(frozen=True, kw_only=True)
class RunSweep:
    """Carry out all runs of a sweep file, and write the report.

    The plan is shown first, with the time and memory that each run is predicted to take. What is done is
    passed over and what was cut off goes on where it stopped, so the same command, given again, finishes a
    sweep that was interrupted. A run that diverges is marked, and the others go on. Metrics are kept, models
    only of a sweep that says keep = "model".

    For example:
      bytewright sweep recipes/learning_rate.toml
      bytewright sweep recipes/learning_rate.toml --scale smoke
      bytewright sweep recipes/no_norm.toml recipes/post_norm.toml --set budget.tokens=1_000_000
    """

    files: Annotated[
        tuple[Path, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="FILE …", help="Sweep files: TOML.", help_behavior_hint="(required)"),
    ] = ()

    out: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("runs")
    """Where each sweep gets a folder of its own."""

    data: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("data")
    """Where corpora are made and found."""

    scale: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="(default: as it is)")] = (
        None
    )
    """Which of the file's scales to use, such as smoke."""

    jobs: int = 1
    """How many runs go on at once, each in a process of its own: for small models on a CPU and runs of
    minutes. Each starts anew, which takes seconds, so runs of seconds are done sooner one after the other.
    Settings that sample from one model wait for each other."""

    only: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="RUN")] = ()
    """Carry out this run of the sweep; may be given several times."""

    plan: bool = False
    """Show the plan, and start nothing."""

    set: options.Overrides = ()
    """Values to replace in every run, such as budget.tokens=1_000_000."""

    def run(self) -> int:
        """Plan, carry out, report."""
        inputs.require_at_least(1, self.jobs, "--jobs")
        from bytewright.experiments.sweep import read_sweep
        from bytewright.train.engine import CompiledStepCache

        paths = inputs.require_some(self.files, "a sweep file")
        overrides = options.list_overrides(self.set)
        sweeps = [
            read_sweep(inputs.require_file(path), scale=self.scale, overrides=overrides) for path in paths
        ]
        folders = [self.out / (path.stem + (f"-{self.scale}" if self.scale else "")) for path in paths]
        if len(set(folders)) < len(folders):
            raise UsageError("two of the sweep files have one name, and would share a folder")
        code, engines = 0, CompiledStepCache()
        for path, sweep, folder in zip(paths, sweeps, folders, strict=True):
            code = max(code, self._carry_out(path, sweep, folder, engines))
            if code >= 128:
                break
        return code

    def _carry_out(self, path: Path, sweep: Sweep, folder: Path, engines: CompiledStepCache) -> int:
        from bytewright.experiments import execute
        from bytewright.experiments.inputs import read_sweep_folder
        from bytewright.experiments.plan import make_plan
        from bytewright.report.compose import write_report

        with console.progress() as report:
            plan = make_plan(sweep, folder, only=self.only, jobs=self.jobs, report=report)
        if self.plan or not self.only:
            show_plan(sweep, plan)
        if self.plan:
            return 0
        with console.progress() as report:
            bench = self._context(folder, sweep, report, engines)
            made = execute.prepare_data([planned.trial for planned in plan if planned.is_open], bench)
        execute.write_plan(sweep, folder)
        try:
            num_jobs = min(self.jobs, len(plan))  # by all runs, not by those that are left: it decides bits
            if num_jobs > 1 and not any(planned.trial.sampling for planned in plan):
                if stopped := self._at_once(path, plan, folder, num_jobs):
                    return stopped
            else:
                execute.carry_out_all(plan, made, bench)
        except execute.Stopped as stop:
            bench.say(f"{folder}: saved after {stop.received.name}; the same command goes on from there.")
            return 128 + stop.received
        except KeyboardInterrupt:  # of several at once, each has saved; one alone would have said so above
            bench.say(f"{folder}: saved after SIGINT; the same command goes on from there.")
            return 128 + signal.SIGINT
        failed = [
            planned.trial.name for planned in make_plan(sweep, folder, only=self.only) if planned.is_open
        ]
        if not self.only:
            about, records = read_sweep_folder(folder)
            if not records:
                bench.say(f"{folder}: has no report, for every run failed as it began.")
                return 1
            console.stdout().print(str(write_report(records, about, folder)), soft_wrap=True)
        return 1 if failed else 0

    def _context(
        self, folder: Path, sweep: Sweep, report: console.Report, engines: CompiledStepCache
    ) -> SweepContext:
        from rich.console import Console

        from bytewright.experiments.execute import SweepContext

        screen = console.stderr()
        return SweepContext(
            folder=folder,
            data_root=self.data,
            keep=sweep.keep,
            say=lambda sentence: screen.print(sentence, soft_wrap=True),
            report=report,
            console=screen if screen.is_terminal else Console(quiet=True),
            engines=engines,
        )

    def _at_once(self, path: Path, plan: list[Planned], folder: Path, num_jobs: int) -> int:
        from bytewright.experiments.jobs import run_at_once

        screen = console.stderr()
        shared = ["--out", str(self.out), "--data", str(self.data)]
        shared += ["--jobs", str(min(self.jobs, sum(planned.is_open for planned in plan)))]
        shared += ["--scale", self.scale] if self.scale else []
        shared += ["--set", *options.list_overrides(self.set)] if self.set else []
        commands = {
            planned.trial.name: [
                *(sys.executable, "-m", "bytewright.cli.main", "sweep", str(path)),
                *("--only", planned.trial.name, *shared),
            ]
            for planned in plan
            if planned.is_open
        }
        numbers = itertools.count(1)

        def say(name: str, code: int, words: str) -> None:
            """Repeat the last words of a process, with the number that the run has here."""
            words = words.removeprefix("[1/1] ")
            screen.print(f"[{next(numbers)}/{len(commands)}] {words}", soft_wrap=True)

        return run_at_once(commands, num_jobs, folder / "logs", say)


def show_plan(sweep: Sweep, plan: list[Planned]) -> None:
    """Print what will be done, and what it will take."""
    table = console.table("run", "steps", "time", "memory", "state")
    table.columns[-1].justify = "left"
    seconds = 0.0
    for planned in plan:
        config, predicted = planned.trial.config, planned.predicted
        parts = f", in {config.accumulate} parts" if config.accumulate > 1 else ""
        sampling = planned.trial.sampling
        table.add_row(
            planned.trial.name,
            "" if sampling or not config.num_steps else f"{config.num_steps:,}",
            format_seconds(predicted["seconds"]) if "seconds" in predicted else "",
            console.format_bytes(predicted["memory_bytes"]) if "memory_bytes" in predicted else "",
            f"{planned.detail}, {sampling.num_stories:,} stories" if sampling else planned.detail + parts,
        )
        seconds += predicted.get("seconds", 0.0) if planned.is_open else 0.0
    out = console.stdout()
    out.print(": ".join(filter(None, (sweep.about.name, sweep.about.question))), soft_wrap=True)
    out.print(table)
    left = sum(planned.is_open for planned in plan)
    cost = f", about {format_seconds(seconds)} of training" if seconds else ""
    out.print(f"{left} of {len(plan)} runs to do{cost}.")
    sys.stdout.flush()  # in a pipe, too, the plan comes before the work

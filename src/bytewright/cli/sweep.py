"""`bytewright sweep`, `runs`, `report` and `fit`: run experiments, list them, report on them, fit laws."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from bytewright.cli import console, options
from bytewright.errors import UsageError
from bytewright.formatting import format_bytes, format_names, format_seconds
from bytewright.laws import NUM_RESAMPLES
from bytewright.shipped_recipes import find_recipe

if TYPE_CHECKING:
    from bytewright.experiments.plan import PlannedRun
    from bytewright.experiments.sweep import Sweep
    from bytewright.report.page import Table
    from bytewright.train.session.engine import CompiledStepCache


@dataclass(frozen=True, kw_only=True)
class RunSweep:
    """Execute all runs of a sweep file, and write a report.

    The plan is printed first, with the expected time and memory of each run; for the time, a few short steps
    are timed on a CPU. After each run, the time left follows from the runs so far. Complete runs are skipped
    and interrupted runs are resumed, so the same command finishes an interrupted sweep. A run that diverges
    is marked, and the others continue. Metrics are always saved, models only with keep = "model" in the file.

    For example:
      bytewright sweep learning_rate
      bytewright sweep learning_rate --scale smoke
      bytewright sweep no_norm post_norm my_sweep.toml --set budget.tokens=1_000_000
    """

    files: Annotated[tuple[Path, ...], tyro.conf.Positional, options.arg("SWEEP …", "(required)")] = ()
    """TOML files, or names of sweeps that come with Bytewright."""
    out: options.OutputFolder = Path("runs")
    """The folder in which each sweep has its own folder."""
    data: options.OutputFolder = Path("data")
    """The folder of the corpora; missing ones are created."""
    scale: Annotated[str | None, options.arg("NAME", "(default: none)")] = None
    """The scale to apply to the sweep file, such as smoke."""
    jobs: int = 1
    """The number of runs at the same time, each in its own process and, with several GPUs, on its own GPU."""
    only: Annotated[options.Repeated, tyro.conf.arg(metavar="RUN")] = ()
    """Execute only this run of the sweep; may be given several times."""
    plan: bool = False
    """Print the plan and exit."""
    set: options.Overrides = ()
    """Values to replace in every run, such as budget.tokens=1_000_000."""
    plugin: options.Plugins = ()

    def run(self) -> int:
        """Plan and execute the runs, and write the report."""
        options.require_at_least(1, self.jobs, "--jobs")
        if os.environ.get("WORLD_SIZE", "1") != "1":
            message = "a sweep cannot run under torchrun; start it without, and use --jobs for several GPUs"
            raise UsageError(message, key="WORLD_SIZE")
        paths = [
            options.require_file(find_recipe(path))
            for path in options.require_some(self.files, "SWEEP", "sweep")
        ]
        from bytewright.experiments.sweep import read_sweep
        from bytewright.train.session.engine import CompiledStepCache

        overrides = options.list_overrides(self.set)
        with options.errors_of_overrides(overrides):
            sweeps = [read_sweep(path, scale=self.scale, overrides=overrides) for path in paths]
        folders = [self.out / (path.stem + (f"-{self.scale}" if self.scale else "")) for path in paths]
        if len(set(folders)) < len(folders):
            message = "two of the sweep files have the same name and would share a folder"
            raise UsageError(f"{message}; run them separately, with another --out")
        code, engines = 0, CompiledStepCache()
        for path, sweep, folder in zip(paths, sweeps, folders, strict=True):
            code = max(code, self._execute(path, sweep, folder, engines))
            if code >= 128:
                break
        return code

    def _execute(self, path: Path, sweep: Sweep, folder: Path, engines: CompiledStepCache) -> int:
        from rich.console import Console

        from bytewright.experiments import execute
        from bytewright.experiments.plan import make_plan, with_times

        with console.progress() as show:
            plan = make_plan(sweep, folder, only=self.only, jobs=self.jobs, progress=show)
        if self.plan or len(self.only) != 1:  # a process for one run prints neither a plan nor the time left
            plan = with_times(plan)
        if self.plan or not self.only:
            print_plan(sweep, plan)
        if self.plan:
            return 0
        with console.progress() as show:
            stderr = console.stderr()
            context = execute.SweepContext(
                folder=folder,
                data_root=self.data,
                keep=sweep.keep,
                print_line=console.print_remark,
                progress=show,
                console=stderr if stderr.is_terminal else Console(quiet=True),
                engines=engines,
            )
            data = execute.prepare_data([planned.trial for planned in plan if planned.is_open], context)
        execute.write_plan(sweep, folder)
        try:
            # Count all runs, not only open ones: the number of threads affects rounding.
            num_jobs = min(self.jobs, len(plan))
            if num_jobs > 1 and not any(planned.trial.sampling for planned in plan):
                if stopped := self._execute_in_parallel(path, plan, folder, num_jobs):
                    return stopped
            else:
                execute.execute_plan(plan, data, context)
        except execute.SweepStopped as stop:
            context.print_line(f"{folder}: saved after {stop.received.name}; the same command continues.")
            return 128 + stop.received
        except KeyboardInterrupt:  # parallel runs: each of them has saved
            context.print_line(f"{folder}: saved after SIGINT; the same command continues.")
            return 128 + signal.SIGINT
        return self._report(sweep, folder)

    def _report(self, sweep: Sweep, folder: Path) -> int:
        """Write the report of the whole sweep, and return 1 if a run failed."""
        from bytewright.experiments.inputs import read_sweep_folder
        from bytewright.experiments.plan import make_plan
        from bytewright.report.compose import write_report

        has_failed = any(planned.is_open for planned in make_plan(sweep, folder, only=self.only))
        if not self.only:
            about, records = read_sweep_folder(folder)
            if not records:
                console.print_remark(f"{folder}: every run failed at its start, so there is no report.")
                return 1
            console.print_line(str(write_report(records, about, folder)))
        return int(has_failed)

    def _execute_in_parallel(self, path: Path, plan: list[PlannedRun], folder: Path, num_jobs: int) -> int:
        from bytewright.experiments.execute import list_gpus, run_commands

        shared = ["--out", str(self.out), "--data", str(self.data)]
        shared += ["--jobs", str(min(self.jobs, sum(planned.is_open for planned in plan)))]
        shared += ["--scale", self.scale] if self.scale else []
        shared += ["--set", *options.list_overrides(self.set)] if self.set else []
        shared += [word for path in self.plugin for word in ("--plugin", str(path))]
        commands = {
            planned.trial.name: [
                *(sys.executable, "-m", "bytewright.cli.main", "sweep", str(path)),
                *("--only", planned.trial.name, *shared),
            ]
            for planned in plan
            if planned.is_open
        }
        numbers = itertools.count(1)

        def print_last_line(name: str, code: int, line: str) -> None:
            """Print the last line of a process with the number of its run in this sweep."""
            console.print_remark(f"[{next(numbers)}/{len(commands)}] {line.removeprefix('[1/1] ')}")

        return run_commands(commands, num_jobs, folder / "logs", print_last_line, gpus=list_gpus())


def print_plan(sweep: Sweep, plan: list[PlannedRun]) -> None:
    """Print the runs of a sweep with their predicted time and memory."""
    rows, seconds = [], 0.0
    for planned in plan:
        config, predicted = planned.trial.config, planned.predicted
        parts = f", in {config.accumulate} parts" if config.accumulate > 1 else ""
        sampling = planned.trial.sampling
        row = (
            planned.trial.name,
            "" if sampling or not config.num_steps else f"{config.num_steps:,}",
            "" if planned.seconds is None else format_seconds(planned.seconds),
            format_bytes(predicted["memory_bytes"]) if "memory_bytes" in predicted else "",
            f"{planned.detail}, {sampling.num_stories:,} stories" if sampling else planned.detail + parts,
        )
        rows.append(row)
        seconds += (planned.seconds or 0.0) if planned.is_open else 0.0
    console.print_line(": ".join(filter(None, (sweep.about.name, sweep.about.question))))
    console.print_table(("run", "steps", "time", "memory", "state"), rows, left=(0, 4))
    left = sum(planned.is_open for planned in plan)
    cost = f", about {format_seconds(seconds)} of training" if seconds else ""
    console.print_line(f"{left} of {len(plan)} runs to do{cost}.")
    sys.stdout.flush()  # so that the plan appears before the work in a pipe, too


HEADINGS = {
    "validation_loss": "validation loss (windows)",
    "bits_per_byte": "bits per byte (windows)",
    "document_bits_per_byte": "bits per byte (whole documents)",
}
"""The headings of columns that do not have the name of the figure."""
OPTIONAL_COLUMNS = ("started", "plugins", "tokens", "seconds", "tokens_per_second", "init")
"""The columns that are left out, in this order, if the terminal is too narrow; --json has all of them."""


@dataclass(frozen=True, kw_only=True)
class ListRuns:
    """List the runs in a folder and its subfolders with their key figures.

    --where selects runs by a condition on any figure or setting, or on the variant of a sweep. The option
    --sort sorts them by a figure or setting; a minus before its name means descending order. A setting can be
    given by its full name or by its last part.

    For example:
      bytewright runs
      bytewright runs runs/learning_rate --where 'lr<=1e-2' --where status=complete --sort validation_loss
      bytewright runs runs/silu_ffn --where variant=silu
      bytewright runs --sort=-started --json
    """

    folders: Annotated[tuple[Path, ...], tyro.conf.Positional, options.arg("FOLDER …", "(default: runs)")] = (
        Path("runs"),
    )
    """The folders to search."""
    where: Annotated[options.Repeated, tyro.conf.arg(metavar="CONDITION")] = ()
    """Select the runs for which this is true, such as lr<=1e-3; may be given several times."""
    sort: Annotated[str | None, options.arg("KEY", "(default: by name)")] = None
    """The figure or setting to sort by."""
    json: bool = False
    """Print all figures and settings as JSON."""

    def run(self) -> None:
        """Read the runs and print them."""
        import json

        from bytewright.experiments.listing import KEY_FIGURES, UNREADABLE, format_figure, list_runs

        rows = list_runs(self.folders, where=self.where, sort=self.sort)
        if self.json:
            print(json.dumps(rows, indent=2, allow_nan=False))
            return
        if not rows:
            print("No runs.")
            return
        shown = [name for name in KEY_FIGURES if any(row.get(name) is not None for row in rows)]
        out = console.stdout()
        unbounded = out.options.update(max_width=10_000)
        for left_out in range(len(OPTIONAL_COLUMNS) + 1):
            kept = [name for name in shown if name not in OPTIONAL_COLUMNS[:left_out]]
            table = console.table(*(HEADINGS.get(name, name.replace("_", " ")) for name in kept))
            for row in rows:
                table.add_row(*(format_figure(name, row.get(name)) for name in kept))
            if out.measure(table, options=unbounded).maximum <= out.width:
                break
        out.print(table)
        for row in rows:
            if row["status"] == UNREADABLE:
                console.print_remark(f"{UNREADABLE}: {row['reason']}")
            elif row["status"] in ("diverged", "failed"):
                console.print_remark(f"{row['run']} {row['status']}: {row['reason']}")


@dataclass(frozen=True, kw_only=True)
class WriteReport:
    """Write a report about one run, several runs, or a sweep.

    A report consists of report.html (one file for any browser), report.md with a folder of figures, and
    results.json with the numbers. The report can be written again from results.json without the runs. All
    files are written to the folder of the run or the sweep; several runs need --out.

    For example:
      bytewright report runs/base
      bytewright report runs/learning_rate
      bytewright report runs/first runs/second --out comparison
    """

    paths: Annotated[tuple[Path, ...], tyro.conf.Positional, options.arg("RUN …", "(required)")] = ()
    """Folders of runs, one folder of a sweep, or one results.json."""
    out: Annotated[Path | None, options.arg("FOLDER", "(default: the folder of the run)")] = None
    """The folder of the report."""

    def run(self) -> None:
        """Write the report, and print its path."""
        for path in self.paths:
            _require_runs(path, "report")
        from bytewright.experiments.inputs import read_inputs
        from bytewright.report.compose import write_report

        first, *others = options.require_some(self.paths, "RUN", "report")
        if self.out is None and others:
            raise UsageError("a report about several runs needs --out", key="--out")
        about, records = read_inputs(self.paths)
        for name, reason in about.unreadable.items() if about else ():
            console.print_remark(f"left out {name}, which cannot be read: {reason}")
        folder = self.out or (first.parent if first.is_file() else first)
        console.print_line(str(write_report(records, about, folder)))


@dataclass(frozen=True, kw_only=True)
class FitLaw:
    """Fit a scaling law to runs, and compare the ways to estimate its limit.

    The law is L = E + A/N^a + B/D^b, where N is the number of parameters and D the number of training tokens.
    It is fitted by variable projection, with the known entropy of the text as E and without it. Intervals
    resample seeds. Parabolas at equal compute estimate the best size. A table compares the E of each
    procedure with the known one.

    The points are the complete runs of a sweep, or a JSON file:
      {"unit": "bits per byte", "points": [{"parameters": 1e6, "tokens": 1e8, "seed": 0, "loss": 0.3,
      "floor": 0.2}, …]}

    For example:
      bytewright fit runs/isoflop_low --out fit
      bytewright fit points.json --kind fact
    """

    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SWEEP")]
    """The folder of a sweep, a results.json, or a file of points."""
    out: Annotated[Path | None, options.arg("FOLDER", "(default: the folder of the input)")] = None
    """The folder of fit.html, fit.md with its figures, and fit.json."""
    objective: Literal["linear", "log", "huber"] = "log"
    """What to minimise: squared residuals of the loss or its logarithm, or Huber's function of the latter."""
    kind: Annotated[str | None, options.arg("NAME", "(default: all)")] = None
    """Fit the excess bits of one kind of choice, such as fact, if the points state them."""
    resamples: int = NUM_RESAMPLES
    """The number of resamples for the intervals."""
    json: bool = False
    """Print the results as JSON."""

    def run(self) -> None:
        """Fit, print the tables, and write the page."""
        import json

        _require_runs(self.path, "fit")
        options.require_at_least(2, self.resamples, "--resamples")
        from bytewright.laws.analysis import analyse, to_json
        from bytewright.laws.points import read_points
        from bytewright.report import laws
        from bytewright.train.metrics import finite

        points = read_points(self.path)
        if self.kind is not None:
            points = points.select_kind(self.kind)
        with console.phase_progress("fit", "laws") as progress:
            analysis = analyse(
                points, objective=self.objective, num_resamples=self.resamples, progress=progress
            )
        page = laws.write_law_report(analysis, self.out or self._own_folder())
        if self.json:
            print(json.dumps(finite(to_json(analysis)), allow_nan=False))
            return
        _print_table(laws.table_of_laws(analysis), "Laws")
        if analysis.levels:
            _print_table(laws.table_of_levels(analysis), "Levels of compute")
        if analysis.optima:
            _print_table(laws.table_of_optima(analysis), "Best use of compute")
        _print_table(laws.table_of_recovery(analysis), "Recovery of E")
        if analysis.predictions:
            _print_table(laws.table_of_exponents(analysis), "Predicted exponents")
        for note in analysis.notes:
            console.print_remark(note)
        console.print_line(str(page))

    def _own_folder(self) -> Path:
        return self.path.parent if self.path.is_file() else self.path


def _require_runs(path: Path, command: str) -> None:
    """Raise `UsageError` if `path` does not exist, or only contains sweeps or runs; the error names them."""
    options.require_exists(path)
    from bytewright.experiments.listing import find_runs
    from bytewright.experiments.results import RESULTS, SWEEP

    if path.is_file() or (path / SWEEP).is_file() or (path / RESULTS).is_file():
        return
    runs = list(find_runs(path, depth=2))
    if not runs and command == "fit":
        problem = "is not the folder of a sweep; name one, its results.json, or a JSON file of points"
        raise UsageError.at(path, problem)
    if not runs or path in runs:
        return
    sweeps = list(dict.fromkeys(run.parent for run in runs if (run.parent / SWEEP).is_file()))
    single = [run for run in runs if run.parent not in sweeps]
    found = [f"sweep {sweep}" for sweep in sweeps] + [f"run {run}" for run in single]
    example = f"bytewright {command} {(sweeps or single)[0]}"
    contents = format_names(found)
    message = f"{path} is neither a run nor a sweep, but contains {contents}; name one, as in `{example}`"
    raise UsageError(message, path=path, found=found)


def _print_table(table: Table, title: str) -> None:
    """Print a table of a report."""
    from bytewright.report.page import format_rows

    left = [n for n in range(len(table.columns)) if n == 0 or table.columns[n] == "points"]
    console.print_table(table.columns, format_rows(table), title=title, left=left)

"""The state and the records of all runs below the folder, read incrementally while a page shows them.

`RunTable.refresh` compares the times and sizes of a run's files with those of the last time, and reads only
runs that changed; of the metrics log it reads only new lines. Every change increments a version number. A
stream sends the changes after the last version that it has sent, so no events are queued for slow clients. A
run whose files cannot be read is `broken`, with the reason. A refresh stops after `REFRESH_SECONDS`. The next
refresh reads the runs that it did not reach; a new run has the state "reading" until then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bytewright.errors import BytewrightError
from bytewright.experiments.records import RunRecord, measured_costs, read_document_figures, read_floor
from bytewright.studio.context import Studio
from bytewright.studio.folder import Found, Scan, StudioFolder
from bytewright.train.metrics import finite, is_finite
from bytewright.train.run import Run
from bytewright.train.run_files import CONFIG, FILE_NAMES, INIT

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
REFRESH_SECONDS = 0.5
"""After this time a refresh ends, so that the page shows the first of many runs at once."""
SPEED_RECORDS = 20
"""The remaining time is estimated from the speed over this many last records."""
RESULTS = ("loss", "validation_loss", "bits_per_byte")
COSTS = ("tokens", "seconds", "tokens_per_second", "mfu")


class WatchedRun:
    """One run: its summary, its records, and the version of its last change."""

    def __init__(self, found: Found) -> None:
        self.id, self.name, self.run = found.id, found.name, Run(found.path)
        self.reader = self.run.follow_records()
        self.version = 0
        self.last_refresh = 0
        """The number of its last refresh, counted over all runs; the run with the lowest is read first."""
        self.summary: dict[str, Any] = {
            "id": found.id,
            "name": found.name,
            "reports": [],
            "state": "reading",
            "detail": "",
        }
        self._signature: object = None
        self._settings: dict[str, Any] = {}
        self._settings_signature: object = None

    def refresh(self, version: int, reports: Sequence[Found]) -> bool:
        """Read what has changed; return whether the summary or the records have a new version."""
        files = [_stat(self.run.path / name) for name in FILE_NAMES]
        signature = (files, self.run.is_locked, [report.id for report in reports])
        if signature == self._signature:
            return False
        self._signature = signature
        listed = [{"id": report.id, "name": report.name} for report in reports]
        summary: dict[str, Any] = {"id": self.id, "name": self.name, "reports": listed}
        try:
            summary |= self._read()
        except (BytewrightError, OSError, ArithmeticError, TypeError, ValueError, LookupError) as error:
            reason = str(error) or type(error).__name__
            summary |= {"state": "broken", "detail": reason.replace(f"{self.run.path}{os.sep}", "")}
        self.version, self.summary = version, finite(summary)
        return True

    def _read(self) -> dict[str, Any]:
        run, settings = self.run, self._read_settings()
        self.reader.update()
        records = self.reader.records
        status = run.find_status(settings, records)
        lines = [record for record in records if "event" not in record]
        num_steps = run.find_num_steps(settings)
        documents = read_document_figures(run.outcome, lines, run.path)
        floor = read_floor(settings.get("data.validation"))
        record = RunRecord(name=self.name, settings=settings, lines=lines, status=status.state)
        results = lines if record.has_results else []
        costs = {name: _last_value(lines, name) for name in COSTS}
        if status.state != "running":  # as `bytewright runs`: the speed is the median
            costs |= measured_costs(lines)
        return {
            "state": status.state,
            "ending": status.ending and status.ending.label,
            "detail": status.detail,
            "step": record.num_steps,
            "num_steps": num_steps,
            "has_curve": any(_last_value(lines, name) is not None for name in RESULTS),
            **{name: _last_value(results, name) for name in RESULTS},
            **{name: costs[name] for name in COSTS},
            "document_bits_per_byte": documents.get("document_bits_per_byte") if record.has_results else None,
            "parameters": _number_in(run.costs.get("counted"), "parameters"),
            "floor": floor,
            "floor_nats": _floor_in_nats(lines, floor),
            "seconds_left": estimate_seconds_left(lines, settings, num_steps)
            if status.state == "running"
            else None,
            "started": started if isinstance(started := run.environment.get("started"), str) else None,
        }

    def _read_settings(self) -> dict[str, Any]:
        """Return the settings of the run; they are read again only if their files changed."""
        signature = [_stat(self.run.path / name) for name in (CONFIG, INIT)]
        if signature != self._settings_signature:
            self._settings = self.run.settings
            self._settings_signature = signature
        return self._settings


class RunTable:
    """All runs below the folder. Methods may be called from any thread."""

    def __init__(self, folder: StudioFolder, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder = folder
        self.version = 0
        self.is_complete = False
        """Whether the last refresh reached all runs."""
        self._clock = clock
        self.runs: dict[str, WatchedRun] = {}
        self._lock = threading.Lock()
        self._num_refreshed = 0

    def refresh(self) -> int:
        """Read what has changed since the last time; return the version of the last change."""
        with self._lock:
            scan = self.folder.scan()
            runs = {id: self.runs.get(id) or WatchedRun(found) for id, found in scan.runs.items()}
            has_changed = runs.keys() != self.runs.keys()
            reports = _reports_by_folder(scan)
            end = self._clock() + REFRESH_SECONDS
            self.is_complete = True
            for run in sorted(runs.values(), key=lambda run: run.last_refresh):
                found = _reports_of(run.run.path, self.folder.path, reports)
                has_changed |= run.refresh(self.version + 1, found)
                self._num_refreshed += 1
                run.last_refresh = self._num_refreshed
                if self._clock() > end:
                    self.is_complete = False
                    break
            self.version += has_changed
            self.runs = runs
            return self.version


class Watcher:
    """Refreshes a `RunTable` while at least one client follows it."""

    def __init__(self, studio: Studio) -> None:
        self.studio = studio
        self.table = RunTable(studio.folder)
        self._num_followers = 0
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Keep the table current inside the block."""
        self._num_followers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._refresh_repeatedly())
        try:
            yield
        finally:
            self._num_followers -= 1
            if not self._num_followers and self._task is not None:
                self._task.cancel()
                self._task = None

    async def wait_for_change(self, after: int) -> int:
        """Return the version of the last change as soon as it is greater than `after`."""
        while self.table.version <= after:
            await self._changed.wait()
        return self.table.version

    async def _refresh_repeatedly(self) -> None:
        notified = self.table.version
        while True:
            try:
                version = await self.studio.compute(self.table.refresh)
                if version != notified:
                    notified = version
                    self._changed.set()
                    self._changed = asyncio.Event()
            except Exception:
                logger.exception("the runs could not be read")
            await asyncio.sleep(POLL_SECONDS if self.table.is_complete else 0)


def estimate_seconds_left(
    lines: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], num_steps: int | None
) -> float | None:
    """Return the remaining time of a run, from the speed of its last records and its time limit.

    >>> lines = [{"step": step, "seconds": step / 2} for step in (10, 20, 30)]
    >>> estimate_seconds_left(lines, {}, 100), estimate_seconds_left(lines, {"budget.minutes": 0.5}, 100)
    (35.0, 15.0)
    """
    timed = [line for line in lines[-SPEED_RECORDS:] if is_finite(line.get("seconds"))]
    limits: list[float] = []
    if len(timed) > 1 and num_steps is not None:
        steps = timed[-1]["step"] - timed[0]["step"]
        if steps > 0:
            speed = (timed[-1]["seconds"] - timed[0]["seconds"]) / steps
            limits.append(speed * (num_steps - timed[-1]["step"]))
    if timed and is_finite(minutes := settings.get("budget.minutes")):
        limits.append(60 * minutes - timed[-1]["seconds"])
    return max(0.0, min(limits)) if limits else None


def _floor_in_nats(lines: Sequence[Mapping[str, Any]], floor: float | None) -> float | None:
    """Convert the entropy floor to nats per token, by the ratio of the two recorded losses."""
    for line in reversed(lines):
        loss, bits = line.get("validation_loss"), line.get("bits_per_byte")
        if floor is not None and is_finite(loss) and is_finite(bits) and bits > 0:
            return floor * loss / bits
    return None


def _last_value(lines: Sequence[Mapping[str, Any]], name: str) -> float | None:
    return next((line[name] for line in reversed(lines) if is_finite(line.get(name))), None)


def _number_in(fields: object, name: str) -> float | None:
    value = fields.get(name) if isinstance(fields, dict) else None
    return value if is_finite(value) else None


def _stat(path: Path) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _reports_by_folder(scan: Scan) -> dict[Path, list[Found]]:
    folders: dict[Path, list[Found]] = {}
    for report in scan.reports.values():
        folders.setdefault(report.path.parent, []).append(report)
    return folders


def _reports_of(run: Path, root: Path, reports: Mapping[Path, list[Found]]) -> list[Found]:
    """Return the reports in the folder of a run and in the folders above it, such as that of its sweep."""
    folders = [folder for folder in (run, *run.parents) if folder.is_relative_to(root)]
    return [report for folder in folders for report in reports.get(folder, ())]

"""Scanning a folder, and reading only what has changed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from bytewright.errors import FormatError, UsageError
from bytewright.serve.guard import RejectedError
from bytewright.studio import folder as folder_module
from bytewright.studio.folder import StudioFolder
from bytewright.studio.watch import RunTable
from bytewright.train.metrics_log import MetricsReader, dump_line, read_metrics
from studios import append_records, make_record, write_run
from users import ordinary_user

NUM_RUNS = 40


def test_a_refresh_reads_only_runs_that_changed(tmp_path: Path) -> None:
    for number in range(NUM_RUNS):
        write_run(tmp_path / f"run-{number}", end=20)
    table = RunTable(StudioFolder(tmp_path), clock=lambda: 0.0)  # no refresh ends early
    first = table.refresh()
    assert len(table.runs) == NUM_RUNS
    assert table.refresh() == first  # nothing has changed
    append_records(tmp_path / "run-7", range(30, 41, 10))
    assert table.refresh() == first + 1
    assert [run.name for run in table.runs.values() if run.version > first] == ["run-7"]
    (changed,) = (run for run in table.runs.values() if run.version > first)
    assert changed.summary["step"] == 40


@pytest.mark.parametrize("started", ["5", "[]", "{}"])
def test_a_start_that_is_not_a_text_is_left_out(tmp_path: Path, started: str) -> None:
    """The page compares these times as texts: one value of another type would end the whole view."""
    path = write_run(tmp_path / "run")
    (path / "environment.json").write_text(f'{{"started": {started}}}')
    table = RunTable(StudioFolder(tmp_path))
    table.refresh()
    (run,) = table.runs.values()
    assert (run.summary["state"], run.summary["started"]) == ("complete", None)


def test_a_folder_that_is_itself_a_run_is_shown(tmp_path: Path) -> None:
    run = write_run(tmp_path / "only")
    assert [found.name for found in StudioFolder(run).scan().runs.values()] == ["only"]


def test_a_new_run_is_found_by_the_next_scan_and_a_removed_one_is_gone(tmp_path: Path) -> None:
    now = [0.0]
    folder = StudioFolder(tmp_path, clock=lambda: now[0])
    assert not folder.scan().runs
    write_run(tmp_path / "run")
    assert not folder.scan().runs  # a scan is kept for a moment
    now[0] += 10
    (id,) = folder.scan().runs
    assert folder.find_run(id).path == tmp_path / "run"
    os.rename(tmp_path / "run", tmp_path / ".hidden")
    now[0] += 10
    with pytest.raises(RejectedError) as caught:
        folder.find_run(id)
    assert caught.value.status == 404


def test_a_scan_follows_no_links_and_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    write_run(outside / "run")
    write_run(inside / "a" / "run")
    os.symlink(outside, inside / "link")
    os.symlink(inside, inside / "loop")
    assert [found.name for found in StudioFolder(inside).scan().runs.values()] == ["a/run"]
    monkeypatch.setattr(folder_module, "MAX_FOLDERS", 2)
    scan = StudioFolder(inside).scan()
    assert not scan.runs
    assert not scan.is_complete


def test_a_run_without_permission_is_broken_and_hides_no_other_run() -> None:
    with tempfile.TemporaryDirectory() as name:  # other users cannot read pytest's folder
        folder = Path(name)
        folder.chmod(0o755)
        write_run(folder / "open")
        write_run(folder / "closed").chmod(0o644)  # the names of its files can be listed, and nothing else
        with ordinary_user():
            table = RunTable(StudioFolder(folder))
            table.refresh()
        (folder / "closed").chmod(0o755)
        states = {run.name: run.summary["state"] for run in table.runs.values()}
    assert states == {"closed": "broken", "open": "complete"}


@pytest.mark.parametrize("name", ["missing", "file"])
def test_a_path_that_is_not_a_folder_is_rejected(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError):
        StudioFolder(tmp_path / name)


# The reader of a growing log


def test_a_log_that_grows_byte_by_byte_is_read_like_the_whole_log(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    reader = MetricsReader(log)
    assert not reader.update()  # there is no log yet
    content = b"".join(dump_line(make_record(step)) for step in (1, 2, 3))
    for end in range(len(content) + 1):
        log.write_bytes(content[:end])
        has_news = reader.update()
        assert has_news == (content[:end].endswith(b"\n"))
        assert len(reader.records) == content[:end].count(b"\n")
    assert reader.records == list(read_metrics(log))
    assert reader.num_restarts == 0


def test_a_log_that_was_truncated_and_continued_is_read_again(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    reader = MetricsReader(log)
    log.write_bytes(b"".join(dump_line(make_record(step)) for step in (1, 2, 3)))
    reader.update()
    log.write_bytes(b"".join(dump_line(make_record(step, loss=9.0)) for step in (1, 2, 3, 4)))
    assert reader.update()
    assert (reader.num_restarts, len(reader.records)) == (1, 4)
    log.unlink()
    assert reader.update()
    assert (reader.num_restarts, reader.records) == (2, [])


def test_a_damaged_line_of_a_growing_log_is_rejected(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    reader = MetricsReader(log)
    log.write_bytes(dump_line(make_record(1)))
    reader.update()
    with log.open("ab") as file:
        file.write(dump_line(make_record(2)).replace(b"tokens", b"tokems"))
    for _ in range(2):
        with pytest.raises(FormatError):
            reader.update()
    assert len(reader.records) == 1

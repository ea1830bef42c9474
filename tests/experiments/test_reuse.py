"""A run that a sweep beside has made is taken over, but only if nothing that decides a bit of it differs."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from bytewright.errors import UsageError
from bytewright.experiments.corpora import token_digests
from bytewright.experiments.execute import Stopped
from bytewright.experiments.inputs import read_sweep_folder
from bytewright.experiments.plan import make_plan
from bytewright.experiments.records import read_object, read_run
from bytewright.experiments.reuse import CODE_AND_MACHINE, ON_A_CPU, find_twin, take_over
from bytewright.storage import atomic
from bytewright.train import run_files
from bytewright.train.config import TrainConfig
from bytewright.train.run import Run
from bytewright.train.run_files import OUTCOME, is_locked
from runs import SWEEP, make_ids, write_sweep, write_tokens
from sweeps import SweepRunner, interrupting

RUN = "lr-0.01"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BYTEWRIGHT_COMMIT", "abcdef")  # the tree of who tests may differ from its commit
    write_sweep(tmp_path)
    (tmp_path / "rates.toml").write_text(SWEEP.replace("1e-3, 1e-2, 1e30", "1e-2"))
    return tmp_path


def twin_of(lab: SweepRunner) -> Path | None:
    """Find the twin of the sweep's run, for a sweep beside it."""
    config: TrainConfig = lab.sweep.trials[0].config
    return find_twin(config, token_digests(config.data), lab.folder.with_name("second"))


def test_a_run_that_a_sweep_beside_has_done_is_taken_over(place: Path) -> None:
    first = SweepRunner(place, name="runs/first")
    first.run()
    (place / "rates.toml").write_text(
        'base = "base.toml"\n[variants]\nplain = {}\nfast = { "optimizer.lr" = 0.02 }\n'
    )
    second = SweepRunner(place, name="runs/second")
    second.run()
    assert [sentence for sentence in second.said if "is the same run as" in sentence] == [
        f"plain: is the same run as {first.folder / RUN}"
    ]
    plain = read_sweep_folder(second.folder)[1][0]
    assert plain.labels == {"variant": "plain"}
    assert plain.lines == read_sweep_folder(first.folder)[1][0].lines
    assert [planned.state for planned in make_plan(second.sweep, second.folder)] == ["done", "done"]
    shutil.rmtree(first.folder)
    assert twin_of(first) == second.folder / "plain"  # a copy serves as well


def test_a_run_of_other_code_or_of_another_machine_is_no_twin(place: Path) -> None:
    lab = SweepRunner(place, name="runs/first")
    lab.run()
    path = lab.folder / RUN / "environment.json"
    recorded = read_object(path)
    for name in (*CODE_AND_MACHINE, *ON_A_CPU):
        atomic.write_json(path, recorded | {name: "another"})
        assert twin_of(lab) is None, name
    atomic.write_json(path, recorded)
    assert twin_of(lab) == lab.folder / RUN


def test_a_run_that_went_on_elsewhere_is_no_twin(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "base.toml").write_text("sample_every = 12\n" + (place / "base.toml").read_text())
    lab = SweepRunner(place, name="runs/first", make_sampler=interrupting)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with pytest.raises(Stopped):
            lab.run()
    finally:
        signal.signal(signal.SIGTERM, before)
    monkeypatch.setenv("BYTEWRIGHT_COMMIT", "fedcba")
    SweepRunner(place, name="runs/first").run()
    monkeypatch.setenv("BYTEWRIGHT_COMMIT", "abcdef")
    changes = [record.get("changes") for record in Run(lab.folder / RUN).records]
    assert {"commit": ["abcdef", "fedcba"]} in changes
    assert read_run(lab.folder / RUN).status == "complete"
    assert twin_of(lab) is None


def test_a_run_that_lost_lines_is_no_twin(place: Path) -> None:
    lab = SweepRunner(place, name="runs/first")
    lab.run()
    assert twin_of(lab) == lab.folder / RUN
    metrics = lab.folder / RUN / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    for damage in ("".join(lines[:-2]), "".join(lines[:-2]) + "{\n"):
        metrics.write_text(damage)
        assert twin_of(lab) is None


@pytest.mark.parametrize("commit", ["abcdef-dirty", None])
def test_code_that_is_known_by_no_commit_has_no_twins(
    place: Path, monkeypatch: pytest.MonkeyPatch, commit: str | None
) -> None:
    monkeypatch.setattr(run_files, "find_commit", lambda: commit)
    lab = SweepRunner(place, name="runs/first")
    lab.run()
    assert twin_of(lab) is None


def test_a_run_on_other_data_of_the_same_name_is_no_twin_and_is_refused(place: Path) -> None:
    lab = SweepRunner(place, name="runs/first")
    lab.run()
    recorded = read_object(lab.folder / RUN / OUTCOME)["data"]
    assert recorded == token_digests(lab.sweep.trials[0].config.data)
    write_tokens(place / "train.npy", make_ids(2000, seed=7))
    assert twin_of(lab) is None
    now = token_digests(lab.sweep.trials[0].config.data)["train"]
    with pytest.raises(UsageError) as refused:
        make_plan(lab.sweep, lab.folder)
    assert str(refused.value) == (
        f"{lab.folder / RUN} was made with other tokens in train.npy: their SHA-256 was"
        f" {recorded['train'][:12]}…, but is now {now[:12]}…; choose another --out, or remove the old run"
    )


def test_data_made_again_with_the_same_content_is_the_same(place: Path) -> None:
    lab = SweepRunner(place, name="runs/first")
    lab.run()
    (place / "train.npy").unlink()
    assert [planned.state for planned in make_plan(lab.sweep, lab.folder)] == ["done"]
    write_tokens(place / "train.npy", make_ids(2000))
    assert [planned.state for planned in make_plan(lab.sweep, lab.folder)] == ["done"]
    assert twin_of(lab) == lab.folder / RUN


def test_a_record_that_does_not_tell_its_data_stays_done_but_is_no_twin(place: Path) -> None:
    lab = SweepRunner(place, name="runs/first")
    lab.run()
    outcome = read_object(lab.folder / RUN / OUTCOME)
    del outcome["data"]
    atomic.write_json(lab.folder / RUN / OUTCOME, outcome)
    write_tokens(place / "train.npy", make_ids(2000, seed=7))
    assert [planned.state for planned in make_plan(lab.sweep, lab.folder)] == ["done"]
    assert twin_of(lab) is None


def test_a_corpus_that_changed_under_its_name_is_refused(place: Path) -> None:
    corpus = "corpus = { storybook = 60_000, validation_size = 20_000, vocab_size = 300 }\n"
    (place / "rates.toml").write_text(corpus + (place / "rates.toml").read_text())
    lab = SweepRunner(place)
    lab.run()
    (corpus_folder,) = (place / "data").iterdir()
    shutil.rmtree(corpus_folder)
    lab.said.clear()
    lab.run()
    assert (corpus_folder / "bpe-300/train.npy").is_file()  # it was made again, with the same content
    assert lab.said == []
    write_tokens(corpus_folder / "bpe-300/train.npy", make_ids(2000), vocab_size=300)
    with pytest.raises(UsageError, match=r"made with other tokens in .*/bpe-300/train\.npy: their SHA-256"):
        make_plan(lab.sweep, lab.folder)


def test_no_other_process_can_begin_a_run_while_it_is_copied(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = SweepRunner(place, name="runs/first")
    first.run()
    run, write_bytes, locked = place / "runs/second" / RUN, atomic.write_bytes, []

    def look_and_write(path: Path, data: bytes, **options: Path) -> None:
        locked.append(is_locked(run))
        write_bytes(path, data, **options)

    monkeypatch.setattr(atomic, "write_bytes", look_and_write)
    take_over(first.folder / RUN, run, first.sweep.trials[0].config, {})
    assert len(locked) > 2
    assert all(locked)
    assert not is_locked(run)

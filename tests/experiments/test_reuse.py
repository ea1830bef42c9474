"""A run of a sibling sweep is copied only if everything that affects its result is equal."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from bytewright.data.tokenfile import TokenFileWriter
from bytewright.errors import UsageError
from bytewright.experiments.corpora import token_digests
from bytewright.experiments.execute import SweepStopped, copy_record
from bytewright.experiments.inputs import read_sweep_folder
from bytewright.experiments.plan import CODE_AND_MACHINE, ON_A_CPU, find_identical_run, make_plan
from bytewright.experiments.records import read_run
from bytewright.plugins import load_plugin, unload_plugin
from bytewright.storage import atomic
from bytewright.train import run_files
from bytewright.train.config import TrainConfig
from bytewright.train.run import Run
from bytewright.train.run_files import OUTCOME, is_locked
from rejection import rejects
from runs import SWEEP, VOCAB_SIZE, make_ids, write_sweep, write_tokens
from sweeps import SweepRunner, interrupting

RUN = "lr-0.01"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BYTEWRIGHT_COMMIT", "abcdef")  # the source tree under test may be dirty
    write_sweep(tmp_path)
    (tmp_path / "rates.toml").write_text(SWEEP.replace("1e-3, 1e-2, 1e30", "1e-2"))
    return tmp_path


def identical_to(runner: SweepRunner) -> Path | None:
    """Return the run that a sibling of the sweep would copy."""
    config: TrainConfig = runner.sweep.trials[0].config
    return find_identical_run(config, token_digests(config.data), runner.folder.with_name("second"))


def test_an_identical_run_of_a_sibling_sweep_is_copied(place: Path) -> None:
    first = SweepRunner(place, name="runs/first")
    first.run()
    (place / "rates.toml").write_text(
        'base = "base.toml"\n[variants]\nplain = {}\nfast = { "optimizer.lr" = 0.02 }\n'
    )
    second = SweepRunner(place, name="runs/second")
    second.run()
    assert [sentence for sentence in second.said if "identical run" in sentence] == [
        f"plain: copied from the identical run {first.folder / RUN}"
    ]
    plain = read_sweep_folder(second.folder)[1][0]
    assert plain.labels == {"variant": "plain"}
    assert plain.lines == read_sweep_folder(first.folder)[1][0].lines
    assert [planned.state for planned in make_plan(second.sweep, second.folder)] == ["done", "done"]
    shutil.rmtree(first.folder)
    assert identical_to(first) == second.folder / "plain"  # copies can be copied


def test_a_run_of_other_code_or_of_another_machine_is_not_reused(place: Path) -> None:
    runner = SweepRunner(place, name="runs/first")
    runner.run()
    path = runner.folder / RUN / "environment.json"
    recorded = atomic.read_document(path)
    for name in (*CODE_AND_MACHINE, *ON_A_CPU):
        atomic.write_json(path, recorded | {name: "another"})
        assert identical_to(runner) is None, name
    atomic.write_json(path, recorded)
    assert identical_to(runner) == runner.folder / RUN


def test_a_run_of_another_version_of_a_plugin_is_not_reused(place: Path) -> None:
    source = """
from bytewright.model.loss import output_cross_entropy
from bytewright.registry import losses

losses.register("test_plugin_loss")(lambda hidden, output_weight, targets: output_cross_entropy(
    hidden, output_weight, targets
))
"""
    plugin = place / "lab.py"
    plugin.write_text(source)
    (place / "base.toml").write_text(
        (place / "base.toml").read_text() + '[loss]\nname = "test_plugin_loss"\n'
    )
    try:
        load_plugin(plugin)
        runner = SweepRunner(place, name="runs/first")
        runner.run()
        assert identical_to(runner) == runner.folder / RUN
        plugin.write_text(source + "# another version")
        load_plugin(plugin)
        assert identical_to(runner) is None
        with rejects(UsageError, key="loss.name", path=runner.folder / RUN):
            make_plan(runner.sweep, runner.folder)
    finally:
        unload_plugin(plugin)
    assert read_run(runner.folder / RUN).environment["plugins"].startswith("lab.py (")


def test_a_run_that_was_resumed_in_another_environment_is_not_reused(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "base.toml").write_text("sample_every = 12\n" + (place / "base.toml").read_text())
    runner = SweepRunner(place, name="runs/first", make_sampler=interrupting)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with pytest.raises(SweepStopped):
            runner.run()
    finally:
        signal.signal(signal.SIGTERM, before)
    monkeypatch.setenv("BYTEWRIGHT_COMMIT", "fedcba")
    SweepRunner(place, name="runs/first").run()
    monkeypatch.setenv("BYTEWRIGHT_COMMIT", "abcdef")
    changes = [record.get("changes") for record in Run(runner.folder / RUN).records]
    assert {"commit": ["abcdef", "fedcba"]} in changes
    assert read_run(runner.folder / RUN).status == "complete"
    assert identical_to(runner) is None


def test_a_run_that_lost_lines_is_not_reused(place: Path) -> None:
    runner = SweepRunner(place, name="runs/first")
    runner.run()
    assert identical_to(runner) == runner.folder / RUN
    metrics = runner.folder / RUN / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    for damage in ("".join(lines[:-2]), "".join(lines[:-2]) + "{\n"):
        metrics.write_text(damage)
        assert identical_to(runner) is None


@pytest.mark.parametrize("commit", ["abcdef-dirty", None])
def test_code_without_a_clean_commit_reuses_no_runs(
    place: Path, monkeypatch: pytest.MonkeyPatch, commit: str | None
) -> None:
    monkeypatch.setattr(run_files, "find_commit", lambda: commit)
    runner = SweepRunner(place, name="runs/first")
    runner.run()
    assert identical_to(runner) is None


def test_a_run_on_changed_data_is_not_reused_and_is_rejected(place: Path) -> None:
    runner = SweepRunner(place, name="runs/first")
    runner.run()
    recorded = atomic.read_document(runner.folder / RUN / OUTCOME)["data"]
    assert recorded == token_digests(runner.sweep.trials[0].config.data)
    write_tokens(place / "train.npy", make_ids(2000, seed=7))
    assert identical_to(runner) is None
    now = token_digests(runner.sweep.trials[0].config.data)["train"]
    with pytest.raises(UsageError) as refused:
        make_plan(runner.sweep, runner.folder)
    error = refused.value
    assert (error.path, error.expected, error.found) == (runner.folder / RUN, now, recorded["train"])


@pytest.mark.parametrize(("before", "now"), [(0, 1000), (None, 1000), (1000, None)])
def test_a_run_on_tokens_with_another_mask_is_not_reused_and_is_rejected(
    place: Path, before: int | None, now: int | None
) -> None:
    def write_mask(first: int | None) -> None:
        ids = make_ids(2000)
        masked = first is not None
        with TokenFileWriter(
            place / "train.npy", tokenizer_fingerprint="a" * 64, vocabulary_size=VOCAB_SIZE, masked=masked
        ) as writer:
            writer.append(ids, mask=None if first is None else np.arange(len(ids)) >= first)

    write_mask(before)
    runner = SweepRunner(place, name="runs/first")
    runner.run()
    assert identical_to(runner) == runner.folder / RUN
    write_mask(now)
    assert identical_to(runner) is None
    with rejects(UsageError, path=runner.folder / RUN):
        make_plan(runner.sweep, runner.folder)


def test_data_are_compared_by_content(place: Path) -> None:
    runner = SweepRunner(place, name="runs/first")
    runner.run()
    (place / "train.npy").unlink()
    assert [planned.state for planned in make_plan(runner.sweep, runner.folder)] == ["done"]
    write_tokens(place / "train.npy", make_ids(2000))
    assert [planned.state for planned in make_plan(runner.sweep, runner.folder)] == ["done"]
    assert identical_to(runner) == runner.folder / RUN


def test_a_run_without_recorded_digests_is_done_but_not_reused(place: Path) -> None:
    runner = SweepRunner(place, name="runs/first")
    runner.run()
    outcome = atomic.read_document(runner.folder / RUN / OUTCOME)
    del outcome["data"]
    atomic.write_json(runner.folder / RUN / OUTCOME, outcome)
    write_tokens(place / "train.npy", make_ids(2000, seed=7))
    assert [planned.state for planned in make_plan(runner.sweep, runner.folder)] == ["done"]
    assert identical_to(runner) is None


def test_a_corpus_that_changed_is_rejected(place: Path) -> None:
    corpus = "corpus = { storybook = 60_000, validation_size = 20_000, vocab_size = 300 }\n"
    (place / "rates.toml").write_text(corpus + (place / "rates.toml").read_text())
    runner = SweepRunner(place)
    runner.run()
    (corpus_folder,) = (place / "data").iterdir()
    shutil.rmtree(corpus_folder)
    runner.said.clear()
    runner.run()
    assert (corpus_folder / "bpe-300/train.npy").is_file()  # prepared again with the same content
    assert runner.said == []
    write_tokens(corpus_folder / "bpe-300/train.npy", make_ids(2000), vocab_size=300)
    with rejects(UsageError, key=f"SHA-256 of {corpus_folder / 'bpe-300/train.npy'}"):
        make_plan(runner.sweep, runner.folder)


def test_a_run_is_locked_while_it_is_copied(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = SweepRunner(place, name="runs/first")
    first.run()
    run, write_bytes, locked = place / "runs/second" / RUN, atomic.write_bytes, []

    def look_and_write(path: Path, data: bytes, **options: Path) -> None:
        locked.append(is_locked(run))
        write_bytes(path, data, **options)

    monkeypatch.setattr(atomic, "write_bytes", look_and_write)
    copy_record(first.folder / RUN, run, first.sweep.trials[0].config, {})
    assert len(locked) > 2
    assert all(locked)
    assert not is_locked(run)

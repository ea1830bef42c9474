"""Commands reject hostile run folders in one sentence, quickly and in little memory."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from rich.console import Console

from bytewright.cli import console
from bytewright.cli.main import main
from bytewright.generate import text as generate_text
from bytewright.storage import atomic
from bytewright.tokenizer import Tokenizer
from bytewright.train import train
from bytewright.train.metrics_log import read_metrics
from bytewright.train.recipe import flatten, unflatten
from bytewright.train.session.console import LiveDisplay
from conftest import Outcome, RunCommand
from runs import make_config

TOO_LONG = 60
"""Seconds after which a command counts as hanging: far more than any of them takes."""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, stories: Path, tokenizer: Path) -> Path:
    """A folder with a complete run, its tokens and its tokenizer."""
    folder = tmp_path_factory.mktemp("original")
    shutil.copytree(tokenizer, folder / "tok")
    Tokenizer.load(tokenizer).encode_file(stories, folder / "stories.npy")
    config = make_config(
        folder,
        model={"vocab_size": 400, "num_layers": 1},
        data={
            "train": str(folder / "stories.npy"),
            "validation": str(folder / "stories.npy"),
            "tokenizer": str(folder / "tok"),
        },
        budget={"steps": 8},
        schedule={"kind": "constant", "warmup": 0},
    )
    train(config, folder / "run", console=Console(quiet=True))
    return folder


@pytest.fixture
def place(tmp_path: Path, original: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folder, to be spoiled."""
    shutil.copytree(original, tmp_path / "place")
    monkeypatch.chdir(tmp_path / "place")
    return tmp_path / "place"


@contextlib.contextmanager
def no_hang() -> Iterator[None]:
    """Fail instead of waiting for ever."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"still not done after {TOO_LONG} seconds")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(TOO_LONG)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def assert_answered(outcome: Outcome) -> None:
    """Assert that the command succeeded or printed one sentence."""
    assert outcome.code in (0, 1, 2), outcome
    assert outcome.code == 0 or outcome.err.splitlines()[-1].startswith("bytewright: "), outcome


def rewrite(folder: Path, name: str, data: bytes) -> None:
    """Replace one file of a folder that has a manifest, and write a manifest that fits."""
    opened = atomic.open_folder(folder)
    contents = {file: (folder / file).read_bytes() for file in opened.files} | {name: data}
    with atomic.write_folder(folder, about=opened.about, replace=True) as writer:
        for file, content in contents.items():
            writer.write_bytes(file, content)


def forge(folder: Path, name: str, change: Callable[[Any], object]) -> None:
    """Change one JSON file of a folder that has a manifest, and write a manifest that fits."""
    value = json.loads((folder / name).read_bytes())
    change(value)
    rewrite(folder, name, json.dumps(value).encode())


def edit(file: Path, change: Callable[[Any], object]) -> None:
    """Change one JSON file, which then has no checksum."""
    value = json.loads(file.read_text())
    value.pop("checksum", None)
    change(value)
    file.write_text(json.dumps(value))


# Files that are not files


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("metrics.jsonl", "resume run"),
        ("metrics.jsonl", "runs ."),
        (".lock", "runs ."),
        (".lock", "resume run"),
        ("config.json", "evaluate run"),
        ("environment.json", "runs ."),
        ("outcome.json", "runs ."),
        ("samples/step-000008.txt", "runs ."),
        ("tokenizer/manifest.json", "generate run --max-new-tokens 2"),
        ("tokenizer/vocabulary.json", "generate run --max-new-tokens 2"),
        ("checkpoints/step-000008/manifest.json", "generate run --max-new-tokens 2"),
        ("checkpoints/step-000008/model.safetensors", "generate run --max-new-tokens 2"),
        ("checkpoints/step-000008/state.json", "evaluate run"),
    ],
)
def test_a_pipe_in_place_of_a_run_file_does_not_block(
    place: Path, run: RunCommand, name: str, command: str
) -> None:
    pipe = place / "run" / name
    pipe.parent.mkdir(exist_ok=True)
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    with no_hang():
        assert_answered(run(*command.split()))


# Sizes and counts that only the files claim


def claim(run: Path, change: Callable[[Any], object]) -> None:
    """Change the config of a run, also where its last checkpoint keeps it."""
    edit(run / "config.json", change)
    forge(run / "checkpoints" / "step-000008", "state.json", lambda state: change(state["config"]))


@pytest.mark.parametrize("size", ["num_layers", "vocab_size", "d_model", "d_ff"])
def test_a_model_larger_than_its_weights_is_not_built(
    place: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    def fail_to_build(*arguments: object, **options: object) -> None:
        raise AssertionError("a model was built")

    claim(place / "run", lambda config: config["model"].update({size: 2**28}))
    monkeypatch.setattr("bytewright.train.setup.TransformerLM", fail_to_build)
    with no_hang():
        outcome = run("resume", "run")
    assert_answered(outcome)
    assert "step-000008" in outcome.err
    # Without a checkpoint there are no weights to compare with: the space for one decides.
    shutil.rmtree(place / "run" / "checkpoints")
    (place / "run" / "metrics.jsonl").unlink()
    with no_hang():
        outcome = run("resume", "run")
    assert_answered(outcome)
    assert "no space for the checkpoints of this run" in outcome.err


def test_a_report_does_not_count_layers_without_weights(place: Path, run: RunCommand) -> None:
    claim(place / "run", lambda config: config["model"].update(num_layers=2**28))
    with no_hang():
        assert run("report", "run").code == 0


def test_a_checkpoint_of_a_trillion_steps_is_resumed_at_once(place: Path, run: RunCommand) -> None:
    checkpoints, step = place / "run" / "checkpoints", 10**12
    (checkpoints / "step-000008").rename(checkpoints / f"step-{step}")
    forge(
        checkpoints / f"step-{step}",
        "state.json",
        lambda state: (
            state.update(step=step, num_steps=step + 1, plan=[[0, step + 1]]),
            state["config"]["budget"].update(steps=step + 1),
        ),
    )
    edit(place / "run" / "config.json", lambda config: config["budget"].update(steps=step + 2))
    with no_hang():
        assert run("resume", "run").code == 0
    assert (checkpoints / f"step-{step + 2}").is_dir()


@pytest.mark.parametrize(
    "changes",
    [
        {"num_steps": None, "plan": []},
        {"num_steps": 10**30, "plan": []},
        {"num_steps": 99, "plan": [[0, 99]]},
        {"step": 10**17},
        {"since_line": [[1.0]]},
        {"since_line": [[1.0, 2.0, 3.0]]},
        {"since_line": [[]]},
        {"since_line": [[None, 1.0]]},
        {"seconds": -1.0},
        {"metrics_position": -1},
        {"metrics_position": 10**25},
        {"best_step": [8]},
    ],
)
def test_an_impossible_state_is_rejected(place: Path, run: RunCommand, changes: dict[str, Any]) -> None:
    checkpoint = place / "run" / "checkpoints" / "step-000008"
    forge(checkpoint, "state.json", lambda state: state.update(changes))
    if "step" in changes:
        checkpoint.rename(checkpoint.with_name(f"step-{changes['step']}"))
        edit(place / "run" / "config.json", lambda config: config.update(batch_size=100))
    with no_hang():
        outcome = run("resume", "run")
    assert outcome.code == 2, outcome
    assert "step-" in outcome.err


def test_a_plan_of_wrong_types_is_rejected_by_a_resume_with_changes(place: Path, run: RunCommand) -> None:
    def forge_plan(state: dict[str, Any]) -> None:
        state["config"]["budget"] = {"minutes": 5.0}
        state["plan"] = [["soon", 9]]

    forge(place / "run" / "checkpoints" / "step-000008", "state.json", forge_plan)
    outcome = run("resume", "run", "--set", "budget.steps=99")
    assert outcome.code == 2
    assert "plan" in outcome.err


def test_a_time_beyond_the_range_of_a_float_is_rejected(place: Path, run: RunCommand) -> None:
    checkpoint = place / "run" / "checkpoints" / "step-000008"
    state = (checkpoint / "state.json").read_text()
    rewrite(checkpoint, "state.json", re.sub('"seconds": [^,]*', '"seconds": 1e400', state).encode())
    outcome = run("resume", "run")
    assert outcome.code == 2
    assert "1e400" in outcome.err


def test_a_prompt_is_encoded_once_for_any_number_of_texts(
    place: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[str] = []
    encode = generate_text.encode_prompt

    def count(tokenizer: Tokenizer, text: str) -> list[int]:
        encoded.append(text)
        return encode(tokenizer, text)

    monkeypatch.setattr(generate_text, "encode_prompt", count)
    assert run("generate", "run", "--prompt", "One", "--count", "3", "--max-new-tokens", "2").code == 0
    assert encoded == ["One"]


# Values of a wrong type


ODD_VALUES = ["x", [1], {"a": 1}, None, True, -1, 10**300, -1e308, "\ud800"]


@pytest.mark.parametrize(
    "name", ["step", "tokens", "seconds", "loss", "validation_loss", "tokens_per_second", "event", "windows"]
)
def test_a_report_about_metrics_of_wrong_types_is_written_or_rejected(
    place: Path, run: RunCommand, name: str
) -> None:
    metrics = place / "run" / "metrics.jsonl"
    records = list(read_metrics(metrics))
    for value in ODD_VALUES:
        metrics.write_text("".join(json.dumps({**record, name: value}) + "\n" for record in records))
        assert_answered(run("runs", "."))
        assert_answered(run("report", "run"))


@pytest.mark.parametrize("name", ["batch_size", "seed", "max_refused", "model.vocab_size", "budget.tokens"])
def test_settings_of_wrong_types_are_rejected_by_name(place: Path, run: RunCommand, name: str) -> None:
    config = place / "run" / "config.json"
    settings = flatten(atomic.read_document(config))
    values: list[Any] = ["x", [1], {"a": {}}, True, -1, 0, 10**300]
    for value in values:
        config.write_text(json.dumps(unflatten({**settings, name: value})))
        outcome = run("runs", ".")
        assert outcome.code == 0
        assert name == "seed" or name.rpartition(".")[2] in outcome.err


def test_a_file_that_is_nested_too_deeply_is_rejected(place: Path, run: RunCommand) -> None:
    deep = '{"a": ' * 500 + "1" + "}" * 500
    (place / "run" / "config.json").write_text(deep)
    (place / "run" / "environment.json").write_text(deep)
    for command in ("runs .", "report run", "resume run"):
        outcome = run(*command.split())
        assert_answered(outcome)
        assert "nested too deeply" in outcome.err


# Text that would act on a terminal

HOSTILE = "\x1b]0;owned\x07\x1b[2J\nbytewright: all is well\r\u202e[/red]\udcff"


def assert_printable(outcome: Outcome) -> None:
    """Nothing of a file acts on the terminal: there are line breaks between lines, and nothing else."""
    assert_answered(outcome)
    for line in (outcome.out + outcome.err).split("\n"):
        assert line.isprintable(), line
        assert not line.startswith("bytewright: all is well")


@pytest.mark.parametrize(
    "command",
    [
        "runs .",
        "runs . --json",
        "report {run}",
        "report {run} run --out both",
        "generate {run} --max-new-tokens 2 --top-k 1 --prompt Once",
        "evaluate {run}",
        "export {run} --to hf --out {run}-hf",
        "resume {run}",
        "resume {run}/nothing",
        "tokenizer convert {run}/tokenizer --to gpt2 --out {run}-gpt2",
        "tokenizer inspect {run}/tokenizer",
        "tokenizer compare {run}/tokenizer tok",
    ],
)
def test_a_hostile_name_is_escaped_on_the_terminal(place: Path, run: RunCommand, command: str) -> None:
    name = HOSTILE.replace("/", ":")
    shutil.copytree(place / "run", place / name)
    assert_printable(run(*(word.format(run=name) for word in command.split())))


def put_unknown_key(run: Path) -> None:
    edit(run / "config.json", lambda config: config.update({HOSTILE: 1}))


def put_long_key(run: Path) -> None:
    edit(run / "config.json", lambda config: config.update({"k" * 100_000: 1}))


def put_choice(run: Path) -> None:
    edit(run / "config.json", lambda config: config.update(device=HOSTILE))


def put_path(run: Path) -> None:
    edit(run / "config.json", lambda config: config["data"].update(train=HOSTILE))


def put_kind(run: Path) -> None:
    manifest = run / "checkpoints" / "step-000008" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("bytewright checkpoint", json.dumps(HOSTILE)[1:-1]))


def put_environment(run: Path) -> None:
    atomic.write_json(run / "environment.json", {"python": HOSTILE, "torch": HOSTILE, "started": HOSTILE})
    edit(run / "config.json", lambda config: config["budget"].update(steps=9))


def put_settings(run: Path) -> None:
    edit(run / "config.json", lambda config: config.update({"variant": HOSTILE, HOSTILE: {HOSTILE: HOSTILE}}))
    atomic.write_json(run / "outcome.json", {"status": "failed", "reason": HOSTILE, "labels": {"a": HOSTILE}})


@pytest.mark.parametrize(
    ("change", "commands"),
    [
        (put_unknown_key, ["evaluate run", "report run"]),
        (put_long_key, ["evaluate run"]),
        (put_choice, ["evaluate run"]),
        (put_path, ["resume run", "report run"]),
        (put_kind, ["evaluate run"]),
        (put_environment, ["resume run", "runs .", "report run"]),
        (put_settings, ["runs .", "report run", "runs . --json", "runs . --where nothing=1"]),
    ],
)
def test_hostile_text_in_a_file_is_escaped_on_the_terminal(
    place: Path, run: RunCommand, change: Callable[[Path], None], commands: list[str]
) -> None:
    change(place / "run")
    for command in commands:
        outcome = run(*command.split())
        assert_printable(outcome)
        assert max(map(len, outcome.err.split("\n"))) < 3000
    for page in (*(place / "run").glob("report.*"), *(place / "run").glob("report-figures/*")):
        assert not set("\x1b\x07\r") & set(page.read_text())


def test_the_name_of_a_lock_holder_is_escaped_on_the_terminal(place: Path, run: RunCommand) -> None:
    lock = place / "run" / ".lock"
    lock.write_text(HOSTILE.replace("\udcff", ""))
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        outcome = run("resume", "run")
    assert_printable(outcome)
    assert "is being written by" in outcome.err


def test_a_panel_shows_a_hostile_title_unchanged() -> None:
    shown = io.StringIO()
    display = LiveDisplay(Console(file=shown, force_terminal=True, width=200), f"{HOSTILE}: 5 parameters")
    display.record({"step": 1, "event": HOSTILE}, 2)
    display.close()
    assert shown.getvalue().count("\\x1b]0;owned") >= 2
    assert not {"\x07", "\u202e"} & set(shown.getvalue())


class Terminal(io.StringIO):
    """Standard output as a terminal has it."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "shown"), [(Terminal, "a\\x1b[2J\n\tb"), (io.StringIO, "a\x1b[2J\n\tb")])
def test_model_text_is_escaped_only_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, stream: type[io.StringIO], shown: str
) -> None:
    written = stream()
    monkeypatch.setattr(sys, "stdout", written)
    console.write_model_text("a\x1b[2J\n\tb")
    assert written.getvalue() == shown


def test_decoded_bytes_are_escaped_on_a_terminal(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = Tokenizer.load(place / "tok").encode("Zoë\x1b[2J\n")
    written = Terminal()
    monkeypatch.setattr(sys, "stdout", written)
    assert main(["tokenizer", "decode", "tok", "--ids", *map(str, ids), "255"]) == 0
    assert written.getvalue() == "Zoë\\x1b[2J\n\\xff\n"

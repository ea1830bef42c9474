"""Selection of commands, help texts, exit codes and signals."""

from __future__ import annotations

import os
import pty
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import bytewright
from bytewright.cli.main import COMMANDS
from bytewright.errors import LostRankError
from bytewright.tokenizer import Tokenizer
from bytewright.train.run_files import RunWriter
from conftest import HANG_SECONDS, RunCommand
from runs import make_config

FIRST_WORDS = ", ".join(sorted({name.split()[0] for name in COMMANDS}))
PROGRAM = [sys.executable, "-m", "bytewright.cli.main"]


def test_every_command_has_help_with_examples(run: RunCommand) -> None:
    for name in COMMANDS:
        outcome = run(*name.split(), "--help")
        assert outcome.code == 0, name
        assert f"usage: bytewright {name}" in outcome.out
        examples = outcome.out.split("For example:\n")[1]
        assert examples.startswith(f"  bytewright {name}"), name


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["tokenizer", "--help"]])
def test_the_overview_lists_the_commands(run: RunCommand, words: list[str]) -> None:
    outcome = run(*words)
    assert outcome.code == 0
    assert "tokenizer train" in outcome.out
    assert ("doctor" in outcome.out) == (words[0] != "tokenizer")


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version_is_printed(run: RunCommand, option: str) -> None:
    outcome = run(option)
    assert outcome.code == 0
    assert outcome.out == f"bytewright {bytewright.__version__}\n"


def test_the_package_runs_as_a_module_with_the_same_exit_codes() -> None:
    for words, code in (["--version"], 0), (["doktor"], 2):
        command = [sys.executable, "-m", "bytewright", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS)
        assert done.returncode == code, done
        assert (done.stdout or done.stderr).startswith("bytewright")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["doktor"], "bytewright has no command 'doktor'; did you mean 'doctor'? (see bytewright --help)"),
        (
            ["tokenizer", "trian"],
            "bytewright tokenizer has no command 'trian'; did you mean 'train'?"
            " (see bytewright tokenizer --help)",
        ),
        (
            ["--versoin"],
            "bytewright has no option '--versoin'; did you mean '--version'? (see bytewright --help)",
        ),
        ([], f"bytewright needs a command: {FIRST_WORDS} (see bytewright --help)"),
    ],
)
def test_a_wrong_command_gets_a_suggestion(run: RunCommand, words: list[str], sentence: str) -> None:
    outcome = run(*words)
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err == f"bytewright: {sentence}\n"


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        (["doctor", "--jsno"], "--json"),
        (["tokenizer", "train", "x", "--out", "y", "--vocab-sise", "300"], "--vocab-size"),
    ],
)
def test_an_unknown_option_gets_a_suggestion(run: RunCommand, words: list[str], suggestion: str) -> None:
    outcome = run(*words)
    assert outcome.code == 2
    assert suggestion in outcome.err


def test_a_value_of_the_wrong_type_and_a_missing_option_are_rejected(run: RunCommand) -> None:
    outcome = run("tokenizer", "train", "x", "--out", "y", "--vocab-size", "many")
    assert outcome.code == 2
    assert "--vocab-size" in outcome.err
    outcome = run("tokenizer", "train", "x", "--vocab-size", "300")
    assert outcome.code == 2
    assert "--out" in outcome.err


def test_help_needs_neither_torch_nor_numpy_nor_the_native_extension() -> None:
    program = (
        "import sys; sys.modules['bytewright._native'] = None; "
        "from bytewright.cli.main import main; main(['--help']); "
        "sys.exit(str({'torch', 'numpy', 'rich'} & set(sys.modules) or ''))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.strip() == ""


def test_a_rank_that_torchrun_terminates_still_reports_why_it_ends(
    run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = "rank 1 of 2 has died"

    def lose_rank(arguments: list[str]) -> int:
        try:
            raise LostRankError(message)
        finally:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("bytewright.cli.main.run_command", lose_rank)
    outcome = run("train", "tiny")
    assert outcome.code == LostRankError.exit_code
    assert outcome.err == f"bytewright: {message}\n"


def test_no_tokenizer_command_imports_torch(tokenizer: Path) -> None:
    program = (
        "import sys; from bytewright.cli.main import main; "
        f"code = main(['tokenizer', 'inspect', {str(tokenizer)!r}, '--text', 'x']); "
        "sys.exit(code or int('torch' in sys.modules))"
    )
    subprocess.run(
        [sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL, timeout=HANG_SECONDS
    )


def test_a_closed_pipe_prints_no_error(tokenizer: Path, stories: Path, tmp_path: Path) -> None:
    big = tmp_path / "big.txt"
    big.write_bytes(stories.read_bytes() * 30)
    tokens = tmp_path / "big.npy"
    Tokenizer.load(tokenizer).encode_file(big, tokens)
    for unbuffered in ("", "1"):
        decode = subprocess.Popen(
            [*PROGRAM, "tokenizer", "decode", str(tokenizer), str(tokens)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
        assert decode.stdout is not None
        assert decode.stderr is not None
        assert decode.stdout.read(10) == big.read_bytes()[:10]
        decode.stdout.close()
        assert decode.stderr.read() == b""
        assert decode.wait(timeout=HANG_SECONDS) == 1
        decode.stderr.close()


@pytest.mark.fault
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_training_with_its_code_and_no_incomplete_files(
    number: signal.Signals, code: int, stories: Path, tmp_path: Path
) -> None:
    big = tmp_path / "big.txt"
    text = stories.read_bytes()
    big.write_bytes(text * (2**24 // len(text)))
    options = ["--vocab-size", "400", "--num-threads", "1", "--pattern", r"\w+|\W"]
    training = subprocess.Popen(
        # 4 GB of text, so that the signal arrives long before the end
        [*PROGRAM, "tokenizer", "train", *256 * [str(big)], "--out", str(tmp_path / "out"), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert training.stderr is not None
    assert "count: " in training.stderr.readline(), "training has begun"
    training.send_signal(number)
    out, err = training.communicate(timeout=HANG_SECONDS)
    assert training.returncode == code, err
    assert err.splitlines()[-1] == f"bytewright: {'interrupted' if code == 130 else 'terminated'}"
    assert out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["big.txt"]


@pytest.mark.parametrize("arguments", [["--version"], ["doctor"], ["runs", "."]])
def test_a_closed_standard_output_is_not_a_traceback(arguments: list[str], tmp_path: Path) -> None:
    command = " ".join(shlex.quote(word) for word in (*PROGRAM, *arguments))
    done = subprocess.run(f"{command} >&-", shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def on_a_terminal(*arguments: str, code: int = 0, width: int = 100, **variables: str) -> str:
    """Run a command on a pseudo-terminal and return what it showed there."""
    controller, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(width)}
    environment.pop("NO_COLOR", None)
    environment |= variables
    process = subprocess.Popen([*PROGRAM, *arguments], stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    shown = b""
    while True:
        try:
            chunk = os.read(controller, 65536)
        except OSError:  # how Linux says that the other end is closed
            break
        if not chunk:
            break
        shown += chunk
    os.close(controller)
    assert process.wait(timeout=HANG_SECONDS) == code
    return shown.decode()


def test_a_narrow_terminal_lists_runs_without_optional_columns(tmp_path: Path) -> None:
    with RunWriter.create(tmp_path / "run", make_config(tmp_path)):
        pass
    wide, narrow = (on_a_terminal("runs", str(tmp_path), width=width) for width in (300, 40))
    assert "started" in wide
    assert "started" not in narrow
    assert "status" in narrow


def test_on_a_terminal_a_mistake_in_options_is_the_same_sentence() -> None:
    shown = on_a_terminal("generate", "runs/x", "--temperature", "hot", code=2)
    sentence = "--temperature must be a number, found 'hot' (see bytewright generate --help)"
    assert shown.strip() == f"bytewright: {sentence}"


def test_help_is_coloured_on_a_terminal_without_no_color() -> None:
    assert "\x1b[" in on_a_terminal("report", "--help")
    assert "\x1b[" not in on_a_terminal("report", "--help", NO_COLOR="1")


def test_on_a_terminal_splits_are_coloured_and_progress_is_a_bar(
    tokenizer: Path, stories: Path, tmp_path: Path
) -> None:
    shown = on_a_terminal("tokenizer", "inspect", str(tokenizer), "--text", "the owl")
    splits = shown.splitlines()[-1]
    assert "\x1b[" in splits
    assert "␣" in splits
    assert "|" not in splits
    shown = on_a_terminal(
        "tokenizer", "train", str(stories), "--out", str(tmp_path / "out"), "--vocab-size", "300"
    )
    assert "━" in shown
    assert "100 %" in shown

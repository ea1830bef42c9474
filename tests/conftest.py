"""What all tests share: the --slow option, hypothesis profiles, texts, and running commands."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# Before torch: it sets environment variables that torch and its libraries read as they are loaded.
import bytewright  # noqa: F401

# isort: split
import hypothesis
import pytest
import torch
from jaxtyping import install_import_hook
from rich.console import Console

# Before anything imports Triton, which decides then: without a GPU its kernels run in its interpreter.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# A run records the commit of the source. Asking git takes time, and on a loaded machine it may not answer in
# time: then a resumed run records that the commit changed, and its log differs from that of an unbroken run.
os.environ.setdefault("BYTEWRIGHT_COMMIT", "tested")

# Before anything imports them: from here on every call of these packages is checked against its annotations.
# torch.compile cannot trace the checks; tests that compile run without them (see `rerun_unchecked` in
# runs.py).
if not os.environ.get("BYTEWRIGHT_UNCHECKED"):
    install_import_hook(
        [
            "bytewright.data",
            "bytewright.model",
            "bytewright.optim",
            "bytewright.train",
            "bytewright.generate",
            "bytewright.account",
        ],
        "typechecking.check",
    )

from bytewright.cli.main import main
from tales import write_stories

HANG_SECONDS = 900
"""Time after which a child process counts as hung: far longer than any takes, even on a loaded machine."""

# On CI the same examples every time: a red run must be repeatable, and a green one must not be luck. Neither
# profile has a limit of time, which a loaded machine would exceed.
UNTIMED = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("ci", UNTIMED, derandomize=True, print_blob=True, max_examples=50)
hypothesis.settings.register_profile("dev", UNTIMED)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background jobs ignore Ctrl-C, and so would every program they start; the tests send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow, too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    skip = pytest.mark.skip(reason="slow; run with --slow")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real text, which is no part of the project: tests that need it skip without it."""
    beside_the_repository = Path(__file__).parents[1].parent / "shared" / "data"
    folder = Path(os.environ.get("BYTEWRIGHT_TEST_DATA", beside_the_repository))
    if not folder.is_dir():
        pytest.skip("no folder of real text; set BYTEWRIGHT_TEST_DATA to one")
    return folder


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command as the shell would, but in this process."""
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def run_command(*arguments: str | Path) -> Outcome:
        handler = signal.getsignal(signal.SIGTERM)
        capfd.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as exit:  # tyro leaves like this
            code = exit.code if isinstance(exit.code, int) else 1
        finally:
            signal.signal(signal.SIGTERM, handler)
        captured = capfd.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run_command


@pytest.fixture(scope="session")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "stories.txt"
    path.write_text("".join(write_stories(300)))
    return path


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory, stories: Path) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer") / "stories-400"
    arguments = ["tokenizer", "train", str(stories), "--out", str(folder), "--vocab-size", "400"]
    handler = signal.getsignal(signal.SIGTERM)
    assert main(arguments) == 0
    signal.signal(signal.SIGTERM, handler)
    return folder


@pytest.fixture
def quiet() -> Console:
    """Where a run shows itself to nobody."""
    return Console(file=io.StringIO())

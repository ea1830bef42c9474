"""Options, hypothesis profiles and fixtures of all tests. Helper functions are in `tests/support`."""

from __future__ import annotations

import gc
import io
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

# Before torch, which reads it when it is loaded: the processes of pytest-xdist share the cores, and the
# tensors of the tests are too small for several threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Before torch, too: bytewright sets environment variables for torch and its libraries.
import bytewright

# isort: split
import hypothesis
import pytest
import torch
from rich.console import Console

from typechecking import check_calls_of

# Before Triton, which reads the variable when it is imported: without a GPU, kernels run in its interpreter.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# A run records the commit of the source. On a loaded machine git may exceed its time limit. A resumed run
# would then record a changed commit, and its log would differ from that of an uninterrupted run.
os.environ.setdefault("BYTEWRIGHT_COMMIT", "tested")

# Before these modules are imported: all calls of modules whose annotations state shapes are checked against
# them. torch.compile cannot trace the checks, so tests that compile run without them (`rerun_unchecked` in
# support/runs.py). Triton cannot compile checked functions, so its kernels have no such annotations.
if not os.environ.get("BYTEWRIGHT_UNCHECKED"):
    check_calls_of(
        [
            ".".join(("bytewright", *path.relative_to(bytewright.__path__[0]).with_suffix("").parts))
            for path in Path(bytewright.__path__[0]).rglob("*.py")
            if "\nfrom jaxtyping import" in path.read_text()
        ]
    )

from bytewright.cli.main import main
from bytewright.train.session import timing
from tales import write_stories

# A plan of runs times steps for a second. Its accuracy does not matter in tests.
timing.TIMED_SECONDS = 0.01

HANG_SECONDS = 900
"""Time limit of child processes; only a hang exceeds it, even on a loaded machine."""

# On CI hypothesis uses the same examples every time, so that failures are reproducible. No profile has a
# deadline, because a loaded machine would exceed it.
UNTIMED = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("ci", UNTIMED, derandomize=True, print_blob=True, max_examples=50)
hypothesis.settings.register_profile("dev", UNTIMED)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Background jobs of a shell ignore SIGINT, and so do their child processes. The tests send SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


LONGEST = ("test_torchrun", "test_resume", "test_storybook_files", "test_account_memory")
"""The modules that take longest run first, so that no process is left with one of them at the end."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    order = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))
    if config.getoption("--slow"):
        return
    skip = pytest.mark.skip(reason="slow; run with --slow")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def frozen_modules(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep imported modules out of garbage collection: a run would unfreeze them when it ends.

    Training collects garbage several times per run. With all test modules and their libraries in memory, this
    took almost half of the time of such tests. Tests marked `unfrozen` check that memory is freed.
    """
    if "unfrozen" not in request.keywords:
        monkeypatch.setattr(gc, "unfreeze", lambda: None)
        yield
        return
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real text, which is not part of the repository; tests that need it skip without it."""
    default = Path(__file__).parents[1].parent / "shared" / "data"
    folder = Path(os.environ.get("BYTEWRIGHT_TEST_DATA", default))
    if not folder.is_dir():
        pytest.skip("no folder of real text; set BYTEWRIGHT_TEST_DATA to one")
    return folder


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


RunCommand = Callable[..., Outcome]
"""The type of the fixture `run`."""


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> RunCommand:
    """Return a function that runs a command line in this process and returns its exit code and output."""
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def run_command(*arguments: str | Path) -> Outcome:
        handler = signal.getsignal(signal.SIGTERM)
        capfd.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as exit:  # raised by tyro
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
    """A console that discards its output."""
    return Console(file=io.StringIO())

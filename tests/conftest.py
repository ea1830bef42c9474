"""What all tests share: the --slow option, the folder of real text, and hypothesis profiles."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest
from jaxtyping import install_import_hook

# Before anything imports them: from here on every call of these packages is checked against its annotations.
install_import_hook(
    ["bytewright.data", "bytewright.model", "bytewright.train", "bytewright.generate", "bytewright.account"],
    "typechecking.check",
)

# On CI the same examples every time: a red run must be repeatable, and a green one must not be luck.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
hypothesis.settings.register_profile("dev", deadline=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")


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

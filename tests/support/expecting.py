"""Expected errors: tests assert the class and the fields of an error, and its wording in one place only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from bytewright.errors import BytewrightError


@contextlib.contextmanager
def expect_error(
    *kinds: type[BytewrightError], **fields: object
) -> Iterator[pytest.ExceptionInfo[BytewrightError]]:
    """Expect an error of one of these classes; `fields` are the expected values of its attributes."""
    with pytest.raises(kinds) as caught:
        yield caught
    assert {name: getattr(caught.value, name) for name in fields} == fields

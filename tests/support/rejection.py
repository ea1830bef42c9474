"""Assert the class and the fields of an error; its wording is asserted in one test at most."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from bytewright.errors import BytewrightError


@contextlib.contextmanager
def rejects(kind: type[BytewrightError], **fields: object) -> Iterator[pytest.ExceptionInfo[BytewrightError]]:
    """Assert that the block raises an error of `kind` with these `fields` and a message of one line."""
    with pytest.raises(kind) as caught:
        yield caught
    assert "\n" not in str(caught.value)
    found = {name: getattr(caught.value, name) for name in fields}
    assert found == fields, f"expected {fields}, found {found} in {caught.value!r}"


class PowerCutError(Exception):
    """Ends a run in a test as a failure of the machine would."""

"""What the storybook and the world book share: files of texts, and checks of such files.

A text is a story or a document of the world book. `SEPARATOR` follows each text in a file. Files are read and
checked in bounded memory.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from bytewright.corpus import END_OF_TEXT, SEPARATOR
from bytewright.errors import FormatError
from bytewright.executors import map_in_processes
from bytewright.formatting import Progress
from bytewright.storage import atomic, filesystem
from bytewright.storage.filesystem import StrPath
from bytewright.system import usable_cores

BYTES_PER_READ = 2**20
LONGEST_STORY = 2**20
TEXTS_PER_TASK = 64
CHARACTERS_SHOWN = 30
"""How much of a text is shown from the position on where it leaves the grammar."""

Check = TypeVar("Check", bound=Any)
"""The result of checking a text: a dataclass with a field `is_copy`."""


def bits_per_byte(bits: float, num_bytes: int, num_texts: int) -> float:
    """Return the information content per byte of a file, the expected minimum loss of any model.

    As in evaluations, predictions of end tokens count, but their bytes do not.
    """
    return bits / max(1, num_bytes - num_texts * len(END_OF_TEXT))


def read_stories(path: StrPath) -> Iterator[str]:
    """Yield the stories of a file without separators.

    Text after the last end token is an incomplete story, unless it is blank. More than `LONGEST_STORY` bytes
    without an end token are rejected, which bounds memory.
    """
    path = Path(path)
    end = END_OF_TEXT.encode()
    begun, done = b"", 0
    with atomic.explain("read", path), filesystem.open_to_read(path) as file:
        while block := file.read(BYTES_PER_READ):
            *whole, begun = (begun + block).split(end)
            for story in whole:
                yield _decode(story, path, done)
                done += len(story) + len(end)
            if len(begun) > LONGEST_STORY:
                message = (
                    f"{path}: no {END_OF_TEXT} in {LONGEST_STORY} bytes from byte {done} on;"
                    " expected a file of stories"
                )
                raise FormatError(message, path=path, expected=END_OF_TEXT)
        if begun.strip():
            yield _decode(begun, path, done)


class KnownStories(Container[str]):
    """A set of stories that stores a hash of each to save memory."""

    def __init__(self, stories: Iterable[str]) -> None:
        self._hashes = {_hash(story) for story in stories}

    def __contains__(self, story: object) -> bool:
        return isinstance(story, str) and _hash(story) in self._hashes


def _hash(story: str) -> bytes:
    return hashlib.blake2b(story.encode(), digest_size=16).digest()


def _decode(story: bytes, path: Path, done: int) -> str:
    try:
        return story.decode().strip()
    except UnicodeDecodeError as error:
        message = f"{path}: byte {done + error.start} is not UTF-8; expected a file of stories"
        raise FormatError(message, path=path, expected="UTF-8") from None


def check_file(
    path: StrPath,
    check: Callable[[str], Check],
    *,
    training_path: StrPath | None,
    num_workers: int,
    progress: Progress | None,
) -> tuple[Check, ...]:
    """Return the results of a function for all texts of a file; texts of the training file are copies."""
    with atomic.explain("read", path):
        size = os.path.getsize(path)
    known = KnownStories(read_stories(training_path) if training_path is not None else ())
    num_workers = min(num_workers, usable_cores()) if size > BYTES_PER_READ else 1
    texts = read_stories(path)
    tasks = iter(lambda: list(islice(texts, TEXTS_PER_TASK)), [])
    checks: list[Check] = []
    done = 0
    with closing(map_in_processes(partial(_check_all, check), tasks, num_workers)) as results:
        for checked in results:
            checks += [dataclasses.replace(result, is_copy=text in known) for text, result in checked]
            done += sum(len(text.encode()) + len(SEPARATOR) for text, _ in checked)
            if progress:
                progress(min(done, size), size)
    return tuple(checks)


def _check_all(check: Callable[[str], Check], texts: list[str]) -> list[tuple[str, Check]]:
    return [(text, check(text)) for text in texts]

"""What the storybook and the world book share: files of texts, their manifests, and checks of such files.

A text is a story or a document of the world book. `SEPARATOR` follows each text in a file. Files are read and
checked in bounded memory. The manifest of `FILE` is `FILE.json`. It has the exact information content of the
texts, from which `read_floor_of_text` computes the floor of the loss.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from bytewright.corpus import END_OF_TEXT, SEPARATOR
from bytewright.errors import BytewrightError, FormatError
from bytewright.executors import map_in_processes
from bytewright.formatting import Progress
from bytewright.storage import atomic, filesystem
from bytewright.storage.filesystem import StrPath
from bytewright.storage.json_reader import Json, read_document
from bytewright.storage.manifest import manifest_path_of
from bytewright.system import usable_cores

STORYBOOK_FORMAT = "bytewright storybook 1"
WORLDBOOK_FORMAT = "bytewright world book 1"
MAX_MANIFEST_BYTES = 2**16
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


@contextlib.contextmanager
def write_texts(path: StrPath) -> Iterator[BinaryIO]:
    """Yield a stream for the texts of a file, and remove its old manifest just before the file is replaced.

    The caller writes the new manifest after the block. So a manifest always describes the file next to it, or
    is missing after a crash between the two.
    """
    with atomic.write_stream(path) as stream:
        yield stream
        with atomic.explain("write", path):  # a full disk must fail before the old manifest is removed
            stream.flush()
            os.fsync(stream.fileno())
        atomic.remove_if_present(manifest_path_of(path))  # the block ends with the rename of the new file


def read_floor_of_text(path: StrPath) -> float | None:
    """Return the information content of a generated file in bits per byte; None for any other file.

    A file whose size differs from that in its manifest was changed, so its content is not known.
    """
    file = manifest_path_of(path)
    if not file.is_file():
        return None
    try:
        document = Json(read_document(file, max_bytes=MAX_MANIFEST_BYTES), file)
        if document.get("format").value not in (STORYBOOK_FORMAT, WORLDBOOK_FORMAT):
            return None
        bits, num_bytes = document["bits"].as_number(), document["num_bytes"].as_integer()
        num_documents = document["num_documents"].as_integer()
    except BytewrightError:  # the manifest of something else
        return None
    return bits_per_byte(bits, num_bytes, num_documents) if os.path.getsize(path) == num_bytes else None


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

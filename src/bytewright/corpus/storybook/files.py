"""Stories in files: written in parallel, in bounded memory, whole or not at all; read back one by one.

In a file every story is followed by `SEPARATOR`: a line end, the end token, a line end. The same seed gives
the same bytes for any number of workers, and a larger file begins with what a smaller one holds.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable, Container, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from pathlib import Path

from bytewright.corpus import END_OF_TEXT, SEPARATOR
from bytewright.corpus.storybook.book import Storybook
from bytewright.corpus.storybook.check import CheckReport, StoryCheck
from bytewright.corpus.storybook.tell import Split
from bytewright.corpus.storybook.workers import map_in_order
from bytewright.errors import FormatError, UsageError
from bytewright.storage import atomic, filesystem

STORIES_PER_PIECE = 512
BYTES_PER_READ = 2**20
LONGEST_STORY = 2**20

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """What was written, and what it weighs."""

    num_stories: int
    num_bytes: int
    bits: float
    """The sum of -log2 of the probabilities of the stories."""

    @property
    def bits_per_byte(self) -> float:
        """The floor: no model of the grammar can be expected to have a lower mean over this file.

        As evaluations count: the prediction of an end token counts, its bytes, which are no text, do not.
        """
        return self.bits / (self.num_bytes - self.num_stories * len(END_OF_TEXT.encode()))


def write_stories(
    path: str | os.PathLike[str],
    size: int,
    *,
    seed: int,
    split: Split = "train",
    num_workers: int = 1,
    progress: Progress | None = None,
) -> Written:
    """Write the first stories of a split, as many as fit into `size` bytes; at least one must."""
    num_stories, num_bytes, bits = 0, 0, 0.0
    with atomic.write_stream(path) as stream, closing(_told(seed, split, num_workers)) as told:
        for text, cost in told:
            if num_bytes + len(text) > size:
                break
            stream.write(text)
            num_stories, num_bytes, bits = num_stories + 1, num_bytes + len(text), bits + cost
            if progress and num_stories % STORIES_PER_PIECE == 0:
                progress(num_bytes, size)
        if not num_stories:
            raise UsageError(f"a size of {size} bytes is too small for one story, which takes {len(text)}")
    return Written(num_stories=num_stories, num_bytes=num_bytes, bits=bits)


def _told(seed: int, split: Split, num_workers: int) -> Generator[tuple[bytes, float], None, None]:
    pieces = (range(start, start + STORIES_PER_PIECE) for start in count(0, STORIES_PER_PIECE))
    with closing(map_in_order(partial(_tell, seed, split), pieces, num_workers)) as results:
        for told in results:
            yield from told


def _tell(seed: int, split: Split, indices: range) -> list[tuple[bytes, float]]:
    return Storybook.load().teller.lines(seed, indices, split)


def read_stories(path: str | os.PathLike[str]) -> Iterator[str]:
    """Read the stories of a file one by one, without what separates them.

    What follows the last end token is a story too, unless it is blank: one that was broken off. A megabyte
    without an end token is refused, so that memory stays bounded whatever the file is.
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
                raise FormatError(
                    f"{path}: no {END_OF_TEXT} within {LONGEST_STORY} bytes from byte {done} on,"
                    " so this is no file of stories"
                )
        if begun.strip():
            yield _decode(begun, path, done)


class KnownStories(Container[str]):
    """A set of stories that remembers only a hash of each: a few dozen bytes instead of a page."""

    def __init__(self, stories: Iterable[str]) -> None:
        self._hashes = {_hash(story) for story in stories}

    def __contains__(self, story: object) -> bool:
        return isinstance(story, str) and _hash(story) in self._hashes


def _hash(story: str) -> bytes:
    return hashlib.blake2b(story.encode(), digest_size=16).digest()


def check_file(
    path: str | os.PathLike[str],
    *,
    training_path: str | os.PathLike[str] | None = None,
    num_workers: int = 1,
    progress: Progress | None = None,
) -> CheckReport:
    """Check every story of a file; those that stand in the training file, too, are copies."""
    size = os.path.getsize(path)
    known = KnownStories(read_stories(training_path) if training_path is not None else ())
    workers = num_workers if size > BYTES_PER_READ else 1
    checks: list[StoryCheck] = []
    done = 0
    with closing(map_in_order(_check, _batches(read_stories(path)), workers)) as results:
        for texts, checked in results:
            checks += [
                dataclasses.replace(check, is_copy=text in known)
                for text, check in zip(texts, checked, strict=True)
            ]
            done += sum(len(text.encode()) + len(SEPARATOR) for text in texts)
            if progress:
                progress(min(done, size), size)
    return CheckReport(stories=tuple(checks))


def _batches(stories: Iterator[str]) -> Iterator[list[str]]:
    while batch := list(islice(stories, STORIES_PER_PIECE)):
        yield batch


def _check(texts: list[str]) -> tuple[list[str], list[StoryCheck]]:
    checker = Storybook.load().checker
    return texts, [checker.check(text) for text in texts]


def _decode(story: bytes, path: Path, done: int) -> str:
    try:
        return story.decode().strip()
    except UnicodeDecodeError as error:
        raise FormatError(
            f"{path}: byte {done + error.start} is not UTF-8, so this is no file of stories"
        ) from None

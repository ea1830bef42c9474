"""Read and write files of stories, in parallel and in bounded memory.

`SEPARATOR` follows each story in a file: a line end, the end token, a line end. Files are written atomically.
The same seed yields the same bytes for any number of workers, and a smaller file is a prefix of a larger one.

A `ProcessPoolExecutor` generates and checks stories. Its workers end with this process, even if it is killed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Container, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any, TypeVar

from bytewright import executors
from bytewright.corpus import END_OF_TEXT, SEPARATOR
from bytewright.corpus.storybook.book import Storybook
from bytewright.corpus.storybook.check import CheckReport, StoryCheck
from bytewright.corpus.storybook.generator import Split
from bytewright.errors import FormatError, wrong_value
from bytewright.formatting import Progress
from bytewright.storage import atomic, filesystem
from bytewright.system import usable_cores

STORIES_PER_TASK = 128
STORIES_PER_REMOTE_TASK = 2048
"""On a cluster a task takes a few milliseconds more, so it is larger: about 1 MB of text."""
BYTES_PER_READ = 2**20
LONGEST_STORY = 2**20

Work = TypeVar("Work")
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Written:
    """The size and the information content of a written file."""

    num_stories: int
    num_bytes: int
    bits: float
    """The sum of -log2 of the probabilities of the stories."""

    @property
    def bits_per_byte(self) -> float:
        """The floor: the expected minimum loss of any model on this file.

        As in evaluations, predictions of end tokens count, but their bytes do not.
        """
        return self.bits / (self.num_bytes - self.num_stories * len(END_OF_TEXT.encode()))


def write_stories(
    path: str | os.PathLike[str],
    size: int,
    *,
    seed: int,
    split: Split = "train",
    num_workers: int = 1,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> Written:
    """Write the first stories of a split, as many as fit into `size` bytes; at least one must fit.

    The number of worker processes is at most the number of usable cores. With an `executor`, its workers
    generate the stories.
    """
    num_stories, num_bytes, bits = 0, 0, 0.0
    generated = _generate(seed, split, num_workers, executor)
    with atomic.write_stream(path) as stream, closing(generated) as stories:
        for text, cost in stories:
            if num_bytes + len(text) > size:
                break
            stream.write(text)
            num_stories, num_bytes, bits = num_stories + 1, num_bytes + len(text), bits + cost
            if progress and num_stories % STORIES_PER_TASK == 0:
                progress(num_bytes, size)
        if not num_stories:
            raise wrong_value("size", f"at least {len(text)} bytes, the length of the first story", size)
    return Written(num_stories=num_stories, num_bytes=num_bytes, bits=bits)


def _generate(
    seed: int, split: Split, num_workers: int, executor: Executor | None
) -> Generator[tuple[bytes, float], None, None]:
    generate = partial(_generate_lines, seed, split)
    if executor is None:
        results = map_in_processes(generate, _ranges(STORIES_PER_TASK), min(num_workers, usable_cores()))
    else:
        ranges = _ranges(STORIES_PER_REMOTE_TASK)
        results = executors.map_in_order(executor, generate, ranges, num_workers=num_workers)
    with closing(results):
        for stories in results:
            yield from stories


def _ranges(length: int) -> Iterator[range]:
    return (range(start, start + length) for start in count(0, length))


def _generate_lines(seed: int, split: Split, indices: range) -> list[tuple[bytes, float]]:
    return Storybook.load().generator.lines(seed, indices, split)


def read_stories(path: str | os.PathLike[str]) -> Iterator[str]:
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


def check_story_file(
    path: str | os.PathLike[str],
    *,
    training_path: str | os.PathLike[str] | None = None,
    num_workers: int = 1,
    progress: Progress | None = None,
) -> CheckReport:
    """Check every story of a file; stories that also occur in the training file are copies."""
    with atomic.explain("read", path):
        size = os.path.getsize(path)
    known = KnownStories(read_stories(training_path) if training_path is not None else ())
    num_workers = min(num_workers, usable_cores()) if size > BYTES_PER_READ else 1
    checks: list[StoryCheck] = []
    done = 0
    with closing(map_in_processes(_check, _batches(read_stories(path)), num_workers)) as results:
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
    while batch := list(islice(stories, STORIES_PER_TASK)):
        yield batch


def _check(texts: list[str]) -> tuple[list[str], list[StoryCheck]]:
    checker = Storybook.load().checker
    return texts, [checker.check(text) for text in texts]


def _decode(story: bytes, path: Path, done: int) -> str:
    try:
        return story.decode().strip()
    except UnicodeDecodeError as error:
        message = f"{path}: byte {done + error.start} is not UTF-8; expected a file of stories"
        raise FormatError(message, path=path, expected="UTF-8") from None


# Worker processes


def map_in_processes(
    function: Callable[[Work], Result], work: Iterable[Work], num_workers: int
) -> Generator[Result, None, None]:
    """Yield the results of a function in the order of `work`; one worker means this process.

    Close the generator to end the workers early (`contextlib.closing`).

    >>> list(map_in_processes(len, ["a", "bcd"], num_workers=1))
    [1, 3]
    """
    if num_workers == 1:
        yield from map(function, work)
        return
    # Start new interpreters: forking a process that has threads, as torch does, can deadlock.
    context = multiprocessing.get_context("spawn")
    executor = _WorkerProcesses(num_workers, context, initializer=_end_with_parent)
    try:
        with closing(executors.map_in_order(executor, function, work, num_workers=num_workers)) as results:
            yield from results
    finally:
        executor.shutdown(cancel_futures=True)


class _WorkerProcesses(ProcessPoolExecutor):
    """A process pool whose workers ignore SIGINT and SIGTERM: this process handles them and ends its workers.

    Both can be sent to a whole process group. A worker that ended while it was sending a result would leave
    the executor waiting for the rest of it.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Schedule a call; the first one starts the workers, which inherit the signal mask."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
        try:
            return super().submit(fn, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    """Start a thread that ends this worker when its parent ends, even by SIGKILL.

    The executor does not do this: its workers hold both ends of the task queue, so they never read its end.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()

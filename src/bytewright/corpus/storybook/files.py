"""Write files of stories, and check them, in several processes.

`SEPARATOR` follows each story in a file: a line end, the end token, a line end. Files are written atomically.
The same seed yields the same bytes for any number of workers, and a smaller file is a prefix of a larger one.

The manifest of `stories.txt` is `stories.txt.json` (see `books.write_texts`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count

from bytewright import executors
from bytewright.corpus.books import STORYBOOK_FORMAT, bits_per_byte, check_file, write_texts
from bytewright.corpus.storybook.book import Storybook
from bytewright.corpus.storybook.check import CheckReport, StoryCheck
from bytewright.corpus.storybook.generator import Split
from bytewright.errors import wrong_value
from bytewright.formatting import Progress
from bytewright.storage import atomic
from bytewright.storage.filesystem import StrPath
from bytewright.storage.manifest import manifest_path_of
from bytewright.system import usable_cores

STORIES_PER_TASK = 128
STORIES_PER_REMOTE_TASK = 2048
"""On a cluster a task takes a few milliseconds more, so it is larger: about 1 MB of text."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """The properties of a written file."""

    split: Split
    seed: int
    num_stories: int
    num_bytes: int
    bits: float
    """The sum of -log2 of the probabilities of the stories, their ends included."""
    sha256: str

    @property
    def bits_per_byte(self) -> float:
        """The floor: the expected minimum loss of any model on this file."""
        return bits_per_byte(self.bits, self.num_bytes, self.num_stories)

    def to_plain(self) -> dict[str, object]:
        """Return the fields for a JSON document, with the names that all books share."""
        fields = asdict(self)
        return {"format": STORYBOOK_FORMAT, "num_documents": fields.pop("num_stories"), **fields}


def write_stories(
    path: StrPath,
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
    digest = hashlib.sha256()
    generated = _generate(seed, split, num_workers, executor)
    with write_texts(path) as stream, closing(generated) as stories:
        for text, cost in stories:
            if num_bytes + len(text) > size:
                break
            stream.write(text)
            digest.update(text)
            num_stories, num_bytes, bits = num_stories + 1, num_bytes + len(text), bits + cost
            if progress and num_stories % STORIES_PER_TASK == 0:
                progress(num_bytes, size)
        if not num_stories:
            raise wrong_value("size", f"at least {len(text)} bytes, the length of the first story", size)
    written = Written(
        split=split,
        seed=seed,
        num_stories=num_stories,
        num_bytes=num_bytes,
        bits=bits,
        sha256=digest.hexdigest(),
    )
    atomic.write_document(manifest_path_of(path), written.to_plain())
    return written


def _generate(
    seed: int, split: Split, num_workers: int, executor: Executor | None
) -> Generator[tuple[bytes, float], None, None]:
    generate = partial(_generate_lines, seed, split)
    if executor is None:
        results = executors.map_in_processes(
            generate, _ranges(STORIES_PER_TASK), min(num_workers, usable_cores())
        )
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


def check_story_file(
    path: StrPath,
    *,
    training_path: StrPath | None = None,
    is_of_other_book: Callable[[str], bool] | None = None,
    num_workers: int = 1,
    progress: Progress | None = None,
) -> CheckReport:
    """Check every story of a file; stories that also occur in the training file are copies.

    `is_of_other_book` is called with each text that is not well-formed; worker processes import it by name.
    """
    check = partial(_check, is_of_other_book)
    checks = check_file(path, check, training_path=training_path, num_workers=num_workers, progress=progress)
    return CheckReport(stories=checks)


def _check(is_of_other_book: Callable[[str], bool] | None, text: str) -> StoryCheck:
    checked = Storybook.load().checker.check(text)
    if is_of_other_book is None or checked.has_shape:
        return checked
    return replace(checked, is_of_other_book=is_of_other_book(text))

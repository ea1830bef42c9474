"""Count the words of a corpus, and encode it, on the workers of an executor.

The results do not depend on the workers. Counting: each task returns a table of (word, count), and the tables
are merged as a binary tree. The merges are those of one process. Encoding: each task writes one token file
(shard) into a dataset, and the shards, concatenated, have the ids of `Tokenizer.encode_file`. A shard's name
is a hash of everything its ids depend on. Encoding again therefore skips complete shards.

Workers read the sources and write the shards themselves: both must be on storage that all machines share.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from bytewright._native import WordCounter, WordTable
from bytewright.corpus import END_OF_TEXT
from bytewright.corpus.ranges import MARGIN, RANGE_BYTES, FindCut, TextRange, cut_sources, is_url, read_pieces
from bytewright.data.dataset import INDEX, read_index, write_index
from bytewright.data.tokenfile import Ids, Manifest, TokenFile, TokenFileWriter, hash_ids, map_ids
from bytewright.errors import BytewrightError, ClusterError, OutputExistsError, TokenizerError, UsageError
from bytewright.executors import map_unordered
from bytewright.formatting import Progress
from bytewright.storage import atomic
from bytewright.storage.manifest import manifest_path_of
from bytewright.tokenizer.formats import read_bytewright, write_bytewright
from bytewright.tokenizer.tokenizer import DocumentCounter, Tokenizer
from bytewright.tokenizer.vocabulary import PATTERNS, name_of_pattern

MAX_RANGES_PER_TASK = 16
"""How many ranges one task counts at most."""
COUNT_TASKS_PER_WORKER = 2
"""How many counting tasks each worker has at least, so that all of them finish at about the same time.

Each task builds a table, and all tables must be merged, so more tasks would take longer.
"""
TOKENIZER = "tokenizer"
"""The folder of a dataset with its tokenizer, which the workers read."""
LOCK = ".lock"
SHARD = re.compile(r"tokens-[0-9a-f]{16}\.npy(\.json)?")


# Cutting


def cut_texts(
    sources: Sequence[str],
    special_tokens: Sequence[str],
    *,
    pattern: str = "gpt2",
    range_bytes: int = RANGE_BYTES,
    progress: Progress | None = None,
) -> list[TextRange]:
    """Cut texts into ranges that can be counted or encoded one by one, with the result of the whole.

    Ranges end after `<|endoftext|>` if it is a special token. Documents that are much longer than a range are
    cut between words, unless the pattern is user-defined.
    """
    find_cut = _find_cut_of(pattern, special_tokens)
    at_documents = ends_documents(special_tokens)
    if find_cut is None and not at_documents:
        range_bytes = 2**63  # no cut is known to be safe
    return cut_sources(
        sources, range_bytes=range_bytes, at_documents=at_documents, find_cut=find_cut, progress=progress
    )


def _find_cut_of(pattern: str, special_tokens: Sequence[str]) -> FindCut | None:
    """Return the rule that cuts a text between words; None for a user-defined pattern, which has no rule."""
    counter = WordCounter(name_of_pattern(pattern), special_tokens)  # raises if the pattern is invalid
    longest = max((len(token.encode()) for token in special_tokens), default=0)
    return counter.next_cut if pattern in PATTERNS and longest < MARGIN else None


def ends_documents(special_tokens: Sequence[str]) -> bool:
    """Return whether a text can be cut after every `<|endoftext|>`: no special token extends over it.

    >>> ends_documents(["<|endoftext|>", "<|user|>"]), ends_documents(["<|endoftext|>", "|>.<|end"])
    (True, False)
    """
    others = [token for token in special_tokens if token != END_OF_TEXT]
    starts = {END_OF_TEXT[:length] for length in range(1, len(END_OF_TEXT) + 1)}
    overlaps = any(END_OF_TEXT in token or any(token.endswith(start) for start in starts) for token in others)
    return END_OF_TEXT in special_tokens and not overlaps


# Counting


@dataclass(frozen=True, kw_only=True)
class CountTask:
    """The ranges that one task counts."""

    ranges: tuple[TextRange, ...]
    pattern: str
    special_tokens: tuple[str, ...]

    @property
    def num_bytes(self) -> int:
        """The bytes of all ranges."""
        return sum(text_range.num_bytes for text_range in self.ranges)


def count_ranges(task: CountTask) -> bytes:
    """Return the table of the words in some ranges; runs on a worker."""
    counter = WordCounter(name_of_pattern(task.pattern), task.special_tokens)
    find_cut = _find_cut_of(task.pattern, task.special_tokens)
    for text_range in task.ranges:
        if is_url(text_range.source):
            for piece in read_pieces(text_range, find_cut):
                counter.add_text(piece)
        else:
            # Mapped: Dask makes workers return freed memory at once, so each piece read would need new pages.
            counter.add_file_part(text_range.source, text_range.start, text_range.end)
    return counter.table_bytes()


def count_on(
    executor: Executor,
    ranges: Sequence[TextRange],
    special_tokens: Sequence[str],
    *,
    pattern: str = "gpt2",
    num_workers: int,
    progress: Progress | None = None,
) -> WordTable:
    """Return the word counts of ranges, counted by the workers of an executor, for `train_tokenizer`."""
    num_tasks = max(COUNT_TASKS_PER_WORKER * num_workers, math.ceil(len(ranges) / MAX_RANGES_PER_TASK))
    cuts = [len(ranges) * number // num_tasks for number in range(num_tasks + 1)]
    tasks = [
        CountTask(ranges=tuple(ranges[start:end]), pattern=pattern, special_tokens=tuple(special_tokens))
        for start, end in pairwise(cuts)
        if start < end
    ]
    total, done = sum(task.num_bytes for task in tasks), 0
    merger = TableMerger()
    with closing(map_unordered(executor, count_ranges, tasks, num_workers=num_workers)) as counted:
        for task, table in counted:
            merger.add(WordTable(table))
            done += task.num_bytes
            if progress is not None:
                progress(done, total)
    return merger.finish()


class TableMerger:
    """Merges tables as a binary tree: the n-th level has at most one table, the sum of 2^n tables.

    Tables arrive in any order. The memory is at most that of one table per level, and of two tables and their
    sum during a merge. By Heaps' law the number of distinct words grows more slowly than the text, so the
    sizes of the levels are a geometric series. With 1,000 tables and the exponent 0.6, the peak was 2.6 times
    the size of the sum (`benchmarks/cluster.py memory`).
    """

    def __init__(self) -> None:
        self._levels: list[WordTable | None] = []

    def add(self, table: WordTable) -> None:
        """Add a table."""
        level = 0
        while level < len(self._levels) and (other := self._levels[level]) is not None:
            self._levels[level] = None
            table, level = other.merge(table), level + 1
        if level == len(self._levels):
            self._levels.append(None)
        self._levels[level] = table

    def finish(self) -> WordTable:
        """Return the sum of all tables, the smallest first."""
        total = WordTable(WordCounter("gpt2", []).table_bytes())
        for level, table in enumerate(self._levels):
            if table is not None:
                self._levels[level] = None
                total = table.merge(total)
        return total


# Encoding


@dataclass(frozen=True, kw_only=True)
class EncodeTask:
    """One range to encode into one shard of the dataset in `folder`."""

    folder: str
    name: str
    text_range: TextRange
    fingerprint: str
    append_end: bool
    """Whether to add the end token after the range: another source follows text without one."""
    closes_document: bool
    """Whether a document ends with the range, although no end token follows it."""


def encode_range(task: EncodeTask) -> Manifest:
    """Write the shard of a range and return its manifest; runs on a worker."""
    folder = Path(task.folder)
    tokenizer = _load_tokenizer(str(folder / TOKENIZER), task.fingerprint)
    end = tokenizer.special_tokens.get(END_OF_TEXT)
    path = folder / task.name
    with TokenFileWriter(
        path, tokenizer_fingerprint=task.fingerprint, vocabulary_size=tokenizer.vocab_size
    ) as writer:
        for ids in _encode_pieces(tokenizer, task.text_range):
            writer.append(ids, num_documents=0 if end is None else int(np.count_nonzero(ids == end)))
        added = [] if end is None or not task.append_end else [end]
        writer.append(added, num_documents=int(bool(added) or task.closes_document))
    return TokenFile.open(path).manifest


def _encode_pieces(tokenizer: Tokenizer, text_range: TextRange) -> Iterator[Ids]:
    if is_url(text_range.source):
        find_cut = _find_cut_of(tokenizer.pattern, list(tokenizer.special_tokens))
        for piece in read_pieces(text_range, find_cut):
            yield tokenizer.encode_array(piece, num_threads=1)
    else:  # mapped, as in `count_ranges`
        yield from tokenizer.encode_file_part(text_range.source, text_range.start, text_range.end)


@functools.lru_cache(2)
def _load_tokenizer(folder: str, fingerprint: str) -> Tokenizer:
    """Return the tokenizer of a dataset; its tables are built once per worker."""
    if not Path(folder).exists():
        message = f"a worker does not find {folder}; the dataset must be in a folder that all machines share"
        raise ClusterError(message, path=folder)
    tokenizer = Tokenizer.from_vocabulary(read_bytewright(folder))
    if tokenizer.fingerprint != fingerprint:
        message = f"{folder}: the tokenizer was replaced while texts were encoded with {fingerprint[:12]}…"
        raise TokenizerError(message, path=folder, expected=fingerprint, found=tokenizer.fingerprint)
    return tokenizer


@dataclass(frozen=True, kw_only=True)
class EncodedDataset:
    """A complete dataset, and how many of its shards existed before."""

    tokens: TokenFile
    num_shards: int
    num_reused: int


def encode_on(
    executor: Executor,
    tokenizer: Tokenizer,
    ranges: Sequence[TextRange],
    folder: atomic.StrPath,
    *,
    num_workers: int,
    replace: bool = False,
    progress: Progress | None = None,
) -> EncodedDataset:
    """Encode ranges to the dataset `folder`; complete shards are kept, the index is written last.

    A dataset of other texts or of another tokenizer is an error, unless `replace` is set. Then shards that
    the new index does not list are removed.
    """
    folder = Path(os.path.abspath(folder))
    if not ranges:
        raise UsageError("the texts are empty", key="sources")
    tasks = _plan(tokenizer, ranges, folder)
    _check_folder(folder, [task.name for task in tasks], replace=replace)
    with _locked(folder):
        if not (folder / TOKENIZER).exists() or read_bytewright(folder / TOKENIZER) != tokenizer.vocabulary:
            write_bytewright(tokenizer.vocabulary, folder / TOKENIZER, replace=True)
        complete = {task.name: manifest for task in tasks if (manifest := _find_complete(task)) is not None}
        num_reused = len(complete)
        digest, num_hashed = hashlib.sha256(), 0
        total = sum(task.text_range.num_bytes for task in tasks)
        done = sum(task.text_range.num_bytes for task in tasks if task.name in complete)
        missing = [task for task in tasks if task.name not in complete]
        with closing(map_unordered(executor, encode_range, missing, num_workers=num_workers)) as encoded:
            for task, manifest in encoded:
                complete[task.name] = manifest
                done += task.text_range.num_bytes
                if progress is not None:
                    progress(done, total)
                while num_hashed < len(tasks) and tasks[num_hashed].name in complete:
                    hash_ids(_open_written(folder, tasks[num_hashed], complete), digest)
                    num_hashed += 1
        for task in tasks[num_hashed:]:  # all of them were there before
            hash_ids(_open_written(folder, task, complete), digest)
        write_index(folder, ((task.name, complete[task.name]) for task in tasks), digest.hexdigest())
        for path in folder.iterdir():
            if SHARD.fullmatch(path.name) and path.name.removesuffix(".json") not in complete:
                atomic.remove_if_present(path)
    return EncodedDataset(tokens=TokenFile.open(folder), num_shards=len(tasks), num_reused=num_reused)


def _plan(tokenizer: Tokenizer, ranges: Sequence[TextRange], folder: Path) -> list[EncodeTask]:
    has_end = END_OF_TEXT in tokenizer.special_tokens
    tasks = []
    for place, text_range in enumerate(ranges):
        is_final = place == len(ranges) - 1
        ends_open = text_range.is_last and has_end and _ends_open(tokenizer, ranges, place)
        append_end = ends_open and not is_final
        closes_document = is_final and (ends_open or not has_end)
        identity = [
            text_range.source,
            text_range.version,
            text_range.start,
            text_range.end,
            append_end,
            closes_document,
        ]
        digest = hashlib.sha256(json.dumps([tokenizer.fingerprint, *identity]).encode()).hexdigest()
        tasks.append(
            EncodeTask(
                folder=str(folder),
                name=f"tokens-{digest[:16]}.npy",
                text_range=text_range,
                fingerprint=tokenizer.fingerprint,
                append_end=append_end,
                closes_document=closes_document,
            )
        )
    return tasks


def _ends_open(tokenizer: Tokenizer, ranges: Sequence[TextRange], last: int) -> bool:
    """Return whether more than white space follows the last end token of a source; `last` is its last range.

    If special tokens overlap, a mark in the text can be part of another token, so the ids decide.
    """
    is_open = ranges[last].ends_open
    if not ends_documents(list(tokenizer.special_tokens)):
        for text_range in reversed(ranges[: last + 1]):
            documents = DocumentCounter(tokenizer)
            num_ends = sum(map(documents.count_ends, _encode_pieces(tokenizer, text_range)))
            is_open = documents.is_open
            if num_ends or is_open or not text_range.start:
                break
    return is_open


def _check_folder(folder: Path, names: Sequence[str], *, replace: bool) -> None:
    """Raise if the folder has other files, or a dataset that the new one would replace."""
    if not folder.is_dir():
        if folder.exists():
            message = f"{folder} is a file, but a dataset is a folder; choose another name"
            raise UsageError(message, path=folder, expected="folder", found="file")
        return
    known = (INDEX, TOKENIZER, LOCK)
    for path in folder.iterdir():
        if not (path.name in known or SHARD.fullmatch(path.name) or path.name.startswith(".")):
            message = f"{folder}: contains {path.name}, which is not part of a dataset; give an empty folder"
            raise UsageError(message, path=folder, found=path.name)
    if (folder / INDEX).exists() and not replace:
        listed = [shard.name for shard in read_index(folder)[1]]
        if listed != list(names):
            problem = f"{folder} is a dataset of other texts or of another tokenizer"
            raise OutputExistsError(problem, path=folder)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Reject a second process that writes the same dataset."""
    with atomic.open_to_append(folder / LOCK) as file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = f"{folder}: another process writes this dataset; wait until it has finished"
            raise UsageError(message, path=folder) from None
        yield


def _find_complete(task: EncodeTask) -> Manifest | None:
    """Return the manifest of a shard that was written completely, after checking its ids."""
    path = Path(task.folder) / task.name
    if not (path.exists() and manifest_path_of(path).exists()):
        return None
    try:
        manifest = TokenFile.open(path, verify=True).manifest
    except BytewrightError:
        return None  # damaged: it is encoded again
    return manifest if manifest.tokenizer_fingerprint == task.fingerprint else None


def _open_written(folder: Path, task: EncodeTask, complete: dict[str, Manifest]) -> Ids:
    """Return the ids of a shard; raise if this machine does not find what a worker wrote."""
    path = folder / task.name
    if not path.exists():
        message = (
            f"{path}: a worker wrote this shard, but it is not here; use a folder that all machines share"
        )
        raise ClusterError(message, path=path)
    tokens = TokenFile.open(path)
    if tokens.manifest != complete[task.name]:
        message = f"{path}: was replaced while the dataset was written; run the command again"
        raise ClusterError(message, path=path, key="sha256")
    return map_ids(path)

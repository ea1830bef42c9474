"""Counting and encoding on an executor give the results of one process, for every split of the texts."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from bytewright._native import WordCounter, WordTable
from bytewright.corpus import END_OF_TEXT, ranges
from bytewright.corpus.ranges import TextRange
from bytewright.data.dataset import INDEX
from bytewright.data.tokenfile import TokenFile
from bytewright.errors import ClusterError, FormatError, StorageError, UsageError
from bytewright.tokenizer import Tokenizer, Vocabulary, count_words, train_tokenizer
from bytewright.tokenizer import cluster as tokenizer_cluster
from bytewright.tokenizer.cluster import (
    COUNT_TASKS_PER_WORKER,
    MAX_RANGES_PER_TASK,
    CountTask,
    TableMerger,
    count_on,
    count_ranges,
    cut_texts,
    encode_on,
)
from texts import BROKEN, SPECIALS, WORDS

HEADER = 48
"""The bytes of a table before its entries."""


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "BLOCK", 8192)
    monkeypatch.setattr(ranges, "SEARCH", 20_000)


@pytest.fixture(scope="module")
def threads() -> Iterator[Executor]:
    with ThreadPoolExecutor(3) as executor:
        yield executor


@pytest.fixture(scope="module")
def text() -> bytes:
    """Pieces that have broken tokenizers, some long documents, and many short ones."""
    draw = random.Random(5)
    pieces = [*(word.encode() for word in WORDS), *BROKEN]
    text = b"".join(draw.choices(pieces, k=20_000))
    documents = [b"".join(draw.choices(pieces, k=draw.randrange(200))) for _ in range(300)]
    return END_OF_TEXT.encode().join([*documents[:150], text, *documents[150:]])


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> list[str]:
    """Three files: one ends with a mark, one does not, and one has white space after its mark."""
    folder = tmp_path_factory.mktemp("sources")
    end = END_OF_TEXT.encode()
    for name, contents in (
        ("a.txt", text[:50_000] + end),
        ("b.txt", b"The owl slept. " * 900),
        ("c.txt", text + end + b"\n"),
    ):
        (folder / name).write_bytes(contents)
    return [str(folder / name) for name in ("a.txt", "b.txt", "c.txt")]


def entries(table: WordTable) -> bytes:
    return table.to_bytes()[HEADER:]


@pytest.mark.parametrize("pattern", ["gpt2", "gpt4", r" ?[^\s]+|\s+(?!\S)|\s+"])
@pytest.mark.parametrize(
    "special_tokens",
    [
        [END_OF_TEXT],
        [END_OF_TEXT, *SPECIALS],
        [],
        ["<e>"],
        [END_OF_TEXT, "x<|end"],
        [END_OF_TEXT, END_OF_TEXT * 2],
    ],
)
def test_counts_are_those_of_the_whole_for_every_split(
    threads: Executor, sources: list[str], pattern: str, special_tokens: list[str]
) -> None:
    expected = WordCounter(pattern, special_tokens)
    for source in sources:
        expected.add_text(Path(source).read_bytes())
    num_ranges = set()
    for range_bytes in (3000, 20_011, 10**9):
        cut = cut_texts(sources, special_tokens, pattern=pattern, range_bytes=range_bytes)
        num_ranges.add(len(cut))
        table = count_on(threads, cut, special_tokens, pattern=pattern, num_workers=3)
        assert entries(table) == expected.table_bytes()[HEADER:]
        assert table.stats()[:3] == expected.stats()[:3]
    assert 3 in num_ranges
    has_cuts = pattern in ("gpt2", "gpt4") or special_tokens == [END_OF_TEXT]
    assert len(num_ranges) == (3 if has_cuts else 1)


def test_merges_are_those_of_one_process(threads: Executor, sources: list[str]) -> None:
    expected = train_tokenizer(sources, 600, [END_OF_TEXT])
    cut = cut_texts(sources, [END_OF_TEXT], range_bytes=5000)
    table = count_on(threads, cut, [END_OF_TEXT], num_workers=3)
    training = train_tokenizer(table, 600, [END_OF_TEXT])
    assert training.vocabulary == expected.vocabulary
    assert training.merge_counts == expected.merge_counts
    assert (training.num_words, training.corpus_bytes) == (expected.num_words, expected.corpus_bytes)


@pytest.mark.parametrize("num_tables", [0, 1, 2, 3, 7, 8, 13])
def test_merged_tables_are_sums(num_tables: int) -> None:
    draw = random.Random(num_tables)
    merger, expected = TableMerger(), count_words({})
    for _ in range(num_tables):
        words = {bytes(draw.choices(b"ab\x00\xff", k=draw.randrange(1, 20))): draw.randrange(1, 10**6)}
        words |= {b"common": 1, b"a word of more than 15 bytes": 2}
        merger.add(WordTable(count_words(words).table_bytes()))
        for word, count in words.items():
            expected.add_word(word, count)
    assert entries(merger.finish()) == expected.table_bytes()[HEADER:]


def test_a_table_is_consumed_and_a_damaged_one_rejected() -> None:
    data = count_words({b"low": 5, b"lower": 2}).table_bytes()
    table = WordTable(data)
    assert train_tokenizer(table, 258).vocabulary.merges == ((b"o", b"w"), (b"l", b"ow"))
    with pytest.raises(RuntimeError):
        table.to_bytes()
    for damaged in (data[:-1], b"x" + data[1:], data + b"\x00", b""):
        with pytest.raises(FormatError):
            WordTable(damaged)


@pytest.fixture(scope="module")
def tokenizer(sources: list[str]) -> Tokenizer:
    return Tokenizer.from_vocabulary(train_tokenizer(sources, 500, [END_OF_TEXT]).vocabulary)


@pytest.mark.parametrize("range_bytes", [3000, 20_011, 10**9])
@pytest.mark.parametrize("prefix", ["", "file://"])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1,), (2, 0, 1)])
def test_shards_have_the_ids_of_one_file(
    threads: Executor,
    sources: list[str],
    tokenizer: Tokenizer,
    tmp_path: Path,
    range_bytes: int,
    order: tuple[int, ...],
    prefix: str,
) -> None:
    pytest.importorskip("fsspec")
    chosen = [sources[place] for place in order]
    expected = tokenizer.encode_file(chosen, tmp_path / "one.npy")
    named = [prefix + source for source in chosen]
    cut = cut_texts(named, list(tokenizer.special_tokens), range_bytes=range_bytes)
    encoded = encode_on(threads, tokenizer, cut, tmp_path / "many", num_workers=3)
    assert encoded.num_shards == len(cut)
    assert encoded.tokens.manifest == expected.manifest
    tokens = TokenFile.open(tmp_path / "many", verify=True).tokens
    assert np.array_equal(np.asarray(tokens), expected.tokens)


def test_an_empty_file_at_the_end_adds_nothing(
    threads: Executor, sources: list[str], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    (tmp_path / "empty.txt").touch()
    alone, followed = [sources[1]], [sources[1], str(tmp_path / "empty.txt")]
    expected = tokenizer.encode_file(alone, tmp_path / "alone.npy").manifest
    assert tokenizer.encode_file(followed, tmp_path / "followed.npy").manifest == expected
    cut = cut_texts(followed, [END_OF_TEXT])
    assert encode_on(threads, tokenizer, cut, tmp_path / "d", num_workers=2).tokens.manifest == expected


@pytest.mark.parametrize("special", ["x<|end", END_OF_TEXT * 2])
@pytest.mark.parametrize("after", [b"", b" \n" * 4000, END_OF_TEXT.encode()])
def test_a_mark_inside_another_special_token_ends_no_document(
    threads: Executor, tmp_path: Path, special: str, after: bytes
) -> None:
    other = Tokenizer({byte: bytes([byte]) for byte in range(256)}, [], [END_OF_TEXT, special])
    mark = END_OF_TEXT.encode()
    (tmp_path / "a.txt").write_bytes(b"one " * 2000 + b"x" + mark + mark + after)
    (tmp_path / "b.txt").write_bytes(b"two")
    chosen = [str(tmp_path / name) for name in ("a.txt", "b.txt", "a.txt")]
    expected = other.encode_file(chosen, tmp_path / "one.npy").manifest
    cut = cut_texts(chosen, list(other.special_tokens), range_bytes=3000)
    assert encode_on(threads, other, cut, tmp_path / "d", num_workers=2).tokens.manifest == expected


def test_a_tokenizer_without_end_token_encodes_the_same_ids(
    threads: Executor, sources: list[str], tmp_path: Path
) -> None:
    plain = Tokenizer.from_vocabulary(train_tokenizer(sources, 500).vocabulary)
    expected = plain.encode_file(sources, tmp_path / "one.npy")
    cut = cut_texts(sources, [], range_bytes=3000)
    encoded = encode_on(threads, plain, cut, tmp_path / "many", num_workers=3)
    assert encoded.num_shards > 3
    assert encoded.tokens.manifest == expected.manifest


def test_encoding_again_writes_only_what_is_missing_or_damaged(
    threads: Executor, sources: list[str], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    cut = cut_texts(sources, [END_OF_TEXT], range_bytes=20_000)
    first = encode_on(threads, tokenizer, cut, tmp_path / "d", num_workers=3)
    assert first.num_reused == 0
    again = encode_on(threads, tokenizer, cut, tmp_path / "d", num_workers=1)
    assert again.num_reused == again.num_shards == len(cut)
    shards = sorted((tmp_path / "d").glob("tokens-*.npy"))
    shards[0].unlink()
    shards[1].write_bytes(shards[1].read_bytes()[:-2])
    damaged = bytearray(shards[2].read_bytes())
    damaged[-1] ^= 1
    shards[2].write_bytes(damaged)
    for verify in (False, True):
        with pytest.raises(FormatError) as raised:
            TokenFile.open(tmp_path / "d", verify=verify)
        assert raised.value.path in shards[:3]
    repaired = encode_on(threads, tokenizer, cut, tmp_path / "d", num_workers=3)
    assert repaired.num_reused == len(cut) - 3
    assert TokenFile.open(tmp_path / "d", verify=True).manifest == first.tokens.manifest


def test_a_dataset_of_other_texts_is_replaced_only_if_asked(
    threads: Executor, sources: list[str], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    folder = tmp_path / "d"
    whole = cut_texts(sources, [END_OF_TEXT], range_bytes=20_000)
    encode_on(threads, tokenizer, whole, folder, num_workers=3)
    part = cut_texts(sources[:1], [END_OF_TEXT], range_bytes=20_000)
    with pytest.raises(UsageError) as raised:
        encode_on(threads, tokenizer, part, folder, num_workers=3)
    assert raised.value.path == folder
    replaced = encode_on(threads, tokenizer, part, folder, num_workers=3, replace=True)
    assert replaced.num_reused == len(part)  # the shards of the first source are the same
    assert len(list(folder.glob("tokens-*.npy"))) == len(part)


def test_a_folder_with_other_files_is_not_touched(
    threads: Executor, sources: list[str], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "thesis.txt").write_text("mine")
    cut = cut_texts(sources, [END_OF_TEXT])
    for folder in (tmp_path / "d", tmp_path / "d" / "thesis.txt"):
        with pytest.raises(UsageError):
            encode_on(threads, tokenizer, cut, folder, num_workers=3, replace=True)
    assert os.listdir(tmp_path / "d") == ["thesis.txt"]


def test_two_processes_do_not_write_the_same_dataset(
    threads: Executor, sources: list[str], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    cut = cut_texts(sources, [END_OF_TEXT])
    (tmp_path / "d").mkdir()
    with tokenizer_cluster._locked(tmp_path / "d"), pytest.raises(UsageError) as raised:
        encode_on(threads, tokenizer, cut, tmp_path / "d", num_workers=3)
    assert raised.value.path == tmp_path / "d"


def test_a_failed_task_leaves_no_index_and_the_rest_is_kept(
    sources: list[str], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    copies = []
    for source in sources:
        copies.append(str(tmp_path / Path(source).name))
        Path(copies[-1]).write_bytes(Path(source).read_bytes())
    cut = cut_texts(copies, [END_OF_TEXT], range_bytes=20_000)
    os.truncate(copies[-1], 10)
    with ThreadPoolExecutor(1) as executor, pytest.raises(BaseException, match="was changed"):
        encode_on(executor, tokenizer, cut, tmp_path / "d", num_workers=1)
    assert not (tmp_path / "d" / INDEX).exists()
    with pytest.raises(UsageError):
        TokenFile.open(tmp_path / "d")
    Path(copies[-1]).write_bytes(Path(sources[-1]).read_bytes())
    again = cut_texts(copies, [END_OF_TEXT], range_bytes=20_000)
    with ThreadPoolExecutor(1) as executor:
        assert encode_on(executor, tokenizer, again, tmp_path / "d", num_workers=1).num_reused > 0


def test_an_index_that_contradicts_itself_is_rejected(
    threads: Executor, sources: list[str], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    from bytewright.storage import atomic

    encode_on(threads, tokenizer, cut_texts(sources, [END_OF_TEXT]), tmp_path / "d", num_workers=3)
    path = tmp_path / "d" / INDEX
    good = {key: value for key, value in json.loads(path.read_text()).items() if key != "checksum"}
    for change in (
        {"num_tokens": 1},
        {"format": "bytewright dataset 9"},
        {"shards": [{**good["shards"][0], "name": "../a.npy"}, *good["shards"][1:]]},
        {"shards": good["shards"][:-1]},
    ):
        atomic.write_document(path, good | change)
        with pytest.raises(FormatError) as raised:
            TokenFile.open(tmp_path / "d")
        assert raised.value.path == path
    atomic.write_document(path, good | {"sha256": "0" * 64})
    with pytest.raises(FormatError, match="SHA-256"):
        TokenFile.open(tmp_path / "d", verify=True)
    path.write_text(path.read_text()[:-40])
    with pytest.raises(FormatError):
        TokenFile.open(tmp_path / "d")


def test_a_process_pool_is_an_executor_too_and_a_lost_process_one_sentence(
    sources: list[str], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    cut = cut_texts(sources, [END_OF_TEXT], range_bytes=20_000)
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as executor:
        encoded = encode_on(executor, tokenizer, cut, tmp_path / "d", num_workers=2)
        assert encoded.tokens.manifest == tokenizer.encode_file(sources, tmp_path / "one.npy").manifest
        with pytest.raises(BrokenExecutor):
            executor.submit(os._exit, 1).result()
        with pytest.raises(ClusterError):
            count_on(executor, cut, [END_OF_TEXT], num_workers=2)


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_a_task_counts_several_ranges_of_files_and_urls(sources: list[str], prefix: str) -> None:
    pytest.importorskip("fsspec")
    cut = cut_texts([prefix + source for source in sources], [END_OF_TEXT], range_bytes=20_000)
    task = CountTask(ranges=tuple(cut), pattern="gpt2", special_tokens=(END_OF_TEXT,))
    expected = WordCounter("gpt2", [END_OF_TEXT])
    expected.add_files(sources, 1, None)
    assert count_ranges(task)[HEADER:] == expected.table_bytes()[HEADER:]


def test_counting_a_file_that_became_shorter_is_an_error(tmp_path: Path) -> None:
    source = tmp_path / "a.txt"
    source.write_bytes(b"The owl slept. " * 2000)
    cut = cut_texts([str(source)], [END_OF_TEXT], range_bytes=10_000)
    os.truncate(source, cut[-1].end - 1)
    whole, shortened = (
        CountTask(ranges=(each,), pattern="gpt2", special_tokens=(END_OF_TEXT,)) for each in cut[-2:]
    )
    assert WordTable(count_ranges(whole)).stats()[0] == cut[-2].num_bytes
    with pytest.raises(StorageError):
        count_ranges(shortened)


@pytest.mark.parametrize("num_ranges", [0, 1, 7, 8, 9, 48, 200])
def test_every_range_is_counted_once_in_tasks_of_bounded_size(
    threads: Executor, monkeypatch: pytest.MonkeyPatch, num_ranges: int
) -> None:
    tasks: list[CountTask] = []

    def record(task: CountTask) -> bytes:
        tasks.append(task)
        return WordCounter("gpt2", []).table_bytes()

    monkeypatch.setattr(tokenizer_cluster, "count_ranges", record)
    cut = [
        TextRange(source="a", start=place, end=place + 1, version="", is_last=False, ends_open=False)
        for place in range(num_ranges)
    ]
    count_on(threads, cut, [], num_workers=2)
    counted = sorted(each.start for task in tasks for each in task.ranges)
    assert counted == list(range(num_ranges))
    assert len(tasks) >= min(num_ranges, 2 * COUNT_TASKS_PER_WORKER)
    assert all(1 <= len(task.ranges) <= MAX_RANGES_PER_TASK for task in tasks)


def test_a_worker_without_the_folder_of_the_dataset_is_one_sentence(
    sources: list[str], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    with pytest.raises(ClusterError) as raised:
        tokenizer_cluster._load_tokenizer(str(tmp_path / "elsewhere"), "0" * 64)
    assert raised.value.path == tmp_path / "elsewhere"
    assert isinstance(tokenizer.vocabulary, Vocabulary)

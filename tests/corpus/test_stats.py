"""Corpus statistics agree with a slow and simple count, and memory is bounded."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from bytewright.corpus import file_formats
from bytewright.corpus.stats import SmallestHashes, WordCounts, measure_corpus
from conftest import RunCommand

TALES = [
    "The owl didn't sleep. THE OWL sang!",
    "A fox_trot: 3 foxes, 12 steps; \u201cno\u201d, said Zo\u00eb\u2019s fox.",
    "",
    "'Quoted' words -- and more.",
]


def write_tales(folder: Path, tales: list[str] = TALES) -> Path:
    path = folder / "tales.txt"
    path.write_text("".join(f"{tale}\n<|endoftext|>\n" for tale in tales))
    return path


def test_counts_agree_with_a_count_by_hand(tmp_path: Path) -> None:
    stats = measure_corpus(write_tales(tmp_path), num_common=3)
    tales = [tale for tale in TALES if tale]
    assert stats.num_documents == 3
    assert stats.num_bytes == sum(len(tale.encode()) for tale in tales)
    assert stats.num_characters == sum(map(len, tales))
    assert stats.longest_document == max(len(tale.encode()) for tale in tales)
    assert stats.num_words == 7 + 11 + 4
    assert stats.common_words == (("fox", 2), ("owl", 2), ("the", 2))
    assert stats.is_exact
    assert stats.num_invalid_bytes == 0


@given(st.lists(st.text(alphabet="ab'_ \nÄß\u2019", max_size=60), max_size=8))
def test_counts_do_not_depend_on_the_block_size(
    tmp_path_factory: pytest.TempPathFactory, tales: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("tales")
    path = write_tales(folder, tales)
    at_once = measure_corpus(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_formats, "BLOCK", 8)
        in_bits = measure_corpus(path)
    # A word longer than a block is split, so the counts of words are not compared.
    for name in ("num_bytes", "num_documents", "num_characters", "longest_document"):
        assert getattr(in_bits, name) == getattr(at_once, name)
    words = [word for tale in tales for word in re.findall(r"[abÄäß]+(?:['\u2019][abÄäß]+)*", tale.lower())]
    assert at_once.num_words == len(words)
    assert at_once.num_distinct_words == len(set(words))
    assert dict(at_once.common_words) == dict(Counter(words).most_common(20)) or len(set(words)) > 20


BROKEN = [b"\xc3\xa9", b"\xe6\x97\xa5", b"\xf0\xa0", b"\x80\xa9\xac", b"\xbf", b"a"]


@given(st.lists(st.sampled_from(BROKEN), max_size=40))
def test_counts_of_invalid_utf8_do_not_depend_on_the_block_size(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("bytes") / "a.txt"
    path.write_bytes(b"".join(parts))
    at_once = measure_corpus(path)
    for block in range(8, 16):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(file_formats, "BLOCK", block)
            in_bits = measure_corpus(path)
        assert in_bits.num_characters == at_once.num_characters
        assert in_bits.num_invalid_bytes == at_once.num_invalid_bytes


def test_invalid_bytes_are_counted_and_are_not_characters(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"owl \xff\xfe owl \xc3\xab")
    stats = measure_corpus(tmp_path / "a.txt")
    assert (stats.num_invalid_bytes, stats.num_characters, stats.num_words) == (2, 10, 3)


def test_zero_bytes_are_characters_and_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"owl\0owl\0")
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "owl\\u0000owl\\u0000"}')
    for name in ("a.txt", "a.jsonl"):
        stats = measure_corpus(tmp_path / name)
        assert (stats.num_zero_bytes, stats.num_characters, stats.num_words) == (2, 8, 2)


def test_a_full_table_drops_rare_words_and_estimates_their_number(tmp_path: Path) -> None:
    rare = [f"w{number}" for number in range(60_000)]
    text = " ".join(f"{word} the owl" for word in rare)
    (tmp_path / "a.txt").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_formats, "BLOCK", 2**12)
        stats = measure_corpus(tmp_path / "a.txt", exact_words=3000, num_common=2)
    assert not stats.is_exact
    assert stats.num_words == 180_000
    assert stats.common_words == (("owl", 60_000), ("the", 60_000))
    assert abs(stats.num_distinct_words / 60_002 - 1) < 0.04


def test_the_table_of_words_never_grows_beyond_its_bound() -> None:
    words = WordCounts(most=100)
    for start in range(0, 5000, 50):
        words.add([f"w{number}" for number in range(start, start + 50)])
        assert len(words._counts) <= 150


def test_the_sketch_counts_few_distinct_words_exactly() -> None:
    sketch = SmallestHashes(100)
    for _ in range(3):
        for number in range(99):
            sketch.add(str(number))
    assert sketch.estimate() == 99


def test_the_command_prints_a_table_or_json(run: RunCommand, tmp_path: Path) -> None:
    path = write_tales(tmp_path)
    shown = run("corpus", "stats", path, "--top", "1")
    assert shown.code == 0
    assert re.search(r"documents\s+3\n", shown.out)
    assert re.search(r"fox\s+2\s+9\.09%", shown.out)
    assert "zero bytes" not in shown.out
    assert json.loads(run("corpus", "stats", path, "--json").out)["num_documents"] == 3
    path.write_bytes(path.read_bytes() + b"\0\0")
    assert re.search(r"zero bytes\s+2\n", run("corpus", "stats", path).out)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.txt"], "does not exist"),
        (["empty.txt"], "is empty"),
        (["cut.txt.gz"], "cut.txt.gz: "),
        (["a.jsonl"], "a.jsonl, line 1: "),
        (["a.txt", "--top", "-1"], "--top must be at least 0"),
    ],
)
def test_an_unreadable_file_is_one_sentence(
    run: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, data in {
        "a.txt": b"owl",
        "empty.txt": b"",
        "cut.txt.gz": b"owl",
        "a.jsonl": b"owl",
    }.items():
        (tmp_path / name).write_bytes(data)
    outcome = run("corpus", "stats", *arguments)
    assert outcome.code == 2
    assert words in outcome.err
    assert outcome.err.count("\n") == 1
    assert outcome.out == ""

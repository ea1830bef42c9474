"""Training at full size: the merges of the reference, for any number of threads and any source."""

from __future__ import annotations

import lzma
import random
from collections.abc import Mapping
from pathlib import Path

import pytest
from prose import END, the_prose, write_corpus

from bytewright.errors import UsageError
from bytewright.tokenizer.reference import count_words_reference, train_bpe_reference
from bytewright.tokenizer.tokenizer import Tokenizer
from bytewright.tokenizer.train import (
    TrainingResult,
    count_texts,
    count_words,
    extend_tokenizer,
    train_bpe,
    train_tokenizer,
)
from rejection import rejects

THREADS = [1, 2, 3, 8]
NUM_MERGES = 2400
VOCAB_SIZE = 256 + NUM_MERGES + 1


@pytest.fixture(scope="module")
def corpus() -> bytes:
    """Return 4.4 MB of prose, which is distributed to the threads in more than thirty chunks."""
    return write_corpus(1500)


@pytest.fixture(scope="module")
def corpus_file(corpus: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "prose.txt"
    path.write_bytes(corpus)
    return path


@pytest.fixture(scope="module")
def word_counts(corpus: bytes) -> Mapping[bytes, int]:
    return count_words_reference([corpus], [END], "gpt2")


@pytest.fixture(scope="module")
def trained(corpus_file: Path) -> TrainingResult:
    return train_tokenizer(corpus_file, VOCAB_SIZE, [END])


def reproducible_parts(training: TrainingResult) -> tuple[object, ...]:
    """Return the parts of a result that must not depend on threads or sources."""
    return (
        training.vocabulary,
        training.merge_counts,
        training.corpus_bytes,
        training.num_words,
        training.num_distinct_words,
        training.stopped,
    )


# The reference


def test_thousands_of_merges_over_megabytes_equal_the_reference(
    word_counts: Mapping[bytes, int], trained: TrainingResult
) -> None:
    tokens, merges, counts = train_bpe_reference(word_counts, VOCAB_SIZE, [END])
    assert len(merges) == NUM_MERGES
    assert list(trained.vocabulary.merges) == merges
    assert trained.merge_counts == counts
    assert trained.vocabulary.tokens == tokens
    assert len(set(counts)) < NUM_MERGES / 2, "the text should be full of ties"


def test_merges_with_the_gpt4_pattern_equal_the_reference(tmp_path: Path) -> None:
    (tmp_path / "prose.txt").write_bytes(the_prose())
    training = train_tokenizer(tmp_path, 256 + 400 + 1, [END], pattern="gpt4")
    _, merges, counts = train_bpe_reference(the_prose(), 256 + 400 + 1, [END], pattern="gpt4")
    assert (list(training.vocabulary.merges), training.merge_counts) == (merges, counts)


def test_training_to_the_last_pair_equals_the_reference() -> None:
    counts = count_words_reference([write_corpus(3)], [END], "gpt2")
    training = train_tokenizer(count_words(counts), 10_000)
    _, merges, merge_counts = train_bpe_reference(counts, 10_000)
    assert (list(training.vocabulary.merges), training.merge_counts) == (merges, merge_counts)
    assert training.stopped == f"stopped after {len(merges):,} of 9,744 merges: no pair is left"


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["gpt2", "gpt4"])
def test_merges_of_real_stories_equal_the_reference(shared_data: Path, pattern: str) -> None:
    path = shared_data / "tinystories_train.txt"
    training = train_tokenizer(path, 256 + 4000 + 1, [END], pattern=pattern)
    _, merges, counts = train_bpe_reference(path.read_bytes(), 256 + 4000 + 1, [END], pattern=pattern)
    assert (list(training.vocabulary.merges), training.merge_counts) == (merges, counts)


@pytest.mark.slow
def test_merges_of_real_novels_equal_the_reference(shared_data: Path, tmp_path: Path) -> None:
    text = lzma.decompress((shared_data / "novels.txt.xz").read_bytes())[: 8 << 20]
    path = tmp_path / "novels.txt"
    path.write_bytes(text)
    _, merges, counts = train_bpe_reference(text, 256 + 2000 + 1, [END])
    for num_threads in THREADS:
        training = train_tokenizer(path, 256 + 2000 + 1, [END], num_threads=num_threads)
        assert (list(training.vocabulary.merges), training.merge_counts) == (merges, counts)


@pytest.mark.slow
def test_merges_of_many_scripts_equal_the_reference(shared_data: Path) -> None:
    path = shared_data / "multilingual.txt"
    training = train_tokenizer(path, 256 + 4000, [])
    _, merges, counts = train_bpe_reference(path.read_bytes(), 256 + 4000)
    assert (list(training.vocabulary.merges), training.merge_counts) == (merges, counts)


# Threads and files


@pytest.mark.parametrize("num_threads", THREADS)
def test_the_number_of_threads_does_not_change_the_result(
    corpus_file: Path, trained: TrainingResult, num_threads: int
) -> None:
    training = train_tokenizer(corpus_file, VOCAB_SIZE, [END], num_threads=num_threads)
    assert reproducible_parts(training) == reproducible_parts(trained)


@pytest.mark.parametrize("pattern", ["gpt2", "gpt4"])
def test_text_without_special_tokens_is_distributed_at_safe_cuts(
    corpus: bytes, tmp_path: Path, pattern: str
) -> None:
    text = corpus[: 1 << 20].replace(END.encode(), b"")
    path = tmp_path / "text.txt"
    path.write_bytes(text)
    counts = count_words_reference([text], [], pattern)
    _, merges, merge_counts = train_bpe_reference(counts, 300)
    for num_threads in THREADS:
        training = train_tokenizer(path, 300, pattern=pattern, num_threads=num_threads)
        assert (training.num_words, training.num_distinct_words) == (sum(counts.values()), len(counts))
        assert (list(training.vocabulary.merges), training.merge_counts) == (merges, merge_counts)


AWKWARD = [
    *(
        b"a",
        b"b ",
        b" ",
        b"  ",
        b"\n",
        b"\r\n",
        b"'s",
        b"'ll",
        b"'",
        b"12",
        b"!",
        b"<",
        b"<|",
        b"|>",
        b"\xc2\xa0",
    ),
    *(
        "é".encode(),
        "日本".encode(),
        "\u3000".encode(),
        "🙂".encode(),
        b"\x80",
        b"\xff",
        b"\xe2\x82",
        b"\xf0\x9f",
    ),
    *(b"<| a b |>", b"<| a b |><| a b |>", b"| a", b"b |", b"  <|"),
]
"""Text without safe cuts, and special tokens that contain spaces and overlap."""


@pytest.mark.parametrize("pattern", ["gpt2", "gpt4"])
@pytest.mark.parametrize("seed", range(3))
def test_difficult_text_is_distributed_at_safe_cuts(tmp_path: Path, pattern: str, seed: int) -> None:
    draw = random.Random(seed)
    specials = ["<| a b |>", "<| a b |><| a b |>", "b |><"]
    text = b"".join(draw.choices(AWKWARD, k=140_000))
    assert len(text) > 3 * (128 << 10), "long enough for several chunks"
    path = tmp_path / "awkward.bin"
    path.write_bytes(text)
    counts = count_words_reference([text], specials, pattern)
    _, merges, merge_counts = train_bpe_reference(counts, 400, specials)
    for num_threads in THREADS:
        training = train_tokenizer(path, 400, specials, pattern=pattern, num_threads=num_threads)
        assert (training.num_words, training.num_distinct_words) == (sum(counts.values()), len(counts))
        assert (list(training.vocabulary.merges), training.merge_counts) == (merges, merge_counts)


def test_a_user_defined_pattern_is_distributed_at_special_tokens_only(corpus: bytes, tmp_path: Path) -> None:
    text = corpus[: 600 << 10]
    path = tmp_path / "text.txt"
    path.write_bytes(text)
    pattern = r"[^ ]+ [^ ]+|\s"  # two words at a time: a cut between words would shift all that follow
    counts = count_words_reference([text], [END], pattern)
    for num_threads in THREADS:
        training = train_tokenizer(path, 300, [END], pattern=pattern, num_threads=num_threads)
        assert (training.num_words, training.num_distinct_words) == (sum(counts.values()), len(counts))


@pytest.mark.parametrize("num_files", [2, 7, 100])
def test_the_corpus_in_several_files_yields_the_same_merges(
    corpus: bytes, trained: TrainingResult, tmp_path: Path, num_files: int
) -> None:
    documents = [document + END.encode() for document in corpus.split(END.encode())[:-1]]
    draw = random.Random(num_files)
    places = sorted(draw.choices(range(len(documents) + 1), k=num_files - 1))
    paths = []
    for number, (start, end) in enumerate(zip([0, *places], [*places, len(documents)], strict=True)):
        paths.append(tmp_path / f"part {number}.txt")
        paths[-1].write_bytes(b"".join(documents[start:end]))
    draw.shuffle(paths)
    training = train_tokenizer(paths, VOCAB_SIZE, [END], num_threads=3)
    assert reproducible_parts(training) == reproducible_parts(trained)


def test_words_counted_with_another_pattern_are_rejected() -> None:
    for pattern, other in (("gpt2", "gpt4"), ("gpt4", "gpt2"), (r"\w+", "gpt2")):
        counted = count_texts(["low 12345"], pattern=pattern)
        assert train_tokenizer(counted, 258, pattern=pattern).vocabulary.pattern == counted.pattern
        with rejects(UsageError, key="pattern", expected=pattern, found=other):
            train_tokenizer(counted, 258, pattern=other)
    tokenizer = Tokenizer.from_vocabulary(train_tokenizer(count_texts(["low low"]), 257).vocabulary)
    with pytest.raises(UsageError) as caught:
        extend_tokenizer(tokenizer, count_texts(["lower"], pattern="gpt4"), 258)
    assert (caught.value.expected, caught.value.found) == ("gpt4", "gpt2")
    assert train_tokenizer(count_words({b"12345": 3}), 257, pattern="gpt4").vocabulary.pattern == "gpt4"


def test_iterators_of_documents_give_the_merges_of_the_file(corpus: bytes, trained: TrainingResult) -> None:
    documents = corpus.split(END.encode())
    from_bytes = train_tokenizer(count_texts(documents), VOCAB_SIZE, [END])
    from_str = train_tokenizer(count_texts(document.decode() for document in documents), VOCAB_SIZE, [END])
    assert from_bytes.vocabulary == from_str.vocabulary == trained.vocabulary
    assert from_bytes.merge_counts == from_str.merge_counts == trained.merge_counts


def test_given_word_counts_yield_the_merges_of_the_file(
    word_counts: Mapping[bytes, int], trained: TrainingResult
) -> None:
    training = train_tokenizer(count_words(word_counts), VOCAB_SIZE, [END])
    assert training.vocabulary == trained.vocabulary
    assert training.merge_counts == trained.merge_counts


def test_training_leaves_the_counts_as_they_are() -> None:
    counter = count_texts(["low low lower"])
    first = train_tokenizer(counter, 260)
    assert reproducible_parts(train_tokenizer(counter, 260)) == reproducible_parts(first)
    counter.add_text(" newest newest")
    assert counter.counts()[b" newest"] == 2


# Results


def test_ids_are_bytes_then_merges_then_special_tokens(trained: TrainingResult) -> None:
    tokens, merges = trained.vocabulary.tokens, trained.vocabulary.merges
    assert list(tokens) == list(range(VOCAB_SIZE))
    assert [tokens[id] for id in range(256)] == [bytes([byte]) for byte in range(256)]
    assert [tokens[256 + rank] for rank in range(NUM_MERGES)] == [left + right for left, right in merges]
    assert tokens[VOCAB_SIZE - 1] == END.encode()
    assert trained.vocabulary.special_tokens == {END: VOCAB_SIZE - 1}


def test_train_bpe_gives_plain_dictionaries_and_lists(corpus_file: Path) -> None:
    vocab, merges = train_bpe(str(corpus_file), 300, [END])
    assert type(vocab) is dict
    assert type(merges) is list
    assert Tokenizer(vocab, merges, [END]).encode(f"the{END}")[-1] == 299


def test_the_result_contains_statistics_time_and_memory(corpus: bytes, trained: TrainingResult) -> None:
    assert trained.corpus_bytes == len(corpus)
    assert [phase.name for phase in trained.phases] == ["read and scan", "count", "merge"]
    assert all(phase.seconds >= 0 and phase.wall_seconds >= 0 for phase in trained.phases)
    assert trained.peak_memory_bytes > 1 << 20
    assert trained.stopped is None
    assert trained.merge_counts == sorted(trained.merge_counts, reverse=True)


def test_stopping_early_is_reported_in_a_sentence() -> None:
    assert train_tokenizer(count_words({b"ab": 3}), 300).stopped == (
        "stopped after 1 of 44 merges: no pair is left"
    )
    assert train_tokenizer(count_words({b"ab": 3, b"cd": 1}), 300, min_count=2).stopped == (
        "stopped after 1 of 44 merges: no pair occurs 2 times or more"
    )


def test_a_vocabulary_may_consist_of_bytes_and_special_tokens_only(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("low low")
    training = train_tokenizer(path, 258, ["<a>", "<b>"])
    assert training.vocabulary.merges == ()
    assert training.stopped is None


def test_memory_depends_on_the_distinct_words_not_on_the_corpus(
    corpus: bytes, corpus_file: Path, tmp_path: Path
) -> None:
    small = train_tokenizer(corpus_file, 1000, [END], num_threads=2)
    path = tmp_path / "large.txt"
    with path.open("wb") as file:
        for _ in range(8):
            file.write(corpus)
    large = train_tokenizer(path, 1000, [END], num_threads=2)
    assert large.num_words == 8 * small.num_words
    assert large.vocabulary == small.vocabulary
    assert large.peak_memory_bytes - small.peak_memory_bytes < 2 * len(corpus)


# Progress


def test_progress_is_reported_for_both_phases_up_to_the_end(corpus_file: Path) -> None:
    heard: list[tuple[str, int, int, str]] = []
    train_tokenizer(corpus_file, 300, [END], progress=lambda *step: heard.append(step))
    size = corpus_file.stat().st_size
    for phase, total, unit in (("count", size, "bytes"), ("merge", 43, "merges")):
        steps = [step for step in heard if step[0] == phase]
        assert steps[-1][1] == total
        assert steps == sorted(steps)
        assert all(step[2:] == (total, unit) for step in steps)
    phases = [step[0] for step in heard]
    assert phases == sorted(phases), "count comes before merge"


@pytest.mark.parametrize("phase", ["count", "merge"])
def test_an_error_in_the_callers_progress_ends_the_training(corpus_file: Path, phase: str) -> None:
    def complain(reported: str, done: int, total: int, unit: str) -> None:
        if reported == phase:
            raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        train_tokenizer(corpus_file, 2000, [END], progress=complain)

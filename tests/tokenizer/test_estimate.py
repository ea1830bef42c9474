"""An estimate says before training what it will take: the right size, and the same checks."""

from __future__ import annotations

from pathlib import Path

import pytest
from prose import END, write_corpus

from bytewright.system import process_memory
from bytewright.tokenizer.estimate import NUM_SLICES, SLICE_BYTES, _heaps_exponent, _sample, estimate_training
from bytewright.tokenizer.train import train_tokenizer


@pytest.fixture(scope="module")
def corpus_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 6 MB of prose, of which the sample is a third."""
    path = tmp_path_factory.mktemp("corpus") / "prose.txt"
    path.write_bytes(write_corpus(2000, seed=2))
    return path


def test_the_estimate_is_of_the_right_size(corpus_file: Path) -> None:
    estimate = estimate_training(corpus_file, 1000, [END], num_threads=2)
    training = train_tokenizer(corpus_file, 1000, [END], num_threads=2)
    assert estimate.corpus_bytes == training.corpus_bytes == corpus_file.stat().st_size
    assert training.num_distinct_words / 2 < estimate.num_distinct_words < training.num_distinct_words * 2
    assert estimate.seconds > 0
    assert process_memory() / 2 < estimate.memory_bytes < process_memory() + (64 << 20)


def test_a_larger_vocabulary_or_corpus_is_expected_to_take_more(corpus_file: Path) -> None:
    # What was measured varies from one call to the next, so the differences asked for are large ones.
    small = estimate_training(corpus_file, 300, num_threads=1)
    many_files = estimate_training([corpus_file] * 50, 300, num_threads=1)
    assert many_files.corpus_bytes == 50 * small.corpus_bytes
    assert many_files.num_distinct_words > 2 * small.num_distinct_words
    assert many_files.memory_bytes > small.memory_bytes


@pytest.mark.parametrize("text", [b"a", b"low low lower", b"\xff" * 1000, b" " * 200_000, b"a" * 300_000])
def test_a_corpus_of_any_kind_can_be_estimated(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "text.bin"
    path.write_bytes(text)
    for pattern in ("gpt2", "gpt4", r"\S+"):
        estimate = estimate_training(path, 300, pattern=pattern)
        assert estimate.corpus_bytes == len(text)
        assert estimate.num_distinct_words >= 1
        assert estimate.memory_bytes > 0
        assert estimate.seconds > 0


def test_a_folder_is_estimated_as_its_files(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.txt").write_bytes(write_corpus(10, seed=number))
    (tmp_path / "empty.txt").touch()
    total = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert estimate_training(tmp_path, 300, [END]).corpus_bytes == total


def test_the_sample_is_spread_evenly_and_stays_small(corpus_file: Path) -> None:
    slices, total = _sample([corpus_file, corpus_file])
    text = corpus_file.read_bytes()
    assert total == 2 * len(text)
    assert len(slices) == NUM_SLICES
    starts = [total * number // NUM_SLICES for number in range(NUM_SLICES)]
    assert slices == [(text + text)[start : start + SLICE_BYTES] for start in starts]


def test_a_small_corpus_is_its_own_sample(tmp_path: Path) -> None:
    (tmp_path / "small.txt").write_bytes(b"low low lower")
    assert _sample([tmp_path / "small.txt"]) == ([b"low low lower"], 13)


@pytest.mark.parametrize(
    ("half", "whole", "exponent"),
    [
        ((100, 10), (200, 20), 1.0),  # every word is new
        ((100, 10), (400, 20), 0.5),
        ((100, 10), (200, 10), 0.5),  # nothing new: not enough to judge by
        ((100, 10), (1_000_000, 11), 0.3),  # never below what natural text shows
        ((0, 0), (0, 0), 0.5),
        ((100, 0), (200, 5), 0.5),
    ],
)
def test_the_growth_of_the_vocabulary_follows_heaps_law(
    half: tuple[int, int], whole: tuple[int, int], exponent: float
) -> None:
    assert _heaps_exponent(*half, *whole) == pytest.approx(exponent)

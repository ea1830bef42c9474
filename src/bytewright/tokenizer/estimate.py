"""What training will take, said before it starts.

A few slices of the corpus, a few megabytes in all, are counted and merged for real. Counting time grows with
the bytes. The number of distinct words grows as a power of the bytes (Heaps' law), whose exponent two samples
of different size give; merging time and memory grow with the distinct words. Expect the right size, not the
second digit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from bytewright._native import WordCounter, learn_merges
from bytewright.storage.filesystem import explain, open_to_read
from bytewright.system import process_memory
from bytewright.tokenizer.tokenizer import check_num_threads
from bytewright.tokenizer.train import NUM_BYTES, StrPath, check_special_tokens, check_vocab_size, files_of
from bytewright.tokenizer.vocabulary import name_of_pattern

NUM_SLICES = 16
SLICE_BYTES = 128 << 10
SAMPLE_MERGES = 2000

# Bytes that training holds per distinct word and per byte of it: an entry of 24 bytes in a table that is at
# most half full, in each thread and once more for the sum; then 4 bytes for the slot of every byte, 4 for the
# position of the pair that begins there, and about 4 for the pairs.
TABLE_BYTES_PER_WORD = 48
MERGE_BYTES_PER_BYTE = 12


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What training is expected to take."""

    seconds: float
    memory_bytes: int
    corpus_bytes: int
    num_distinct_words: int


def estimate_training(
    source: StrPath | Sequence[StrPath],
    vocab_size: int,
    special_tokens: Iterable[str] = (),
    *,
    pattern: str = "gpt2",
    num_threads: int | None = None,
) -> Estimate:
    """Count and merge a sample of the corpus, and conclude from it to the whole."""
    specials = check_special_tokens(special_tokens)
    check_vocab_size(vocab_size, specials)
    num_threads = check_num_threads(num_threads)
    slices, corpus_bytes = _sample(files_of(source))
    sample_bytes = sum(map(len, slices))

    counter = WordCounter(name_of_pattern(pattern), specials)
    started = perf_counter()
    for text in slices[::2]:
        counter.add_text(text)
    half_bytes, _, half_distinct, _, _ = counter.stats()
    for text in slices[1::2]:
        counter.add_text(text)
    count_seconds = perf_counter() - started
    _, _, distinct, _, _ = counter.stats()
    num_word_bytes = sum(map(len, counter.counts()))
    started = perf_counter()
    learn_merges(counter, SAMPLE_MERGES, 1, [], None)
    merge_seconds = perf_counter() - started

    growth = corpus_bytes / max(sample_bytes, 1)
    exponent = _heaps_exponent(half_bytes, half_distinct, sample_bytes, distinct)
    distinct_growth = growth**exponent
    num_merges = vocab_size - NUM_BYTES - len(specials)
    # Every further doubling of the merges does about as much again as the one before it, on ever fewer words.
    merges_growth = math.log2(2 + num_merges) / math.log2(2 + SAMPLE_MERGES)
    seconds = count_seconds * growth / num_threads + merge_seconds * distinct_growth * merges_growth
    per_word = TABLE_BYTES_PER_WORD * (num_threads + 1)
    memory = (distinct * per_word + num_word_bytes * MERGE_BYTES_PER_BYTE) * distinct_growth
    return Estimate(
        seconds=seconds,
        memory_bytes=process_memory() + int(memory),
        corpus_bytes=corpus_bytes,
        num_distinct_words=int(distinct * distinct_growth),
    )


def _heaps_exponent(half_bytes: int, half_distinct: int, all_bytes: int, all_distinct: int) -> float:
    """Solve `distinct = c * bytes**exponent` for two samples, within what natural text shows."""
    if not 0 < half_bytes < all_bytes or not 0 < half_distinct < all_distinct:
        return 0.5
    exponent = math.log(all_distinct / half_distinct) / math.log(all_bytes / half_bytes)
    return min(max(exponent, 0.3), 1.0)


def _sample(files: list[Path]) -> tuple[list[bytes], int]:
    """Read slices spread evenly over all files; also return how many bytes there are in all."""
    sizes = [file.stat().st_size for file in files]
    total = sum(sizes)
    num_slices = min(NUM_SLICES, max(1, total // SLICE_BYTES))
    slices: list[bytes] = []
    before, next_start = 0, 0
    for file, size in zip(files, sizes, strict=True):
        with explain("read", file), open_to_read(file) as stream:
            while next_start < before + size and len(slices) < num_slices:
                stream.seek(next_start - before)
                slices.append(stream.read(SLICE_BYTES))
                next_start = total * len(slices) // num_slices
        before += size
    return slices, total

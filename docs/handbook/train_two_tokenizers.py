"""Train two tokenizers, one on stories and one on prose, and record how they differ.

    python docs/handbook/train_two_tokenizers.py --stories stories.txt --prose novels.txt --out out.json

Both files hold documents that end with <|endoftext|>. Ten of each, drawn by a fixed seed, are kept out of
training and encoded by both tokenizers. Each training is repeated, and the seconds of all threads in each
phase are kept for every repetition: one alone says little, since shares move by ten per cent between them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
from pathlib import Path
from typing import Any

from bytewright.tokenizer import Tokenizer, TrainingResult, train_tokenizer
from bytewright.tokenizer.inspect import cross_table, longest_tokens, overlap, show_token

END = b"<|endoftext|>"
NUM_SAMPLES = 10
NUM_REPEATS = 9
VOCAB_SIZES = {"stories": 10_000, "prose": 32_000}


def main() -> None:
    """Train both tokenizers, compare them and write the results."""
    parser = argparse.ArgumentParser(description="Train two tokenizers and write down how they differ.")
    parser.add_argument("--stories", type=Path, required=True)
    parser.add_argument("--prose", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    samples, repeated = {}, {}
    for name, path in (("stories", options.stories), ("prose", options.prose)):
        kept_out, rest = hold_out(path)
        samples[name] = b"".join(kept_out)
        repeated[name] = [train(rest, VOCAB_SIZES[name]) for _ in range(NUM_REPEATS)]
    first, second = (trainings[0].vocabulary for trainings in repeated.values())
    tokenizers = [Tokenizer.from_vocabulary(vocabulary) for vocabulary in (first, second)]
    shared = overlap(first, second)
    record = {name: describe(trainings) for name, trainings in repeated.items()} | {
        "load_average_at_start": round(load, 2),
        "num_samples": NUM_SAMPLES,
        "bytes_per_token": dict(zip(samples, cross_table(tokenizers, list(samples.values())), strict=True)),
        "shared_merges": shared.num_shared_merges,
        "shared_tokens": shared.num_shared_tokens,
        "first_merges": [show_token(b"".join(vocabulary.merges[0])) for vocabulary in (first, second)],
        "only_in_stories": [show_token(token) for token in shared.only_in_first[:20]],
        "only_in_prose": [show_token(token) for token in shared.only_in_second[:20]],
    }
    options.out.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def hold_out(path: Path) -> tuple[list[bytes], list[bytes]]:
    """Split the documents of a file into ten for measurement and all others."""
    documents = [document + END for document in path.read_bytes().split(END) if document.strip()]
    chosen = set(random.Random(0).sample(range(len(documents)), NUM_SAMPLES))
    return (
        [document for number, document in enumerate(documents) if number in chosen],
        [document for number, document in enumerate(documents) if number not in chosen],
    )


def train(documents: list[bytes], vocab_size: int) -> TrainingResult:
    """Write the documents to a file and train on it."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"".join(documents))
        file.flush()
        return train_tokenizer(file.name, vocab_size, [END.decode()])


def describe(trainings: list[TrainingResult]) -> dict[str, Any]:
    """Return the figures of a training and its repetitions."""
    training = trainings[0]
    return {
        "vocab_size": training.vocabulary.size,
        "corpus_bytes": training.corpus_bytes,
        "num_words": training.num_words,
        "num_distinct_words": training.num_distinct_words,
        "last_merge_count": training.merge_counts[-1],
        "thread_seconds": [
            {phase.name: round(phase.seconds, 4) for phase in training.phases} for training in trainings
        ],
        "longest": [show_token(token) for _, token in longest_tokens(training.vocabulary, 10)],
    }


if __name__ == "__main__":
    main()

"""Extending a tokenizer: existing tokens are kept, and new merges equal those of longer training."""

from __future__ import annotations

from pathlib import Path

import pytest
from prose import END, the_prose

from bytewright.tokenizer.tokenizer import Tokenizer
from bytewright.tokenizer.train import extend_tokenizer, train_tokenizer


@pytest.fixture(scope="module")
def corpus_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "prose.txt"
    path.write_bytes(the_prose())
    return path


def test_extending_in_steps_equals_training_at_once(corpus_file: Path) -> None:
    vocabulary = train_tokenizer(corpus_file, 256 + 500).vocabulary
    for vocab_size in (256 + 501, 256 + 1500, 256 + 2400):
        tokenizer = Tokenizer.from_vocabulary(vocabulary)
        vocabulary = extend_tokenizer(tokenizer, corpus_file, vocab_size, num_threads=3).vocabulary
    at_once = train_tokenizer(corpus_file, 256 + 2400).vocabulary
    assert vocabulary == at_once


def test_extending_keeps_ids_and_puts_new_tokens_after_the_special_ones(corpus_file: Path) -> None:
    start = Tokenizer.from_vocabulary(train_tokenizer(corpus_file, 400, [END]).vocabulary)
    training = extend_tokenizer(start, corpus_file, 500)
    assert training.vocabulary.special_tokens == {END: 399}
    assert {id: training.vocabulary.tokens[id] for id in range(400)} == start.vocab
    assert training.vocabulary.merges[: 400 - 257] == start.merges
    assert len(training.merge_counts) == 100
    text = "the" + END + corpus_file.read_text()[:1000]
    longer = Tokenizer.from_vocabulary(training.vocabulary)
    assert longer.decode(longer.encode(text)) == text
    assert len(longer.encode(text)) < len(start.encode(text))


def test_extending_to_the_current_size_changes_nothing(corpus_file: Path) -> None:
    start = Tokenizer.from_vocabulary(train_tokenizer(corpus_file, 400, [END]).vocabulary)
    training = extend_tokenizer(start, corpus_file, 400)
    assert training.vocabulary == start.vocabulary
    assert training.stopped is None

"""What the tests of the tokenizer share: prose, a tokenizer that was trained on it, and its ids."""

from __future__ import annotations

import pytest
from prose import END, write_corpus

from bytewright.tokenizer.tokenizer import Tokenizer
from bytewright.tokenizer.train import count_texts, train_tokenizer


@pytest.fixture(scope="session")
def prose() -> bytes:
    """Return 1.5 MB of documents: enough for several threads to get a share of it."""
    return write_corpus(500, seed=5)


@pytest.fixture(scope="session")
def prose_tokenizer(prose: bytes) -> Tokenizer:
    return Tokenizer.from_vocabulary(train_tokenizer(count_texts([prose], [END]), 2000, [END]).vocabulary)


@pytest.fixture(scope="session")
def prose_ids(prose_tokenizer: Tokenizer, prose: bytes) -> list[int]:
    return prose_tokenizer.encode(prose)

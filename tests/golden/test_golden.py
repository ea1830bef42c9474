"""Merges, ids and fingerprints of a small text must not change between versions.

The reference implementation created `tale.json`. These tests compare both implementations with that file. A
difference means that existing tokenizers and token files no longer match: it breaks compatibility. Write a
new golden file only if the tie rule or a pattern was changed on purpose.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bytewright.tokenizer.formats.gpt2 import spell
from bytewright.tokenizer.reference import encode_reference, train_bpe_reference
from bytewright.tokenizer.tokenizer import Tokenizer
from bytewright.tokenizer.train import train_tokenizer
from bytewright.tokenizer.vocabulary import Vocabulary

HERE = Path(__file__).parent
TALE = HERE / "tale.txt"
END = "<|endoftext|>"

Golden = dict[str, Any]


@pytest.fixture(params=["gpt2", "gpt4"])
def golden(request: pytest.FixtureRequest) -> Golden:
    found: Golden = json.loads((HERE / "tale.json").read_text(encoding="utf-8"))[request.param]
    return {"pattern": request.param, **found}


def describe(vocabulary: Vocabulary, merge_counts: list[int], ids: list[int]) -> Golden:
    """Return the values that must not change; merges are spelled as in GPT-2's files (a space is Ġ)."""
    return {
        "pattern": vocabulary.pattern,
        "merges": [f"{spell(left)} {spell(right)}" for left, right in vocabulary.merges],
        "merge_counts": merge_counts,
        "ids": ids,
        "fingerprint": vocabulary.fingerprint,
    }


def test_the_fused_tokenizer_gives_the_golden_merges_and_ids(golden: Golden) -> None:
    training = train_tokenizer(TALE, 400, [END], pattern=golden["pattern"])
    tokenizer = Tokenizer.from_vocabulary(training.vocabulary)
    ids = tokenizer.encode(TALE.read_bytes())
    assert describe(training.vocabulary, training.merge_counts, ids) == golden
    assert tokenizer.decode_bytes(golden["ids"]) == TALE.read_bytes()


def test_the_reference_gives_the_golden_merges_and_ids(golden: Golden) -> None:
    text = TALE.read_bytes()
    tokens, merges, merge_counts = train_bpe_reference(text, 400, [END], pattern=golden["pattern"])
    vocabulary = Vocabulary.from_parts(tokens, merges, [END], golden["pattern"])
    assert describe(vocabulary, merge_counts, encode_reference(text, vocabulary)) == golden

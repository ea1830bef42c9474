"""With the same vocabulary, ids are those of tiktoken and of HF tokenizers, wherever Unicode versions agree.

Both peers bring Unicode tables of their own, older than those of the pinned `regex` package. So strings are
made of code points that the peer puts into the same class as we do: tiktoken is asked, and for HF we take
what Python's own older tables know, whose classes every later version keeps.
"""

from __future__ import annotations

import importlib
import lzma
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import pytest
import regex
import tiktoken
import tokenizers

from bytewright.tokenizer.formats import write_huggingface
from bytewright.tokenizer.tokenizer import Tokenizer
from bytewright.tokenizer.train import count_texts, train_tokenizer
from bytewright.tokenizer.vocabulary import PATTERNS, Vocabulary
from random_strings import CODE_POINTS, random_strings
from texts import WORDS

END = "<|endoftext|>"
CLASSES = [r"\p{L}", r"\p{N}", r"\s"]


def members_by_tiktoken(expression: str) -> str:
    """Return the characters that match in tiktoken, which drops unmatched text."""
    every_byte = {bytes([byte]): byte for byte in range(256)}
    encoding = tiktoken.Encoding("class", pat_str=expression, mergeable_ranks=every_byte, special_tokens={})
    found = bytearray()
    for start in range(0, len(CODE_POINTS), 1 << 16):
        found += encoding.decode_bytes(
            encoding.encode_ordinary("".join(CODE_POINTS[start : start + (1 << 16)]))
        )
    return found.decode()


@pytest.fixture(scope="module")
def agreed() -> list[str]:
    """Return the code points that tiktoken and `regex` put into the same class."""
    everything = "".join(CODE_POINTS)
    disputed: set[str] = set()
    for expression in CLASSES:
        disputed |= set(members_by_tiktoken(expression)) ^ set(regex.findall(expression, everything))
    return [character for character in CODE_POINTS if character not in disputed]


def test_unicode_versions_agree_on_nearly_all_code_points(agreed: list[str]) -> None:
    assert len(agreed) > 0.98 * len(CODE_POINTS)


def in_tiktoken(vocabulary: Vocabulary, pattern: str) -> tiktoken.Encoding:
    """Return the same vocabulary in tiktoken, where the ids of tokens are the ranks of their merges."""
    return tiktoken.Encoding(
        "ours",
        pat_str=pattern,
        mergeable_ranks=vocabulary.ids_of_ordinary_tokens,
        special_tokens=dict(vocabulary.special_tokens),
    )


def assert_same_ids(tokenizer: Tokenizer, encoding: tiktoken.Encoding, texts: Sequence[str]) -> None:
    ours = tokenizer.encode_batch(texts)
    theirs = encoding.encode_batch(list(texts), allowed_special="all")
    for text, our_ids, their_ids in zip(texts, ours, theirs, strict=True):
        if our_ids.tolist() != their_ids:
            assert (text, our_ids.tolist()) == (text, their_ids)


# A vocabulary of our own, without any data


@pytest.fixture(scope="module", params=sorted(PATTERNS))
def trained(request: pytest.FixtureRequest) -> Tokenizer:
    """Return a tokenizer trained on random strings."""
    strings = ("".join(batch) for batch in random_strings(50_000, seed=3))
    counter = count_texts(strings, [END], pattern=request.param)
    return Tokenizer.from_vocabulary(train_tokenizer(counter, 3000, [END], pattern=request.param).vocabulary)


def test_ids_of_random_strings_equal_tiktoken(trained: Tokenizer, agreed: list[str]) -> None:
    encoding = in_tiktoken(trained.vocabulary, PATTERNS[trained.pattern])
    for strings in random_strings(10_000, seed=4, characters=agreed, pieces=[*WORDS, END]):
        assert_same_ids(trained, encoding, strings)


def test_ids_of_random_strings_equal_hf_tokenizers(trained: Tokenizer, tmp_path: Path) -> None:
    write_huggingface(trained.vocabulary, tmp_path / "tokenizer.json")
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assigned = [character for character in CODE_POINTS if unicodedata.category(character) != "Cn"]
    pieces = [*(word for word in WORDS if all(unicodedata.category(letter) != "Cn" for letter in word)), END]
    for strings in random_strings(10_000, seed=5, characters=assigned, pieces=pieces):
        encoded = theirs.encode_batch(strings, add_special_tokens=False)
        ours = trained.encode_batch(strings)
        for text, our_ids, their_ids in zip(strings, ours, encoded, strict=True):
            if our_ids.tolist() != their_ids.ids:
                assert (text, our_ids.tolist()) == (text, their_ids.ids)


# The vocabulary of GPT-2, and real text


@pytest.fixture(scope="module")
def gpt2(shared_data: Path) -> Tokenizer:
    return Tokenizer.from_files(shared_data / "gpt2_vocab.json", shared_data / "gpt2_merges.txt", [END])


@pytest.fixture(scope="module")
def gpt2_in_tiktoken(gpt2: Tokenizer) -> tiktoken.Encoding:
    return in_tiktoken(gpt2.vocabulary, importlib.import_module("tiktoken_ext.openai_public").r50k_pat_str)


def test_gpt2_yields_the_published_ids(gpt2: Tokenizer) -> None:
    assert gpt2.vocab_size == 50257
    assert gpt2.encode("Hello world") == [15496, 995]
    assert gpt2.encode(f"hello world{END}") == [31373, 995, 50256]
    assert gpt2.encode("Hello, I'm a language model.") == [15496, 11, 314, 1101, 257, 3303, 2746, 13]


def test_gpt2_ids_of_random_strings_equal_tiktoken(
    gpt2: Tokenizer, gpt2_in_tiktoken: tiktoken.Encoding, agreed: list[str]
) -> None:
    for strings in random_strings(20_000, seed=6, characters=agreed, pieces=[*WORDS, END]):
        assert_same_ids(gpt2, gpt2_in_tiktoken, strings)


@pytest.mark.slow
def test_gpt2_ids_of_a_million_random_strings_equal_tiktoken(
    gpt2: Tokenizer, gpt2_in_tiktoken: tiktoken.Encoding, agreed: list[str]
) -> None:
    for strings in random_strings(1_000_000, seed=7, characters=agreed, pieces=[*WORDS, END]):
        assert_same_ids(gpt2, gpt2_in_tiktoken, strings)


@pytest.mark.parametrize("name", ["multilingual.txt", "tinystories_valid.txt"])
def test_gpt2_ids_of_real_text_equal_tiktoken(
    gpt2: Tokenizer, gpt2_in_tiktoken: tiktoken.Encoding, shared_data: Path, name: str
) -> None:
    text = (shared_data / name).read_bytes().decode()
    expected = gpt2_in_tiktoken.encode(text, allowed_special="all")
    assert gpt2.encode(text) == expected
    assert gpt2.encode_array(text, num_threads=3).tolist() == expected
    assert list(gpt2.encode_iterable(text.splitlines(keepends=True))) == expected


@pytest.mark.slow
def test_gpt2_ids_of_all_stories_equal_tiktoken(
    gpt2: Tokenizer, gpt2_in_tiktoken: tiktoken.Encoding, shared_data: Path
) -> None:
    text = (shared_data / "tinystories_train.txt").read_bytes().decode()
    assert gpt2.encode(text) == gpt2_in_tiktoken.encode(text, allowed_special="all")


@pytest.mark.slow
def test_gpt2_ids_of_all_novels_equal_tiktoken(
    gpt2: Tokenizer, gpt2_in_tiktoken: tiktoken.Encoding, shared_data: Path
) -> None:
    text = lzma.decompress((shared_data / "novels.txt.xz").read_bytes()).decode()
    ids = gpt2.encode_array(text)
    assert ids.tolist() == gpt2_in_tiktoken.encode(text, allowed_special="all")
    assert gpt2.decode_bytes(ids) == text.encode()

"""Every way to encode a text gives the ids of the readable twin, and every way back gives the text."""

from __future__ import annotations

import codecs
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from texts import (
    SPECIALS,
    cut_up,
    named_patterns,
    special_tokens,
    texts,
    texts_for_user_patterns,
    user_patterns,
)

from bytewright import _native
from bytewright.data import TokenFile
from bytewright.errors import TokenizerError
from bytewright.tokenizer.reference import decode_reference, encode_reference, train_bpe_reference
from bytewright.tokenizer.tokenizer import Tokenizer
from bytewright.tokenizer.vocabulary import Vocabulary

THREADS = [1, 2, 3, 8]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("encoded")


@st.composite
def vocabularies(
    draw: st.DrawFn, corpora: st.SearchStrategy[bytes], patterns: st.SearchStrategy[str]
) -> Vocabulary:
    """Learn a vocabulary from some text and scatter its ids, whose values mean nothing to the merges."""
    pattern = draw(patterns)
    tokens, merges, _ = train_bpe_reference(draw(corpora), 256 + draw(st.integers(0, 60)), pattern=pattern)
    stride, offset = draw(st.sampled_from([(1, 0), (3, 5), (257, 0), (13_000_003, 1)]))
    scattered = {id * stride + offset: token for id, token in tokens.items()}
    return Vocabulary.from_parts(scattered, merges, draw(special_tokens), pattern)


any_vocabularies = vocabularies(texts, named_patterns)


# Encoding


@given(any_vocabularies, texts)
def test_ids_equal_the_twin(vocabulary: Vocabulary, text: bytes) -> None:
    assert Tokenizer.from_vocabulary(vocabulary).encode(text) == encode_reference(text, vocabulary)


@given(vocabularies(texts_for_user_patterns, user_patterns), texts_for_user_patterns)
def test_ids_equal_the_twin_with_a_pattern_of_the_users(vocabulary: Vocabulary, text: bytes) -> None:
    assert Tokenizer.from_vocabulary(vocabulary).encode(text) == encode_reference(text, vocabulary)


@given(any_vocabularies, st.lists(texts, max_size=6))
def test_a_tokenizer_that_has_encoded_before_gives_the_same_ids(
    vocabulary: Vocabulary, several: list[bytes]
) -> None:
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    for text in several * 2:  # the second time, words come out of the cache
        assert tokenizer.encode(text) == encode_reference(text, vocabulary)


@given(any_vocabularies, st.text(max_size=40))
def test_str_and_its_utf8_give_the_same_ids(vocabulary: Vocabulary, text: str) -> None:
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    assert tokenizer.encode(text) == tokenizer.encode(text.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(any_vocabularies, texts)
def test_arrays_hold_the_same_ids_in_the_smallest_type(vocabulary: Vocabulary, text: bytes) -> None:
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    ids = tokenizer.encode(text)
    for num_threads in THREADS:
        array = tokenizer.encode_array(text, num_threads=num_threads)
        assert array.tolist() == ids
        assert array.dtype == (np.uint16 if vocabulary.size <= 2**16 else np.uint32)


@given(any_vocabularies, st.lists(texts, max_size=8))
def test_a_batch_holds_the_ids_of_each_text(vocabulary: Vocabulary, several: list[bytes]) -> None:
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    expected = [tokenizer.encode(text) for text in several]
    for num_threads in THREADS:
        batch = tokenizer.encode_batch(several, num_threads=num_threads)
        assert [ids.tolist() for ids in batch] == expected


@given(any_vocabularies, texts, st.data())
def test_a_stream_over_any_cut_gives_the_ids_of_the_whole(
    vocabulary: Vocabulary, text: bytes, data: st.DataObject
) -> None:
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    pieces = data.draw(cut_up(text))
    assert list(tokenizer.encode_iterable(pieces)) == tokenizer.encode(text)
    one_by_one = (text[place : place + 1] for place in range(len(text)))
    assert list(tokenizer.encode_iterable(one_by_one)) == tokenizer.encode(text)


@given(vocabularies(texts_for_user_patterns, user_patterns), texts_for_user_patterns, st.data())
def test_a_stream_with_a_pattern_of_the_users_gives_the_ids_of_the_whole(
    vocabulary: Vocabulary, text: bytes, data: st.DataObject
) -> None:
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    text = text * data.draw(st.integers(1, 3))
    assert list(tokenizer.encode_iterable(data.draw(cut_up(text)))) == tokenizer.encode(text)


@given(any_vocabularies, texts, st.integers(0, 20), st.sampled_from(THREADS))
def test_a_file_read_in_steps_of_any_size_gives_the_ids_of_the_whole(
    folder: Path, vocabulary: Vocabulary, text: bytes, step: int, num_threads: int
) -> None:
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    path = folder / "text.txt"
    path.write_bytes(text)
    file = _native.FileEncoder(tokenizer._native, str(path), num_threads)
    ids: list[int] = []
    while (more := file.next(step)) is not None:
        ids += more.tolist()
    assert ids == tokenizer.encode(text)
    assert file.position == file.num_bytes == len(text)


@settings(max_examples=25)  # each is written to the disk for good, twice
@given(any_vocabularies, texts)
def test_an_encoded_file_holds_the_ids_of_its_text(folder: Path, vocabulary: Vocabulary, text: bytes) -> None:
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    source, target = folder / "text.txt", folder / "ids.npy"
    source.write_bytes(text)
    written = tokenizer.encode_file(source, target)
    assert written.tokens.tolist() == tokenizer.encode(text)
    read = TokenFile.open(target, verify=True)
    assert read.manifest == written.manifest
    assert read.manifest.tokenizer_fingerprint == tokenizer.fingerprint
    assert np.load(target, mmap_mode="r").tolist() == tokenizer.encode(text)


# Special tokens


@given(any_vocabularies, texts, st.sets(st.sampled_from(SPECIALS)))
def test_only_allowed_special_tokens_are_recognised(
    vocabulary: Vocabulary, text: bytes, allowed: set[str]
) -> None:
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    allowed &= set(vocabulary.special_tokens)
    fewer = Vocabulary(
        tokens={
            id: token
            for id, token in vocabulary.tokens.items()
            if id not in vocabulary.special_tokens.values() or token.decode() in allowed
        },
        merges=vocabulary.merges,
        special_tokens={
            special: id for special, id in vocabulary.special_tokens.items() if special in allowed
        },
        pattern=vocabulary.pattern,
    )
    assert tokenizer.encode(text, allowed_special=allowed) == encode_reference(text, fewer)


@given(any_vocabularies, texts, st.sets(st.sampled_from(SPECIALS)))
def test_disallowed_special_tokens_are_refused_wherever_they_stand(
    vocabulary: Vocabulary, text: bytes, disallowed: set[str]
) -> None:
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    if any(special.encode() in text for special in disallowed):
        with pytest.raises(TokenizerError, match=r"holds the special token \".*\" at byte \d+, which is not"):
            tokenizer.encode(text, disallowed_special=disallowed)
    else:
        assert tokenizer.encode(text, disallowed_special=disallowed) == tokenizer.encode(text)


# Decoding


@given(any_vocabularies, texts)
def test_bytes_survive_encoding_and_decoding(vocabulary: Vocabulary, text: bytes) -> None:
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    assert tokenizer.decode_bytes(tokenizer.encode(text)) == text
    assert tokenizer.decode_bytes(tokenizer.encode_array(text)) == text
    assert tokenizer.decode(tokenizer.encode_array(text)) == text.decode("utf-8", "replace")


@given(any_vocabularies, st.data())
def test_any_ids_decode_to_the_bytes_of_the_twin(vocabulary: Vocabulary, data: st.DataObject) -> None:
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    ids = data.draw(st.lists(st.sampled_from(sorted(vocabulary.tokens)), max_size=30))
    expected = decode_reference(ids, vocabulary)
    assert tokenizer.decode_bytes(ids) == expected
    assert tokenizer.decode_bytes(iter(ids)) == expected
    for dtype in (np.uint32, np.int64, np.dtype(">u4")):
        assert tokenizer.decode_bytes(np.array(ids, dtype=dtype)) == expected
        assert tokenizer.decode_bytes(np.array(ids, dtype=dtype)[::-2]) == decode_reference(
            ids[::-2], vocabulary
        )


@given(any_vocabularies, st.data())
def test_the_stream_decoder_never_splits_a_character(vocabulary: Vocabulary, data: st.DataObject) -> None:
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    ids = data.draw(st.lists(st.sampled_from(sorted(vocabulary.tokens)), max_size=30))
    decoder = tokenizer.stream_decoder()
    shown = [decoder.feed(id) for id in ids]
    assert "".join([*shown, decoder.finish()]) == tokenizer.decode(ids)
    # As soon as a character is complete it is shown, and not before.
    plain = codecs.getincrementaldecoder("utf-8")("replace")
    assert shown == [plain.decode(vocabulary.tokens[id]) for id in ids]


@given(any_vocabularies, st.text(max_size=20))
def test_the_stream_decoder_shows_text_without_replacement(vocabulary: Vocabulary, text: str) -> None:
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    decoder = tokenizer.stream_decoder()
    shown = "".join(decoder.feed(id) for id in tokenizer.encode(text))
    assert (shown, decoder.finish()) == (text, "")

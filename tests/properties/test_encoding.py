"""All methods of encoding yield the ids of the reference, and all methods of decoding yield the text."""

from __future__ import annotations

import codecs
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bytewright import _native
from bytewright.corpus.file_formats import SIGNATURE_BYTES, find_binary_kind
from bytewright.data import TokenFile
from bytewright.errors import TokenizerError
from bytewright.tokenizer.reference import decode_reference, encode_reference, train_bpe_reference
from bytewright.tokenizer.tokenizer import Tokenizer
from bytewright.tokenizer.vocabulary import Vocabulary
from texts import (
    SPECIALS,
    broken_edges,
    cut_up,
    fillers,
    mixed_words,
    named_patterns,
    shifted_over_an_edge,
    special_tokens,
    texts,
    texts_for_user_patterns,
    user_patterns,
)

THREADS = [1, 2, 3, 8]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("encoded")


@st.composite
def vocabularies_and_texts(
    draw: st.DrawFn,
    texts: st.SearchStrategy[bytes] = texts,
    patterns: st.SearchStrategy[str] = named_patterns,
) -> tuple[Vocabulary, bytes]:
    """Draw a text with special tokens and a vocabulary trained on it.

    Often all possible merges are learned, so that each word is one token; then a wrong word boundary changes
    the ids. The ids are scattered, because merges must not depend on their values.
    """
    specials, pattern = draw(special_tokens), draw(patterns)
    parts = draw(st.lists(mixed_words | texts, min_size=1, max_size=4))
    text = b"".join(part + draw(st.sampled_from(["", *specials])).encode() for part in parts)
    num_merges = draw(st.sampled_from([1000, 1000, 10, 0]))
    tokens, merges, _ = train_bpe_reference(text, 256 + num_merges, pattern=pattern)
    stride, offset = draw(st.sampled_from([(1, 0), (3, 5), (257, 0), (3_000_017, 1)]))
    scattered = {id * stride + offset: token for id, token in tokens.items()}
    return Vocabulary.from_parts(scattered, merges, specials, pattern), text


vocabulary_and_text = vocabularies_and_texts()
vocabulary_and_text_of_the_users = vocabularies_and_texts(texts_for_user_patterns, user_patterns)

Pair = tuple[Vocabulary, bytes]


# Encoding


@given(vocabulary_and_text, texts)
def test_ids_equal_the_reference(pair: Pair, another: bytes) -> None:
    vocabulary, text = pair
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    for each in (text, another, text):  # the third time, words come out of the cache
        assert tokenizer.encode(each) == encode_reference(each, vocabulary)


@given(vocabulary_and_text_of_the_users, texts_for_user_patterns)
def test_ids_equal_the_reference_with_a_user_defined_pattern(pair: Pair, another: bytes) -> None:
    vocabulary, text = pair
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    for each in (text, another):
        assert tokenizer.encode(each) == encode_reference(each, vocabulary)


@settings(max_examples=30)  # several texts each
@given(broken_edges, fillers, named_patterns | user_patterns, st.integers(1, 9))
def test_ids_of_broken_characters_at_the_edge_of_a_window_equal_the_reference(
    edge: bytes, filler: bytes, pattern: str, size: int
) -> None:
    for text in shifted_over_an_edge(edge, filler):
        tokens, merges, _ = train_bpe_reference(text[-len(edge) - 8 :], 300, pattern=pattern)
        vocabulary = Vocabulary.from_parts(tokens, merges, pattern=pattern)
        tokenizer = Tokenizer.from_vocabulary(vocabulary)
        expected = encode_reference(text, vocabulary)
        assert tokenizer.encode(text) == expected
        pieces = [text[:-size], *(text[start : start + 1] for start in range(len(text) - size, len(text)))]
        assert list(tokenizer.encode_iterable(pieces)) == expected


@given(vocabulary_and_text, st.text(max_size=40))
def test_str_and_its_utf8_yield_the_same_ids(pair: Pair, text: str) -> None:
    tokenizer = Tokenizer.from_vocabulary(pair[0])
    assert tokenizer.encode(text) == tokenizer.encode(text.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(vocabulary_and_text)
def test_arrays_hold_the_same_ids_in_the_smallest_type(pair: Pair) -> None:
    vocabulary, text = pair
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    ids = tokenizer.encode(text)
    for num_threads in THREADS:
        array = tokenizer.encode_array(text, num_threads=num_threads)
        assert array.tolist() == ids
        assert array.dtype == (np.uint16 if vocabulary.size <= 2**16 else np.uint32)


@given(vocabulary_and_text, st.lists(texts, max_size=8))
def test_a_batch_holds_the_ids_of_each_text(pair: Pair, several: list[bytes]) -> None:
    vocabulary, text = pair
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    several.append(text)
    expected = [tokenizer.encode(text) for text in several]
    for num_threads in THREADS:
        batch = tokenizer.encode_batch(several, num_threads=num_threads)
        assert [ids.tolist() for ids in batch] == expected


@given(vocabulary_and_text, st.data())
def test_a_stream_over_any_cut_yields_the_ids_of_the_whole(pair: Pair, data: st.DataObject) -> None:
    vocabulary, text = pair
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    expected = tokenizer.encode(text)
    assert list(tokenizer.encode_iterable(data.draw(cut_up(text)))) == expected
    for size in range(1, 8):
        pieces = (text[start : start + size] for start in range(0, len(text), size))
        assert list(tokenizer.encode_iterable(pieces)) == expected


@given(vocabulary_and_text_of_the_users, st.data())
def test_a_stream_with_a_user_defined_pattern_yields_the_ids_of_the_whole(
    pair: Pair, data: st.DataObject
) -> None:
    vocabulary, text = pair
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    assert list(tokenizer.encode_iterable(data.draw(cut_up(text)))) == tokenizer.encode(text)


@given(vocabulary_and_text)
def test_a_file_read_in_steps_of_any_size_yields_the_ids_of_the_whole(folder: Path, pair: Pair) -> None:
    vocabulary, text = pair
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    path = folder / "text.txt"
    path.write_bytes(text)
    expected = tokenizer.encode(text)
    file = _native.FileEncoder(tokenizer._native, str(path))
    for step in range(15):
        ids: list[int] = []
        position = 0
        while position < file.num_bytes:
            end = file.next_cut(position, step)
            ids += file.encode(position, end).tolist()
            assert position < end
            position = end
        assert ids == expected
        assert position == file.num_bytes == len(text)


@settings(max_examples=25)  # each is written to the disk for good, twice
@given(vocabulary_and_text)
def test_an_encoded_file_holds_the_ids_of_its_text(folder: Path, pair: Pair) -> None:
    vocabulary, text = pair
    assume(find_binary_kind(text[:SIGNATURE_BYTES]) is None)  # such a file is rejected
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    source, target = folder / "text.txt", folder / "ids.npy"
    source.write_bytes(text)
    written = tokenizer.encode_file(source, target)
    assert written.tokens.tolist() == tokenizer.encode(text)
    read = TokenFile.open(target, verify=True)
    assert read.manifest == written.manifest
    assert read.manifest.tokenizer_fingerprint == tokenizer.fingerprint
    assert np.load(target, mmap_mode="r").tolist() == tokenizer.encode(text)


@given(vocabulary_and_text, st.sets(st.integers(0, 255), min_size=1), st.data())
def test_bytes_without_a_token_are_rejected_where_the_reference_rejects_them(
    pair: Pair, dropped: set[int], data: st.DataObject
) -> None:
    vocabulary, text = pair
    used = {byte for left, right in vocabulary.merges for byte in left + right}
    ordinary = vocabulary.ids_of_ordinary_tokens
    missing = {ordinary[bytes([byte])] for byte in dropped - used}
    fewer = Vocabulary(
        tokens={id: token for id, token in vocabulary.tokens.items() if id not in missing},
        merges=vocabulary.merges,
        special_tokens=vocabulary.special_tokens,
        pattern=vocabulary.pattern,
    )
    tokenizer = Tokenizer.from_vocabulary(fewer)
    pieces = data.draw(cut_up(text))
    try:
        expected = encode_reference(text, fewer)
    except TokenizerError as error:
        for encode in (
            lambda: tokenizer.encode(text),
            lambda: tokenizer.encode_array(text),
            lambda: tokenizer.encode_batch([text]),
            lambda: list(tokenizer.encode_iterable(pieces)),
        ):
            with pytest.raises(TokenizerError, match=f"^{error}$"):
                encode()
    else:
        assert tokenizer.encode(text) == tokenizer.encode_array(text).tolist() == expected
        assert list(tokenizer.encode_iterable(pieces)) == expected


# Special tokens


@given(vocabulary_and_text, st.sets(st.sampled_from(SPECIALS)))
def test_only_allowed_special_tokens_are_recognised(pair: Pair, allowed: set[str]) -> None:
    vocabulary, text = pair
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    kept = {special: id for special, id in vocabulary.special_tokens.items() if special in allowed}
    dropped = set(vocabulary.special_tokens.values()) - set(kept.values())
    fewer = Vocabulary(
        tokens={id: token for id, token in vocabulary.tokens.items() if id not in dropped},
        merges=vocabulary.merges,
        special_tokens=kept,
        pattern=vocabulary.pattern,
    )
    assert tokenizer.encode(text, allowed_special=list(kept)) == encode_reference(text, fewer)


@given(vocabulary_and_text, st.sets(st.sampled_from(SPECIALS)))
def test_disallowed_special_tokens_are_rejected_wherever_they_stand(pair: Pair, disallowed: set[str]) -> None:
    vocabulary, text = pair
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    if any(special.encode() in text for special in disallowed):
        with pytest.raises(TokenizerError):
            tokenizer.encode(text, disallowed_special=disallowed)
    else:
        assert tokenizer.encode(text, disallowed_special=disallowed) == tokenizer.encode(text)


# Decoding


@given(vocabulary_and_text)
def test_bytes_survive_encoding_and_decoding(pair: Pair) -> None:
    vocabulary, text = pair
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    assert tokenizer.decode_bytes(tokenizer.encode(text)) == text
    assert tokenizer.decode_bytes(tokenizer.encode_array(text)) == text
    assert tokenizer.decode(tokenizer.encode_array(text)) == text.decode("utf-8", "replace")


@given(vocabulary_and_text, st.data())
def test_any_ids_decode_to_the_bytes_of_the_reference(pair: Pair, data: st.DataObject) -> None:
    vocabulary, _ = pair
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    ids = data.draw(st.lists(st.sampled_from(sorted(vocabulary.tokens)), max_size=30))
    expected = decode_reference(ids, vocabulary)
    assert tokenizer.decode_bytes(ids) == expected
    assert tokenizer.decode_bytes(iter(ids)) == expected
    for dtype in (np.uint32, np.int64, np.dtype(">u4")):
        array = np.array(ids, dtype=dtype)
        assert tokenizer.decode_bytes(array) == expected
        assert tokenizer.decode_bytes(array[::-2]) == decode_reference(ids[::-2], vocabulary)


@given(vocabulary_and_text, st.integers(0, 2**33))
def test_an_id_without_a_token_is_rejected(pair: Pair, id: int) -> None:
    vocabulary, _ = pair
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    for stranger in {
        id,
        vocabulary.size,
        vocabulary.size + 1,
        max(vocabulary.tokens) - 1,
    } - vocabulary.tokens.keys():
        with pytest.raises(TokenizerError):
            tokenizer.decode([stranger])
        if stranger < 2**32:
            with pytest.raises(TokenizerError):
                tokenizer.decode(np.array([stranger], np.uint32))


@given(vocabulary_and_text, st.data())
def test_the_stream_decoder_never_splits_a_character(pair: Pair, data: st.DataObject) -> None:
    vocabulary, _ = pair
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    ids = data.draw(st.lists(st.sampled_from(sorted(vocabulary.tokens)), max_size=30))
    decoder = tokenizer.stream_decoder()
    shown = [decoder.feed(id) for id in ids]
    assert "".join([*shown, decoder.finish()]) == tokenizer.decode(ids)
    # As soon as a character is complete it is shown, and not before.
    plain = codecs.getincrementaldecoder("utf-8")("replace")
    assert shown == [plain.decode(vocabulary.tokens[id]) for id in ids]


@given(vocabulary_and_text, st.text(max_size=20))
def test_the_stream_decoder_shows_text_without_replacement(pair: Pair, text: str) -> None:
    tokenizer = Tokenizer.from_vocabulary(pair[0])
    decoder = tokenizer.stream_decoder()
    shown = "".join(decoder.feed(id) for id in tokenizer.encode(text))
    assert (shown, decoder.finish()) == (text, "")

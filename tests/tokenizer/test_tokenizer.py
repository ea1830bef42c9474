"""The public tokenizer: construction, special tokens, long texts, threads, files, decoding."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import zip_longest
from pathlib import Path

import numpy as np
import pytest
from prose import END, the_prose, the_tokenizer, write_documents

from bytewright import _native
from bytewright.errors import TokenizerError, UsageError
from bytewright.tokenizer.formats import write_gpt2
from bytewright.tokenizer.reference import encode_reference, extend_reference
from bytewright.tokenizer.tokenizer import Tokenizer
from bytewright.tokenizer.train import count_words, extend_tokenizer, train_tokenizer
from bytewright.tokenizer.vocabulary import PATTERNS, Vocabulary
from rejection import rejects

BYTES = {byte: bytes([byte]) for byte in range(256)}
THREADS = [1, 2, 3, 8]
LETTERS = train_tokenizer(count_words({b"low": 5, b"lower": 2, b"newest": 6, b" low": 1}), 266).vocabulary


@pytest.fixture(scope="module")
def prose() -> bytes:
    return the_prose()


@pytest.fixture(scope="module")
def prose_tokenizer() -> Tokenizer:
    return the_tokenizer()


@pytest.fixture(scope="module")
def prose_ids() -> list[int]:
    return the_tokenizer().encode(the_prose())


# Construction


CAT_TOKENS = [b" ", b"a", b"c", b"e", b"h", b"t", b"th", b" c", b" a", b"the", b" at"]
CAT_MERGES = [(b"t", b"h"), (b" ", b"c"), (b" ", b"a"), (b"th", b"e"), (b" a", b"t")]


def test_a_vocabulary_may_lack_bytes_that_do_not_occur(tmp_path: Path) -> None:
    tokenizer = Tokenizer(dict(enumerate(CAT_TOKENS)), CAT_MERGES)
    assert tokenizer.vocab_size == 11
    assert tokenizer.encode("the cat ate") == [9, 7, 1, 5, 10, 3]
    assert tokenizer.decode([9, 7, 1, 5, 10, 3]) == "the cat ate"
    tokenizer.save(tmp_path / "cat")
    assert Tokenizer.load(tmp_path / "cat").vocabulary == tokenizer.vocabulary
    write_gpt2(tokenizer.vocabulary, tmp_path / "vocab.json", tmp_path / "merges.txt")
    from_files = Tokenizer.from_files(tmp_path / "vocab.json", tmp_path / "merges.txt")
    assert from_files.vocabulary == tokenizer.vocabulary


WAYS_TO_ENCODE: dict[str, Callable[[Tokenizer, bytes, Path], object]] = {
    "list": lambda tokenizer, text, _: tokenizer.encode(text),
    "some special tokens": lambda tokenizer, text, _: tokenizer.encode(text, allowed_special=["<|x|>"]),
    "array": lambda tokenizer, text, _: tokenizer.encode_array(text, num_threads=1),
    "threads": lambda tokenizer, text, _: tokenizer.encode_array(text, num_threads=3),
    "batch": lambda tokenizer, text, _: tokenizer.encode_batch([b"the", text], num_threads=2),
    "stream": lambda tokenizer, text, _: list(tokenizer.encode_iterable([text[:7], text[7:]])),
    "file": lambda tokenizer, text, path: tokenizer.encode_file(path, path.with_suffix(".npy")),
    "reference": lambda tokenizer, text, _: encode_reference(text, tokenizer.vocabulary),
}


@pytest.mark.parametrize("way", WAYS_TO_ENCODE)
def test_a_byte_without_a_token_is_an_error_that_names_the_first_one(way: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer(dict(enumerate(CAT_TOKENS)), CAT_MERGES, ["<|x|>"])
    num_cats = 10 if way == "reference" else 30_000  # enough for several threads
    start = b"the<|x|> cat ate" * num_cats
    path = tmp_path / "cats.txt"
    path.write_bytes(start)
    WAYS_TO_ENCODE[way](tokenizer, start, path)
    text = start + b" the x the cat ate" * num_cats
    path.write_bytes(text)
    sentence = f"byte 0x78 at position {len(start) + 5} has no token in this vocabulary"
    with pytest.raises(TokenizerError, match=sentence):
        WAYS_TO_ENCODE[way](tokenizer, text, path)


def test_a_vocabulary_that_lacks_bytes_cannot_be_extended() -> None:
    tokenizer = Tokenizer(dict(enumerate(CAT_TOKENS)), CAT_MERGES)
    with rejects(TokenizerError, found=0):
        extend_tokenizer(tokenizer, count_words({b"the": 1}), 12)
    with rejects(TokenizerError, found=0):
        extend_reference(tokenizer.vocabulary, {b"the": 1}, 12)


def test_special_tokens_that_the_vocabulary_lacks_get_the_next_free_ids() -> None:
    tokenizer = Tokenizer(BYTES | {300: b"<b>"}, [], ["<a>", "<b>", "<c>"])
    assert tokenizer.special_tokens == {"<a>": 301, "<b>": 300, "<c>": 302}
    assert tokenizer.vocab_size == 303
    assert tokenizer.encode("<c>x<a><b>") == [302, 120, 301, 300]
    assert tokenizer.decode([302, 120, 301, 300]) == "<c>x<a><b>"


def test_a_token_that_is_not_named_special_is_ordinary_text() -> None:
    tokenizer = Tokenizer(BYTES | {256: b"<a>"}, [])
    assert tokenizer.encode("<a>") == list(b"<a>")
    assert tokenizer.decode([256]) == "<a>"


def test_later_changes_of_the_given_vocabulary_have_no_effect() -> None:
    vocab, merges, specials = dict(BYTES) | {256: b"ab"}, [(b"a", b"b")], ["<a>"]
    tokenizer = Tokenizer(vocab, merges, specials)
    fingerprint = tokenizer.fingerprint
    vocab.clear()
    merges.clear()
    specials.clear()
    assert tokenizer.encode("ab<a>") == [256, 257]
    assert Tokenizer.from_vocabulary(tokenizer.vocabulary).fingerprint == fingerprint


def test_copies_of_a_tokenizer_encode_as_it_does() -> None:
    tokenizer = Tokenizer(BYTES | {256: b"ab", 300: b"<a>"}, [(b"a", b"b")], ["<a>"], pattern=r"\S+|\s+")
    for made in (copy.copy(tokenizer), copy.deepcopy(tokenizer), pickle.loads(pickle.dumps(tokenizer))):
        assert made.vocabulary == tokenizer.vocabulary
        assert made.encode("ab b<a>") == [256, 32, 98, 300]


def test_a_tokenizer_can_be_sent_to_other_processes(prose: bytes, prose_tokenizer: Tokenizer) -> None:
    lines = prose[:20_000].splitlines(keepends=True)
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert list(pool.map(prose_tokenizer.encode, lines)) == [
            prose_tokenizer.encode(line) for line in lines
        ]


def test_the_parts_of_a_tokenizer_are_properties() -> None:
    tokenizer = Tokenizer.from_vocabulary(LETTERS)
    assert tokenizer.vocab == LETTERS.tokens
    assert tokenizer.merges == LETTERS.merges
    assert tokenizer.pattern == "gpt2"
    assert tokenizer.vocab_size == 266
    assert tokenizer.fingerprint == LETTERS.fingerprint
    assert "266 ids" in repr(tokenizer)
    assert LETTERS.fingerprint[:12] in repr(tokenizer)


def test_a_pattern_spelled_out_is_the_named_pattern() -> None:
    for name, expression in PATTERNS.items():
        spelled, named = (Tokenizer(BYTES, [], pattern=pattern) for pattern in (expression, name))
        assert spelled.pattern == name
        assert spelled.fingerprint == named.fingerprint


@pytest.mark.parametrize(
    ("vocab", "merges", "specials", "found"),
    [
        ({}, [], [], None),
        (BYTES, [(b"a", b"b")], [], (b"a", b"b")),
        (BYTES | {256: b"abc"}, [(b"ab", b"c")], [], (b"ab", b"c")),
        (BYTES | {256: b"a"}, [], [], b"a"),
        (BYTES | {-1: b"ab"}, [], [], -1),
        (BYTES | {2**32: b"ab"}, [], [], 2**32),
        (BYTES, [], ["<a>", "<a>"], "<a>"),
        (BYTES, [], [""], None),
        (BYTES, [], ["\ud800"], "\ud800"),
    ],
)
def test_an_inconsistent_vocabulary_is_rejected(
    vocab: dict[int, bytes], merges: list[tuple[bytes, bytes]], specials: list[str], found: object
) -> None:
    with rejects(TokenizerError, found=found):
        Tokenizer(vocab, merges, specials)


def test_ids_may_lie_anywhere_in_32_bits() -> None:
    scattered = {2**32 - 1 - 16_000_000 * id: token for id, token in BYTES.items()}
    tokenizer = Tokenizer.from_vocabulary(
        Vocabulary(tokens=scattered | {7: b"ab"}, merges=((b"a", b"b"),), special_tokens={})
    )
    assert tokenizer.encode(b"\x00ab") == [2**32 - 1, 7]
    assert tokenizer.encode_array(b"\x00ab").dtype == np.uint32
    assert tokenizer.decode_bytes([2**32 - 1, 7]) == b"\x00ab"


def test_arrays_are_of_16_bits_as_long_as_all_ids_fit() -> None:
    for largest, dtype in ((2**16 - 1, np.uint16), (2**16, np.uint32)):
        tokenizer = Tokenizer(BYTES | {largest: b"ab"}, [(b"a", b"b")])
        assert tokenizer.encode_array("ab").dtype == dtype
        assert tokenizer.encode_array("").dtype == dtype
        assert [array.dtype for array in tokenizer.encode_batch(["ab", ""])] == [dtype, dtype]
        assert tokenizer.encode_array("abab").tolist() == [largest, largest]


# Encoding


def test_the_ids_of_prose_equal_the_reference(
    prose_tokenizer: Tokenizer, prose: bytes, prose_ids: list[int]
) -> None:
    assert prose_ids == encode_reference(prose, prose_tokenizer.vocabulary)
    assert prose_tokenizer.encode(prose.decode()) == prose_ids


@pytest.mark.parametrize("num_threads", [*THREADS, None])
def test_every_number_of_threads_yields_the_same_ids(
    prose_tokenizer: Tokenizer, prose: bytes, prose_ids: list[int], num_threads: int | None
) -> None:
    assert prose_tokenizer.encode_array(prose, num_threads=num_threads).tolist() == prose_ids
    documents = [document + END for document in prose.decode().split(END)[:-1]]
    batch = prose_tokenizer.encode_batch(documents, num_threads=num_threads)
    assert len(batch) == len(documents)
    assert np.concatenate(batch).tolist() == prose_ids


@pytest.mark.parametrize("pattern", ["gpt2", "gpt4", r"\S+|\s+"])
def test_a_text_without_a_place_to_cut_is_encoded_on_many_threads_too(pattern: str) -> None:
    tokenizer = Tokenizer(BYTES | {256: b"aa"}, [(b"a", b"a")], ["<a>"], pattern=pattern)
    text = b"a" * 1_000_001 + b"<a>" + b"\xff" * 300_000
    expected = [256] * 500_000 + [97, 257] + [255] * 300_000
    for num_threads in THREADS:
        assert tokenizer.encode_array(text, num_threads=num_threads).tolist() == expected


@pytest.mark.parametrize("size", [1, 7, 64, 4096, 1 << 20])
def test_a_stream_in_pieces_of_any_size_yields_the_ids_of_the_whole(
    prose_tokenizer: Tokenizer, prose: bytes, prose_ids: list[int], size: int
) -> None:
    pieces = (prose[start : start + size] for start in range(0, len(prose), size))
    assert list(prose_tokenizer.encode_iterable(pieces)) == prose_ids


def test_a_stream_of_lines_and_of_characters_yields_the_ids_of_the_whole(prose_tokenizer: Tokenizer) -> None:
    text = "".join(write_documents(5, seed=9))
    lines = text.splitlines(keepends=True)
    assert list(prose_tokenizer.encode_iterable(lines)) == prose_tokenizer.encode(text)
    assert list(prose_tokenizer.encode_iterable(text)) == prose_tokenizer.encode(text)
    assert list(prose_tokenizer.encode_iterable([])) == []
    assert list(prose_tokenizer.encode_iterable(["", b"", ""])) == []


def test_a_stream_is_encoded_lazily(prose_tokenizer: Tokenizer) -> None:
    asked = 0

    def lines() -> Iterator[str]:
        nonlocal asked
        while True:
            asked += 1
            yield "once upon a time there was a line\n"

    stream = prose_tokenizer.encode_iterable(lines())
    assert asked == 0
    next(stream)
    assert asked <= 2
    for _ in range(1000):
        next(stream)
    assert asked < 1000


@pytest.mark.parametrize("size", [1, 10, 1000])
def test_a_stream_keeps_only_a_few_words(prose_tokenizer: Tokenizer, size: int) -> None:
    text = "once upon a time there was a little stream that ran down a hill. " * 100
    stream = _native.StreamEncoder(prose_tokenizer._native)
    shown = 0
    for start in range(0, len(text), size):
        piece = text[start : start + size]
        shown += len(prose_tokenizer.decode_bytes(stream.feed(piece)))
        assert shown >= start + len(piece) - 40
    assert shown + len(prose_tokenizer.decode_bytes(stream.finish())) == len(text)


def test_streams_of_one_tokenizer_do_not_mix(prose_tokenizer: Tokenizer) -> None:
    texts = list(write_documents(3, seed=3))
    streams = [prose_tokenizer.encode_iterable(text) for text in texts]
    in_turn = list(zip_longest(*streams))
    for number, text in enumerate(texts):
        assert [ids[number] for ids in in_turn if ids[number] is not None] == prose_tokenizer.encode(text)


def test_one_tokenizer_may_be_used_from_many_threads_at_once(
    prose_tokenizer: Tokenizer, prose: bytes, prose_ids: list[int]
) -> None:
    fresh = Tokenizer.from_vocabulary(prose_tokenizer.vocabulary)  # its cache is cold
    wrong: list[str] = []

    def work(number: int) -> None:
        for _ in range(2):
            if fresh.encode(prose) != prose_ids:
                wrong.append(f"encode in thread {number}")
            if fresh.encode_array(prose, num_threads=2).tolist() != prose_ids:
                wrong.append(f"encode_array in thread {number}")
            if fresh.decode_bytes(prose_ids) != prose:
                wrong.append(f"decode_bytes in thread {number}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_str_subclass_is_encoded_by_its_contents() -> None:
    class Shouting(str):
        def encode(self, *_: object, **__: object) -> bytes:
            return b"SHOUT"

    class Loud(bytes):
        def __len__(self) -> int:
            return 10**9

    tokenizer = Tokenizer.from_vocabulary(LETTERS)
    assert tokenizer.encode(Shouting("low")) == tokenizer.encode("low")
    assert tokenizer.encode(Loud(b"low")) == tokenizer.encode("low")


@pytest.mark.parametrize(
    "encode",
    [
        lambda tokenizer: tokenizer.encode("low\udc80"),
        lambda tokenizer: tokenizer.encode("low\udc80", allowed_special=()),
        lambda tokenizer: tokenizer.encode_array("low\ud83d\ude00"),
        lambda tokenizer: tokenizer.encode_batch(["fine", "low\ud800"]),
        lambda tokenizer: list(tokenizer.encode_iterable(["fine", "low\ud800"])),
    ],
)
def test_a_lone_surrogate_is_rejected_with_its_position(encode: Callable[[Tokenizer], object]) -> None:
    with pytest.raises(TokenizerError, match="lone surrogate at character 3"):
        encode(Tokenizer.from_vocabulary(LETTERS))


# Special tokens


@pytest.fixture(scope="module")
def special() -> Tokenizer:
    return Tokenizer(BYTES, [], ["<e>", "<e><e>", "e>!"])


def test_of_overlapping_special_tokens_the_leftmost_is_used_then_the_longest(special: Tokenizer) -> None:
    end, twice, tail = (special.special_tokens[name] for name in ("<e>", "<e><e>", "e>!"))
    assert special.encode("<e>") == [end]
    assert special.encode("<e><e>") == [twice]
    assert special.encode("<e><e><e>") == [twice, end]
    assert special.encode("<e>!") == [end, ord("!")]
    assert special.encode("<<e>!e>!") == [ord("<"), end, ord("!"), tail]


def test_special_tokens_are_allowed_by_name(special: Tokenizer) -> None:
    end, twice = special.special_tokens["<e>"], special.special_tokens["<e><e>"]
    assert special.encode("<e><e>", allowed_special="all") == [twice]
    assert special.encode("<e><e>", allowed_special={"<e>"}) == [end, end]
    assert special.encode("<e><e>", allowed_special=["<e>", "<e><e>"]) == [twice]
    assert special.encode("<e><e>", allowed_special=set()) == list(b"<e><e>")
    assert special.encode("<e><e>", allowed_special=()) == list(b"<e><e>")


def test_special_tokens_are_rejected_by_name(special: Tokenizer) -> None:
    end = special.special_tokens["<e>"]
    with pytest.raises(TokenizerError, match=r'the special token "<e>" at byte 3, which is not allowed'):
        special.encode("é <e>", allowed_special=set(), disallowed_special="all")
    with pytest.raises(TokenizerError):
        special.encode("e>!", disallowed_special={"e>!"})
    assert special.encode("<e>", allowed_special={"<e>"}, disallowed_special="all") == [end]
    assert special.encode("<e>", allowed_special=set(), disallowed_special={"e>!"}) == list(b"<e>")
    assert special.encode("<e>", allowed_special="all", disallowed_special="all") == [end]
    assert special.encode("plain", allowed_special=set(), disallowed_special="all") == list(b"plain")


def test_disallowed_tokens_are_searched_in_the_whole_text(special: Tokenizer) -> None:
    # As in tiktoken, a disallowed token inside an allowed one is rejected.
    with pytest.raises(TokenizerError):
        special.encode("<e><e>", allowed_special={"<e><e>"}, disallowed_special="all")


def test_allowing_an_unknown_special_token_is_an_error(special: Tokenizer) -> None:
    with pytest.raises(TokenizerError, match=r'"<x>" is not a special token of this tokenizer'):
        special.encode("text", allowed_special={"<x>"})


def test_a_single_string_instead_of_names_of_special_tokens_is_rejected(special: Tokenizer) -> None:
    with rejects(UsageError, key="allowed_special", found="<e>"):
        special.encode("text", allowed_special="<e>")
    with rejects(UsageError, key="disallowed_special", found="<e>"):
        special.encode("no mark", disallowed_special="<e>")


def test_a_text_that_is_not_special_may_be_disallowed_too(special: Tokenizer) -> None:
    with pytest.raises(TokenizerError):
        special.encode("the secret", disallowed_special=["secret"])


# Decoding


def test_prose_survives_encoding_and_decoding(
    prose_tokenizer: Tokenizer, prose: bytes, prose_ids: list[int]
) -> None:
    assert prose_tokenizer.decode_bytes(prose_ids) == prose
    assert prose_tokenizer.decode_bytes(prose_tokenizer.encode_array(prose)) == prose
    assert prose_tokenizer.decode(prose_ids) == prose.decode()


def test_what_is_not_utf8_is_replaced_only_in_text() -> None:
    tokenizer = Tokenizer(BYTES, [])
    assert tokenizer.decode_bytes([0xC3, 0x28]) == b"\xc3("
    assert tokenizer.decode([0xC3, 0x28]) == "\ufffd("
    assert tokenizer.decode([0xC3, 0xA9]) == "é"


def test_an_id_outside_the_vocabulary_is_named_with_its_position() -> None:
    tokenizer = Tokenizer(BYTES | {300: b"ab"}, [(b"a", b"b")])
    for ids in ([97, 299], (97, 299), np.array([97, 299], np.uint16), np.array([97, 299], np.int64)):
        with pytest.raises(TokenizerError, match="token id 299 at position 1 is outside the vocabulary"):
            tokenizer.decode(ids)
    with rejects(TokenizerError, found=299):
        tokenizer.stream_decoder().feed(299)


def test_the_stream_decoder_buffers_an_incomplete_character() -> None:
    decoder = Tokenizer(BYTES, []).stream_decoder()
    assert [decoder.feed(byte) for byte in "a€😀".encode()] == ["a", "", "", "€", "", "", "", "😀"]
    assert decoder.finish() == ""
    assert [decoder.feed(byte) for byte in b"\xf0\x9fa"] == ["", "", "\ufffda"]
    assert (decoder.feed(0xE2), decoder.finish()) == ("", "\ufffd")

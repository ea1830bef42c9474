"""A vocabulary that contradicts itself cannot be made, and the sentence says what is wrong with it."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from bytewright.errors import TokenizerError, UsageError
from bytewright.tokenizer.reference import pretokenize
from bytewright.tokenizer.vocabulary import MAX_TOKEN_ID, PATTERNS, Vocabulary, first_duplicate
from rejection import rejects

BYTES = {id: bytes([id]) for id in range(256)}


def vocabulary(
    more: Mapping[int, bytes] | None = None,
    merges: Any = (),
    special_tokens: Mapping[str, int] | None = None,
    pattern: str = "gpt2",
) -> Vocabulary:
    return Vocabulary(
        tokens=BYTES | dict(more or {}), merges=merges, special_tokens=special_tokens or {}, pattern=pattern
    )


def test_a_small_vocabulary_contains_its_arguments() -> None:
    small = vocabulary({256: b"ab", 300: b"<e>"}, ((b"a", b"b"),), {"<e>": 300})
    assert small.size == 301
    assert small.ids_of_ordinary_tokens[b"ab"] == 256
    assert b"<e>" not in small.ids_of_ordinary_tokens


@pytest.mark.parametrize(
    ("more", "merges", "specials", "sentence"),
    [
        ({-1: b"x"}, (), {}, "token id -1 is not an integer from 0 to 4294967295"),
        ({MAX_TOKEN_ID + 1: b"x"}, (), {}, "token id 4294967296 is not an integer from 0 to 4294967295"),
        ({256: b""}, (), {}, "token 256 must be one or more bytes, not b''"),
        ({256: "ab"}, (), {}, "token 256 must be one or more bytes, not 'ab'"),
        ({256: b"ab", 257: b"ab"}, (), {}, "ids 256 and 257 stand for the same token b'ab'"),
        (
            {97: b"aa", 256: b"ab"},
            ((b"a", b"b"),),
            {},
            "merge 0 (b'a', b'b') uses b'a', which has no token",
        ),
        ({}, ((b"a", b"b"),), {}, "merge 0 (b'a', b'b') makes b'ab', which is not in the vocabulary"),
        (
            {256: b"abc"},
            ((b"a", b"bc"),),
            {},
            "merge 0 (b'a', b'bc') uses b'bc', which no earlier merge makes",
        ),
        (
            {256: b"abc", 257: b"bc"},
            ((b"a", b"bc"), (b"b", b"c")),
            {},
            "merge 0 (b'a', b'bc') uses b'bc', which no earlier merge makes",
        ),
        (
            {256: b"ab"},
            ((b"a", b"b"), (b"a", b"b")),
            {},
            "merge 1 (b'a', b'b') makes b'ab', which an earlier merge makes already",
        ),
        (
            {256: b"ab", 257: b"bc", 258: b"abc"},
            ((b"a", b"b"), (b"b", b"c"), (b"a", b"bc"), (b"ab", b"c")),
            {},
            "merge 3 (b'ab', b'c') makes b'abc', which an earlier merge makes already",
        ),
        ({}, (), {"": 256}, "a special token is empty; it must be at least one character"),
        ({}, (), {"<e>": 256}, "special token '<e>' has the id 256, but that id is not in the vocabulary"),
        (
            {256: b"<f>"},
            (),
            {"<e>": 256},
            "special token '<e>' has the id 256, but that id stands for b'<f>'",
        ),
        (
            {256: b"ab"},
            ((b"a", b"b"),),
            {"ab": 256},
            "merge 0 (b'a', b'b') makes b'ab', which is not in the vocabulary",
        ),
        (
            {},
            (),
            {"<\ud800>": 256},
            "special token '<\\ud800>' is not Unicode text: character 1 is a lone surrogate",
        ),
    ],
)
def test_an_inconsistency_is_one_sentence(
    more: Any, merges: Any, specials: dict[str, int], sentence: str
) -> None:
    with pytest.raises(TokenizerError) as caught:
        vocabulary(more, merges, specials)
    assert str(caught.value) == sentence


def test_a_pattern_that_is_not_text_is_rejected() -> None:
    with rejects(TokenizerError, found="\udc80"):
        vocabulary(pattern="\udc80")


@pytest.mark.parametrize("pattern", ["gpt5", "GPT2", "gpt-4", "cl100k_base"])
def test_an_unknown_name_is_not_a_regular_expression(pattern: str) -> None:
    uses: list[Callable[[], object]] = [
        lambda: vocabulary(pattern=pattern),
        lambda: pretokenize(b"gpt5", pattern),
    ]
    for use in uses:
        with rejects(TokenizerError, key="pattern", found=pattern):
            use()
    assert vocabulary(pattern=f"(?:{pattern})").pattern == f"(?:{pattern})"


def test_a_giant_token_is_shortened_in_the_message() -> None:
    giant = b"x" * 100_000
    with pytest.raises(TokenizerError) as caught:
        vocabulary({256: giant, 257: giant})
    assert len(str(caught.value)) < 200


def test_later_changes_of_the_given_tables_have_no_effect() -> None:
    tokens = dict(BYTES)
    made = Vocabulary(tokens=tokens, merges=(), special_tokens={})
    before = made.fingerprint
    tokens[256] = b"later"
    assert 256 not in made.tokens
    assert Vocabulary(tokens=made.tokens, merges=(), special_tokens={}).fingerprint == before


def test_a_vocabulary_is_read_only() -> None:
    made = vocabulary({256: b"<e>"}, special_tokens={"<e>": 256})
    for table in (made.tokens, made.special_tokens):
        with pytest.raises(AttributeError):
            table.clear()  # type: ignore[union-attr]
    assert made.special_tokens == {"<e>": 256}


def test_a_copy_of_a_vocabulary_is_the_same_vocabulary() -> None:
    made = vocabulary({256: b"<e>"}, special_tokens={"<e>": 256})
    assert copy.deepcopy(made) == made


# from_parts


@pytest.mark.parametrize(
    ("tokens", "merges", "found"),
    [
        ({b"\x00": 0, b"\x01": 1}, [], b"\x00"),  # ranks of tiktoken: ids by token
        ({"0": b"a"}, [], "0"),  # keys of a JSON object
        ({0: bytearray(b"a")}, [], bytearray(b"a")),
        ({}, [[b"a", b"b"]], [b"a", b"b"]),
        ({}, [(b"a", b"b", b"c")], (b"a", b"b", b"c")),
        ({}, ["a b"], "a b"),
        ({}, [("a", "b")], ("a", "b")),
        ({}, [None], None),
    ],
)
@pytest.mark.parametrize("special_tokens", [None, ["<e>"], {"<e>": 300}])
def test_tokens_and_merges_of_wrong_types_are_rejected(
    tokens: Any, merges: Any, found: object, special_tokens: Any
) -> None:
    with rejects(TokenizerError, found=found):
        Vocabulary.from_parts(tokens or BYTES, merges, special_tokens)


@pytest.mark.parametrize("text", ["abc", ""])
def test_a_single_string_instead_of_a_list_of_special_tokens_is_rejected(text: str) -> None:
    with rejects(UsageError, key="special_tokens", found=text):
        Vocabulary.from_parts(BYTES, [], text)


def test_special_tokens_the_vocabulary_lacks_get_the_next_free_ids() -> None:
    made = Vocabulary.from_parts(BYTES | {300: b"<b>"}, [], ["<a>", "<b>", "<c>"])
    assert made.special_tokens == {"<a>": 301, "<b>": 300, "<c>": 302}


def test_merges_may_come_from_a_generator() -> None:
    merges = [(b"a", b"b"), (b"ab", b"c")]
    made = Vocabulary.from_parts(BYTES | {256: b"ab", 257: b"abc"}, iter(merges), iter(["<e>"]))
    assert made.merges == tuple(merges)
    assert made.special_tokens == {"<e>": 258}


def test_a_special_token_spelled_like_an_ordinary_one_gets_an_id_of_its_own() -> None:
    made = Vocabulary.from_parts(BYTES | {256: b"ab"}, [(b"a", b"b")], ["ab", "a"])
    assert made.special_tokens == {"ab": 257, "a": 258}
    assert made.ids_of_ordinary_tokens[b"ab"] == 256
    again = Vocabulary.from_parts(made.tokens, made.merges, made.special_tokens)
    assert again == made


def test_a_duplicate_special_token_is_rejected() -> None:
    with rejects(TokenizerError, key="special_tokens", found="<e>"):
        Vocabulary.from_parts(BYTES, [], ["<e>", "<e>"])


# The fingerprint


def test_the_fingerprint_does_not_depend_on_the_order_of_the_tables() -> None:
    one = vocabulary({256: b"ab", 257: b"<e>", 258: b"<f>"}, ((b"a", b"b"),), {"<e>": 257, "<f>": 258})
    tokens = {id: one.tokens[id] for id in sorted(one.tokens, reverse=True)}
    other = Vocabulary(tokens=tokens, merges=one.merges, special_tokens={"<f>": 258, "<e>": 257})
    assert other.fingerprint == one.fingerprint


def test_the_fingerprint_is_that_of_the_pattern_not_of_its_name() -> None:
    assert vocabulary(pattern=PATTERNS["gpt2"]).fingerprint == vocabulary(pattern="gpt2").fingerprint


def test_everything_that_changes_ids_changes_the_fingerprint() -> None:
    variants = [
        vocabulary(),
        vocabulary(pattern="gpt4"),
        vocabulary({256: b"ab"}),
        vocabulary({257: b"ab"}),
        vocabulary({256: b"ab"}, ((b"a", b"b"),)),
        vocabulary({256: b"ab"}, (), {"ab": 256}),
        vocabulary({256: b"ab", 257: b"bc"}, ((b"a", b"b"), (b"b", b"c"))),
        vocabulary({256: b"ab", 257: b"bc"}, ((b"b", b"c"), (b"a", b"b"))),
    ]
    assert len({variant.fingerprint for variant in variants}) == len(variants)


def test_the_fingerprint_is_part_of_the_file_formats_and_must_not_change() -> None:
    small = vocabulary({256: b"ab", 257: b"<e>"}, ((b"a", b"b"),), {"<e>": 257})
    assert small.fingerprint == "8d3f9ec8d5fd2353b2d7401ae0526484b2ec737e4e74b07cd5a7d1e3058d45ce"


def test_the_first_duplicate_is_the_first_item_seen_again() -> None:
    assert first_duplicate(["a", "b", "b", "a"]) == "b"
    assert first_duplicate(["a", "b"]) is None
    assert first_duplicate(["", ""]) == ""

"""Merges recovered from ranks, and the claim that both ways of encoding agree on reachable vocabularies."""

from hypothesis import assume, given
from hypothesis import strategies as st

from bytewright.errors import TokenizerError
from bytewright.tokenizer.formats.tiktoken import check_reachable, merge_in_order, recover_merges
from bytewright.tokenizer.reference import BYTES, encode_word, ranks_of, train_bpe_reference
from bytewright.tokenizer.vocabulary import Merge, Vocabulary
from rejection import rejects

few_letters = st.text("ab", max_size=14).map(str.encode)


@st.composite
def any_merges(draw: st.DrawFn) -> list[Merge]:
    """Draw merges that are valid but that no trainer would have made: many of them never apply."""
    tokens = [b"a", b"b", b"c"]
    merges = []
    for _ in range(draw(st.integers(0, 8))):
        pair = draw(st.sampled_from(tokens)), draw(st.sampled_from(tokens))
        if pair[0] + pair[1] not in tokens:
            merges.append(pair)
            tokens.append(pair[0] + pair[1])
    return merges


def vocabulary_of(merges: list[Merge]) -> Vocabulary:
    return Vocabulary.from_parts(dict(enumerate([*BYTES, *(a + b for a, b in merges)])), merges)


def encode_by_rank(word: bytes, rank_of: dict[bytes, int]) -> list[bytes]:
    """Encode as tiktoken does: join any two neighbours that spell a token, lowest rank first."""
    parts = [bytes([byte]) for byte in word]
    while len(parts) > 1:
        joined = [parts[i] + parts[i + 1] for i in range(len(parts) - 1)]
        best = min(range(len(joined)), key=lambda i: rank_of.get(joined[i], len(rank_of)))
        if joined[best] not in rank_of:
            break
        parts[best : best + 2] = [joined[best]]
    return parts


@given(st.lists(few_letters, min_size=1, max_size=6))
def test_merges_of_a_trained_vocabulary_are_recovered(corpus: list[bytes]) -> None:
    _, merges, _ = train_bpe_reference(dict.fromkeys(corpus, 1), 300)
    assert recover_merges([left + right for left, right in merges]) == tuple(merges)
    check_reachable(vocabulary_of(merges))


@given(any_merges(), st.text("abc", max_size=20).map(str.encode))
def test_reachable_vocabularies_encode_alike_by_merges_and_by_ranks(merges: list[Merge], text: bytes) -> None:
    try:
        check_reachable(vocabulary_of(merges))
    except TokenizerError:
        assume(False)
    rank_of = {left + right: rank for rank, (left, right) in enumerate(merges)}
    assert list(encode_word(text, ranks_of(merges))) == encode_by_rank(text, rank_of)


@given(any_merges())
def test_a_vocabulary_is_called_reachable_exactly_when_its_tokens_encode_to_themselves(
    merges: list[Merge],
) -> None:
    ranks = ranks_of(merges)
    expected = all(encode_word(left + right, ranks) == (left + right,) for left, right in merges)
    try:
        check_reachable(vocabulary_of(merges))
        reachable = True
    except TokenizerError:
        reachable = False
    assert reachable == expected


@given(any_merges(), st.text("abc", max_size=30).map(str.encode))
def test_merging_with_a_heap_equals_the_reference(merges: list[Merge], word: bytes) -> None:
    number = {token: index for index, token in enumerate([*BYTES, *(a + b for a, b in merges)])}
    made = {(number[left], number[right]): number[left + right] for left, right in merges}
    assert merge_in_order(word, made) == [number[token] for token in encode_word(word, ranks_of(merges))]


def test_a_token_whose_bytes_encode_to_another_pair_is_named() -> None:
    merges = [(b"a", b"b"), (b"b", b"c"), (b"a", b"bc")]
    with rejects(TokenizerError, found=b"abc") as caught:
        check_reachable(vocabulary_of(merges))
    assert "its bytes encode to (b'ab', b'c') first" in str(caught.value)


def test_a_token_given_twice_is_not_recovered() -> None:
    with rejects(TokenizerError, found=b"ab"):
        recover_merges([b"ab", b"ab"])


def test_one_giant_token_needs_little_time() -> None:
    doubled = [b"a" * 2**power for power in range(1, 18)]
    assert recover_merges(doubled)[-1] == (b"a" * 2**16, b"a" * 2**16)

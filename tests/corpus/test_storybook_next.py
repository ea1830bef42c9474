"""True probabilities of the next word and token, compared with enumeration and with the parser."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from itertools import islice

import pytest
from small_grammar import SMALL, all_stories, small_grammar

from bytewright.corpus import END_OF_TEXT
from bytewright.corpus.storybook import Storybook
from bytewright.corpus.storybook.continuations import WORD_BOUNDARY, Continuations
from bytewright.corpus.storybook.next_tokens import NextTokens
from bytewright.corpus.storybook.notation import read_story_grammar
from bytewright.errors import UsageError
from bytewright.tokenizer import Tokenizer, train_bpe
from rejection import rejects

BOOK = Storybook.load()


@pytest.fixture(scope="module")
def stories_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("next") / "stories.txt"
    texts = [story.text for story in islice(BOOK.stories(seed=1), 200)]
    texts += [text for _, text, _ in all_stories(small_grammar())][::50]
    file.write_text("\n".join(f"{text}\n{END_OF_TEXT}" for text in texts))
    return str(file)


def make_tokenizer(file: str, vocab_size: int, pattern: str = "gpt2") -> Tokenizer:
    vocab, merges = train_bpe(file, vocab_size, [END_OF_TEXT], pattern=pattern)
    return Tokenizer(vocab, merges, [END_OF_TEXT], pattern=pattern)


def encode_document(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return a story between its line breaks, and the end token."""
    return [*tokenizer.encode(f"\n{text}\n"), tokenizer.special_tokens[END_OF_TEXT]]


@dataclass
class Node:
    """A prefix of encodings: the sum of the weights of those that begin with it, and its extensions."""

    weight: int = 0
    children: dict[int, Node] = field(default_factory=dict)


@functools.cache
def enumerate_stories(notation: str) -> list[tuple[int, str]]:
    """Return the stories of a grammar with integers that are proportional to their probabilities."""
    stories = [(probability, text) for probability, text, _ in all_stories(read_story_grammar(notation))]
    scale = math.lcm(*(probability.denominator for probability, _ in stories))
    return [(int(probability * scale), text) for probability, text in stories]


def assert_equals_enumeration(notation: str, tokenizer: Tokenizer, num_stories: int) -> None:
    stories = enumerate_stories(notation)
    documents = [encode_document(tokenizer, text) for _, text in stories]
    root = Node()
    for (weight, _), ids in zip(stories, documents, strict=True):
        node = root
        node.weight += weight
        for id in ids:
            node = node.children.setdefault(id, Node())
            node.weight += weight
    tokens = NextTokens(Continuations(read_story_grammar(notation)), tokenizer)
    for ids in documents[:: max(1, len(documents) // num_stories)]:
        place, node = tokens.start(), root
        for id in ids:
            expected = {next: child.weight / node.weight for next, child in node.children.items()}
            assert place.probabilities == pytest.approx(expected, rel=1e-12)
            entropy = -math.fsum(p * math.log2(p) for p in expected.values())
            assert place.entropy == pytest.approx(entropy, abs=1e-9)
            following = place.after(id)
            assert following is not None
            place, node = following, node.children[id]


@pytest.mark.parametrize(("vocab_size", "pattern"), [(257, "gpt2"), (330, "gpt4"), (700, "gpt2")])
def test_probabilities_of_a_small_grammar_equal_its_enumeration(
    stories_file: str, vocab_size: int, pattern: str
) -> None:
    """With 257 tokens every byte is one, so each word begins with the token of a space."""
    assert_equals_enumeration(SMALL, make_tokenizer(stories_file, vocab_size, pattern), 12)


def test_ambiguous_stories_count_with_all_their_derivations(stories_file: str) -> None:
    ambiguous = SMALL.replace("2 [friend!=none] {opening}", "2 {opening}")
    assert_equals_enumeration(ambiguous, make_tokenizer(stories_file, 700), 6)


def test_words_that_are_the_beginning_of_others_share_their_tokens(stories_file: str) -> None:
    """After the bytes of `cat`, either the sentence goes on or the word does."""
    grammar = (
        "plot pet\n    cat, catfish\n    3 cat and dog\nbeat story\n    A {pet}{end}\nphrase end\n"
        "    .\n    [pet=cat] alog.\n    2 and more.\n"
    )
    tokenizer = make_tokenizer(stories_file, 257)
    assert_equals_enumeration(grammar, tokenizer, 100)


@pytest.mark.parametrize(("vocab_size", "pattern"), [(257, "gpt2"), (1000, "gpt2"), (1000, "gpt4")])
def test_the_product_along_a_story_is_its_probability(
    stories_file: str, vocab_size: int, pattern: str
) -> None:
    tokenizer = make_tokenizer(stories_file, vocab_size, pattern)
    tokens = BOOK.next_tokens(tokenizer)
    for story in islice(BOOK.stories(seed=7), 3):
        ids = [tokens.end, *encode_document(tokenizer, story.text)]
        places = tokens.positions(ids)
        assert len(places) == len(ids) + 1
        assert places[0] is None
        bits = 0.0
        for place, id in zip(places[1:-1], ids[1:], strict=True):
            assert place is not None
            assert math.fsum(place.probabilities.values()) == pytest.approx(1, abs=1e-12)
            assert 0 <= place.entropy < 16
            bits -= math.log2(place.probabilities[id])
        parsed = BOOK.parse(story.text)
        assert bits == pytest.approx(parsed.bits, abs=1e-9)  # differences of bits are relative errors of p


def test_the_mean_surprise_of_first_tokens_is_their_entropy(stories_file: str) -> None:
    """The first word of many stories costs as many bits as the distribution says."""
    tokenizer = make_tokenizer(stories_file, 1000)
    place = BOOK.next_tokens(tokenizer).start(after_end=False)
    firsts = [tokenizer.encode(story.text)[0] for story in islice(BOOK.stories(seed=3), 400)]
    bits = [-math.log2(place.probabilities[id]) for id in firsts]
    mean = math.fsum(bits) / len(bits)
    deviation = math.sqrt(math.fsum((each - mean) ** 2 for each in bits) / len(bits))
    assert abs(mean - place.entropy) < 4 * deviation / math.sqrt(len(bits))


def test_a_story_can_begin_with_or_without_its_line_break(stories_file: str) -> None:
    tokenizer = make_tokenizer(stories_file, 1000)
    tokens = BOOK.next_tokens(tokenizer)
    (line_break,) = tokenizer.encode("\n")
    assert tokens.start().probabilities == {line_break: 1.0}
    bare, after_break = (tokens.positions(tokenizer.encode(text)) for text in ("Once upon", "\nOnce upon"))
    assert bare[-1] is not None
    assert after_break[-1] is not None
    assert bare[-1].probabilities == pytest.approx(after_break[-1].probabilities)


def test_tokens_that_no_story_has_are_followed_by_none_until_the_next_story(stories_file: str) -> None:
    tokenizer = make_tokenizer(stories_file, 1000)
    tokens = BOOK.next_tokens(tokenizer)
    ids = [*tokenizer.encode("Once upon a zebra"), tokens.end]
    places = tokens.positions(ids)
    assert places[3] is not None
    assert places[-2] is None
    assert places[-1] is not None
    assert places[-1].probabilities == tokens.start().probabilities


def test_words_are_encoded_independently_of_each_other(stories_file: str) -> None:
    for pattern in ("gpt2", "gpt4"):
        tokenizer = make_tokenizer(stories_file, 1000, pattern)
        for story in islice(BOOK.stories(seed=11), 20):
            document = f"\n{story.text}\n"
            words = WORD_BOUNDARY.split(document)
            assert [id for word in words for id in tokenizer.encode(word)] == tokenizer.encode(document)


def test_tokenizers_that_may_join_words_are_rejected(stories_file: str) -> None:
    vocab, merges = train_bpe(stories_file, 300, [END_OF_TEXT])
    with rejects(UsageError, key="pattern"):
        BOOK.next_tokens(Tokenizer(vocab, merges, [END_OF_TEXT], pattern=r"\S+\s*"))
    vocab, merges = train_bpe(stories_file, 300, [END_OF_TEXT, "a b"])
    with rejects(UsageError, key="special_tokens", found="a b"):
        BOOK.next_tokens(Tokenizer(vocab, merges, [END_OF_TEXT, "a b"]))
    vocab, merges = train_bpe(stories_file, 300, [])
    with rejects(UsageError, key="special_tokens", expected=END_OF_TEXT):
        BOOK.next_tokens(Tokenizer(vocab, merges))

"""The reference implementation of byte-level BPE: training, encoding and decoding.

Read it from top to bottom. Special tokens split the text, a pattern splits each part into words, and words
are counted. Training repeatedly turns the most frequent pair of neighbouring tokens into a new token.
Encoding applies these merges in order. This file defines the results: the fused implementation in Rust must
produce exactly these merges and ids.

All bytes survive encoding and decoding, including invalid UTF-8. The reference is not fast (a few megabytes
per second), does not bound memory, and is slow for words of a million letters.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

import regex

from bytewright.errors import TokenizerError, shorten, wrong_value
from bytewright.tokenizer.vocabulary import PATTERNS, Merge, Vocabulary, check_all_bytes, name_of_pattern

BYTES = tuple(bytes([byte]) for byte in range(256))
"""The 256 tokens from which training starts."""

Word = tuple[bytes, ...]
"""A word as a sequence of tokens: `(b"n", b"e", b"w")`, after a merge `(b"ne", b"w")`."""

Source = bytes | Iterable[bytes] | Mapping[bytes, int]
"""Training data: a text, several texts, or words with their counts."""


# Text to words


def split_on_special_tokens(text: bytes, special_tokens: Iterable[str]) -> list[bytes]:
    """Split `text` so that each special token is a separate part.

    The leftmost match comes first; of several matches at one position the longest. A part that is not a
    special token never contains one, so `part in specials` distinguishes the two kinds.

    >>> split_on_special_tokens(b"one<|end|>two", ["<|end|>"])
    [b'one', b'<|end|>', b'two']
    >>> split_on_special_tokens(b"<|end|><|end|>", ["<|end|>", "<|end|><|end|>"])
    [b'<|end|><|end|>']
    """
    longest_first = sorted((special.encode() for special in special_tokens), key=len, reverse=True)
    if not longest_first:
        return [text] if text else []
    any_special = b"|".join(re.escape(special) for special in longest_first)
    return [part for part in re.split(b"(" + any_special + b")", text) if part]


def pretokenize(text: bytes, pattern: str) -> list[bytes]:
    r"""Split `text` into words; their concatenation is the text. Merges never cross a word boundary.

    A word is a match of the pattern. The text between two matches is also a word, so no byte is lost. Empty
    matches are ignored: the search continues after the next character.

    >>> pretokenize(b"the cat's 2 hats", "gpt2")
    [b'the', b' cat', b"'s", b' 2', b' hats']
    >>> pretokenize(b"one-two", "[a-z]+")
    [b'one', b'-', b'two']

    An invalid byte counts as one character that is neither letter, number nor space. Python's
    `surrogateescape` does this: it maps each such byte to a lone surrogate and back.

    >>> pretokenize(b"caf\xe9s", "gpt2")
    [b'caf', b'\xe9', b's']
    """
    compiled = compile_pattern(pattern)
    characters = text.decode("utf-8", "surrogateescape")
    words: list[str] = []
    taken = start = 0
    while start < len(characters) and (match := compiled.search(characters, start)):
        if match.start() == match.end():
            start = match.end() + 1
            continue
        if taken < match.start():
            words.append(characters[taken : match.start()])
        words.append(match[0])
        taken = start = match.end()
    if taken < len(characters):
        words.append(characters[taken:])
    return [word.encode("utf-8", "surrogateescape") for word in words]


@lru_cache
def compile_pattern(pattern: str) -> regex.Pattern[str]:
    """Return the compiled pattern, given by name or as a regular expression of the `regex` package."""
    name = name_of_pattern(pattern)
    try:
        return regex.compile(PATTERNS.get(name, name))
    except (regex.error, RecursionError, OverflowError) as error:
        message = f"pattern {shorten(pattern)} is not a regular expression: {error}"
        raise TokenizerError(message, key="pattern", found=pattern) from None


def count_words_reference(source: Source, special_tokens: Iterable[str], pattern: str) -> Mapping[bytes, int]:
    """Return the count of each word; special tokens separate words and are not counted.

    >>> sorted(count_words_reference([b"low low<|end|>low"], ["<|end|>"], "gpt2").items())
    [(b' low', 1), (b'low', 2)]
    """
    if isinstance(source, Mapping):
        return source
    special_tokens = list(special_tokens)
    specials = {special.encode() for special in special_tokens}
    counts: Counter[bytes] = Counter()
    for text in [source] if isinstance(source, bytes) else source:
        for part in split_on_special_tokens(text, special_tokens):
            if part not in specials:
                counts.update(pretokenize(part, pattern))
    return counts


# Words to merges


def merge_pair(word: Word, pair: Merge) -> Word:
    """Return `word` with every occurrence of `pair` joined, from left to right.

    >>> merge_pair((b"a", b"a", b"a"), (b"a", b"a"))
    (b'aa', b'a')
    """
    merged: list[bytes] = []
    position = 0
    while position < len(word):
        if word[position : position + 2] == pair:
            merged.append(pair[0] + pair[1])
            position += 2
        else:
            merged.append(word[position])
            position += 1
    return tuple(merged)


def pairs_of(word: Word) -> list[Merge]:
    """Return the pairs of neighbours in a word: `(a, b, c) -> [(a, b), (b, c)]`."""
    return list(pairwise(word))


def count_pairs(words: Mapping[Word, int]) -> Counter[Merge]:
    """Return the count of each pair of neighbours, weighted by the words' counts; overlaps count each time.

    >>> count_pairs({(b"a", b"a", b"a"): 5})
    Counter({(b'a', b'a'): 10})
    """
    counts: Counter[Merge] = Counter()
    for word, count in words.items():
        for pair in pairs_of(word):
            counts[pair] += count
    return counts


def tie_key(pair: Merge) -> tuple[bytes, bytes]:
    """Return the key of the tie rule: of pairs with equal counts, the one with the greatest key is merged.

    The fused implementation has the same rule in `tie_key` of `crates/bpe/src/merge/candidates.rs`.

    >>> tie_key((b"a", b"c")) > tie_key((b"a", b"b"))
    True
    """
    left, right = pair
    return left, right


def most_frequent_pair(counts: Mapping[Merge, int]) -> Merge:
    """Return the pair to merge next: the one with the highest count; `tie_key` decides between equal counts.

    >>> most_frequent_pair({(b"a", b"b"): 7, (b"a", b"c"): 7, (b"z", b"z"): 6})
    (b'a', b'c')
    """
    highest = max(counts.values())
    return max((pair for pair, count in counts.items() if count == highest), key=tie_key)


def learn_merges_by_definition(
    words: Mapping[Word, int], num_merges: int, min_count: int = 1
) -> list[tuple[Merge, int]]:
    """Return up to `num_merges` merges with their counts; stop when no pair occurs `min_count` times.

    This is the definition of BPE training: count all pairs, merge the most frequent one everywhere, repeat.

    >>> words = {(b"l", b"o", b"w"): 5, (b"n", b"e", b"w"): 6}
    >>> learn_merges_by_definition(words, 2)
    [((b'n', b'e'), 6), ((b'ne', b'w'), 6)]
    """
    learned: list[tuple[Merge, int]] = []
    while len(learned) < num_merges:
        counts = count_pairs(words)
        if not counts or counts[pair := most_frequent_pair(counts)] < min_count:
            break
        learned.append((pair, counts[pair]))
        words = {merge_pair(word, pair): times for word, times in words.items()}
    return learned


def learn_merges(words: Mapping[Word, int], num_merges: int, min_count: int = 1) -> list[tuple[Merge, int]]:
    """Return the same merges as `learn_merges_by_definition`, but update the counts instead of recounting.

    A merge changes only the words that contain the pair. So `words_with` lists these words, and only their
    pairs are subtracted and added. A word can remain listed under a pair that it no longer contains; then its
    counts do not change.

    >>> words = {(b"l", b"o", b"w"): 5, (b"n", b"e", b"w"): 6}
    >>> learn_merges(words, 2)
    [((b'n', b'e'), 6), ((b'ne', b'w'), 6)]
    """
    now = {word: word for word in words}
    counts = count_pairs(words)
    words_with: defaultdict[Merge, set[Word]] = defaultdict(set)
    for word in words:
        for pair in pairs_of(word):
            words_with[pair].add(word)

    learned: list[tuple[Merge, int]] = []
    while len(learned) < num_merges:
        if not counts or counts[pair := most_frequent_pair(counts)] < min_count:
            break
        learned.append((pair, counts[pair]))
        for word in words_with.pop(pair):
            for old_pair in pairs_of(now[word]):
                counts[old_pair] -= words[word]
                if counts[old_pair] == 0:
                    del counts[old_pair]
            now[word] = merge_pair(now[word], pair)
            for new_pair in pairs_of(now[word]):
                counts[new_pair] += words[word]
                words_with[new_pair].add(word)
    return learned


def train_bpe_reference(
    source: Source,
    vocab_size: int,
    special_tokens: Iterable[str] = (),
    *,
    pattern: str = "gpt2",
    min_count: int = 1,
) -> tuple[dict[int, bytes], list[Merge], list[int]]:
    r"""Train on texts or on counted words; return the vocabulary, the merges and their counts.

    Ids 0 to 255 are the bytes, followed by the merges in order and by the special tokens.

    >>> text = b"low " * 5 + b"lower " * 2 + b"widest " * 3 + b"newest " * 6
    >>> vocab, merges, counts = train_bpe_reference(text, 256 + 12 + 1, ["<|end|>"], pattern=r"\S+")
    >>> " ".join((left + right).decode() for left, right in merges)
    'st est ow low west ne newest wi wid widest lowe lower'
    >>> counts
    [9, 9, 7, 7, 6, 6, 6, 3, 3, 3, 2, 2]
    >>> vocab[97], vocab[256], vocab[268]
    (b'a', b'st', b'<|end|>')
    """
    special_tokens = list(special_tokens)
    num_merges = vocab_size - len(BYTES) - len(special_tokens)
    if num_merges < 0:
        least = len(BYTES) + len(special_tokens)
        raise wrong_value("vocab_size", f"at least {least} (256 bytes and the special tokens)", vocab_size)
    counts = count_words_reference(source, special_tokens, pattern)
    words = {tuple(BYTES[byte] for byte in word): times for word, times in counts.items()}
    learned = learn_merges(words, num_merges, min_count)
    merges = [pair for pair, _ in learned]
    tokens = [*BYTES, *(left + right for left, right in merges), *(name.encode() for name in special_tokens)]
    return dict(enumerate(tokens)), merges, [count for _, count in learned]


def extend_reference(
    vocabulary: Vocabulary, source: Source, vocab_size: int, *, min_count: int = 1
) -> tuple[Vocabulary, list[int]]:
    """Continue training: existing ids and merges are kept, and new tokens get the next free ids.

    The bytes of each token of `vocabulary` must encode to that token (see
    `formats.tiktoken.check_reachable`), as in a trained vocabulary. Then no new merge can produce an existing
    token.

    >>> start = Vocabulary.from_parts(*train_bpe_reference(b"aab aab", 257)[:2], ["<|end|>"])
    >>> start.merges, start.size
    (((b'a', b'b'),), 258)
    >>> longer, counts = extend_reference(start, b"aab aab", 260)
    >>> longer.merges, counts, longer.tokens[258], longer.special_tokens["<|end|>"]
    (((b'a', b'b'), (b'a', b'ab'), (b' ', b'aab')), [2, 1], b'aab', 257)
    """
    if vocab_size < vocabulary.size:
        raise wrong_value("vocab_size", f"at least {vocabulary.size}, the size of the vocabulary", vocab_size)
    check_all_bytes(vocabulary, "extending a vocabulary")
    counts = count_words_reference(source, vocabulary.special_tokens, vocabulary.pattern)
    ranks = ranks_of(vocabulary.merges)
    words = {encode_word(word, ranks): times for word, times in counts.items()}
    learned = learn_merges(words, vocab_size - vocabulary.size, min_count)
    tokens = dict(vocabulary.tokens)
    for id, ((left, right), _) in enumerate(learned, start=vocabulary.size):
        tokens[id] = left + right
    longer = Vocabulary(
        tokens=tokens,
        merges=(*vocabulary.merges, *(pair for pair, _ in learned)),
        special_tokens=vocabulary.special_tokens,
        pattern=vocabulary.pattern,
    )
    return longer, [count for _, count in learned]


# Text to ids and back


def ranks_of(merges: Iterable[Merge]) -> dict[Merge, int]:
    """Return the rank of each merge: its position in the order of creation."""
    return {pair: rank for rank, pair in enumerate(merges)}


def encode_word(word: bytes, ranks: Mapping[Merge, int]) -> Word:
    """Return the tokens of one word after applying the merges, lowest rank first.

    >>> encode_word(b"newest", ranks_of([(b"s", b"t"), (b"e", b"st"), (b"n", b"e")]))
    (b'ne', b'w', b'est')
    """
    tokens: Word = tuple(BYTES[byte] for byte in word)
    while known := [pair for pair in pairs_of(tokens) if pair in ranks]:
        tokens = merge_pair(tokens, min(known, key=ranks.__getitem__))
    return tokens


def encode_reference(text: bytes, vocabulary: Vocabulary) -> list[int]:
    """Return the ids of a text: split at special tokens, split into words, merge inside words, look up ids.

    A byte outside special tokens that has no token raises `TokenizerError`.

    >>> tokens, merges, _ = train_bpe_reference(b"low low lower", 258)
    >>> merges
    [(b'o', b'w'), (b'l', b'ow')]
    >>> vocabulary = Vocabulary.from_parts(tokens, merges, ["<|end|>"])
    >>> encode_reference(b"low<|end|>blow", vocabulary)
    [257, 258, 98, 257]
    """
    specials = {special.encode(): id for special, id in vocabulary.special_tokens.items()}
    id_of = vocabulary.ids_of_ordinary_tokens
    ranks = ranks_of(vocabulary.merges)
    ids_of_word: dict[bytes, list[int]] = {}
    ids: list[int] = []
    end = 0
    for part in split_on_special_tokens(text, vocabulary.special_tokens):
        end += len(part)
        if part in specials:
            ids.append(specials[part])
            continue
        for position, byte in enumerate(part, start=end - len(part)):
            if byte in vocabulary.bytes_without_token:
                message = f"byte {byte:#04x} at position {position} has no token in this vocabulary"
                raise TokenizerError(message, found=byte)
        for word in pretokenize(part, vocabulary.pattern):
            if word not in ids_of_word:
                ids_of_word[word] = [id_of[token] for token in encode_word(word, ranks)]
            ids += ids_of_word[word]
    return ids


def decode_reference(ids: Sequence[int], vocabulary: Vocabulary) -> bytes:
    """Return the concatenated bytes of the tokens.

    Convert all bytes to text at once with `.decode("utf-8", errors="replace")`: a token can end inside a
    character.

    >>> vocabulary = Vocabulary.from_parts(dict(enumerate(BYTES)), [])
    >>> decode_reference([0xE2, 0x82, 0xAC], vocabulary).decode()
    '€'
    """
    for position, id in enumerate(ids):
        if id not in vocabulary.tokens:
            message = f"token id {id} at position {position} is outside the vocabulary ({vocabulary.size})"
            raise TokenizerError(message, found=id)
    return b"".join(vocabulary.tokens[id] for id in ids)

"""The readable twin: what it *means* to train a byte-level BPE, to encode and to decode.

Read it from top to bottom: text is cut at special tokens, each part is cut into words, words are counted, the
commonest pair of neighbours becomes a token again and again, and encoding replays those merges. The fast twin
in Rust must give exactly these merges and these ids; where the two disagree, this file is right.

It promises clarity and exactness, and bytes that always survive encode -> decode, even bytes that are not
UTF-8. It does not promise speed (it does a few megabytes a second), bounded memory, or good manners with a
word of a million letters. It knows nothing of files, threads or the native extension.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

import regex

from bytewright.errors import TokenizerError, UsageError
from bytewright.storage.json_reader import shorten
from bytewright.tokenizer.vocabulary import PATTERNS, Merge, Vocabulary, check_all_bytes, name_of_pattern

BYTES = tuple(bytes([byte]) for byte in range(256))
"""The 256 tokens that every vocabulary starts from."""

Word = tuple[bytes, ...]
"""A word as the tokens it consists of so far: `(b"n", b"e", b"w")`, later `(b"ne", b"w")`."""

Source = bytes | Iterable[bytes] | Mapping[bytes, int]
"""What one can train on: a text, several texts, or words with their counts."""


# From text to words


def split_on_special_tokens(text: bytes, special_tokens: Iterable[str]) -> list[bytes]:
    """Cut `text` so that each special token in it is a part of its own: the leftmost first, then the longest.

    A part that is not a special token never contains one, so `part in specials` tells the two apart.

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
    r"""Cut `text` into words, which merges never cross; joined together they are the text again.

    A word is a match of the pattern. What lies between two matches is a word too, so that no byte is lost; an
    empty match is no match: the search goes on one character further.

    >>> pretokenize(b"the cat's 2 hats", "gpt2")
    [b'the', b' cat', b"'s", b' 2', b' hats']
    >>> pretokenize(b"one-two", "[a-z]+")
    [b'one', b'-', b'two']

    A byte that is not UTF-8 counts as one character that is neither letter, number nor space. Python's
    `surrogateescape` does just this: each such byte becomes a lone surrogate, and turns back into that byte.

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
    """Compile a pattern given by name or as a regular expression in the syntax of the `regex` package."""
    name = name_of_pattern(pattern)
    try:
        return regex.compile(PATTERNS.get(name, name))
    except (regex.error, RecursionError, OverflowError) as error:
        raise TokenizerError(f"pattern {shorten(pattern)} is not a regular expression: {error}") from None


def count_words_reference(source: Source, special_tokens: Iterable[str], pattern: str) -> Mapping[bytes, int]:
    """Count the words of all texts, unless they are counted already; special tokens cut, but do not count.

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


# From words to merges


def merge_pair(word: Word, pair: Merge) -> Word:
    """Join every occurrence of `pair` in `word`, from left to right.

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
    """List the neighbours in a word: `(a, b, c) -> [(a, b), (b, c)]`."""
    return list(pairwise(word))


def count_pairs(words: Mapping[Word, int]) -> Counter[Merge]:
    """Count neighbours, each word as often as it occurs; overlapping pairs count each time.

    >>> count_pairs({(b"a", b"a", b"a"): 5})
    Counter({(b'a', b'a'): 10})
    """
    counts: Counter[Merge] = Counter()
    for word, count in words.items():
        for pair in pairs_of(word):
            counts[pair] += count
    return counts


def commonest_pair(counts: Mapping[Merge, int]) -> Merge:
    """Choose what to merge: the highest count and, on a tie, the greater (left bytes, right bytes).

    >>> commonest_pair({(b"a", b"b"): 7, (b"a", b"c"): 7, (b"z", b"z"): 6})
    (b'a', b'c')
    """
    highest = max(counts.values())
    return max(pair for pair, count in counts.items() if count == highest)


def learn_merges_by_definition(
    words: Mapping[Word, int], num_merges: int, min_count: int = 1
) -> list[tuple[Merge, int]]:
    """Learn up to `num_merges` merges from distinct words; stop early when no pair occurs `min_count` times.

    This is the whole of BPE training: count all pairs, merge the commonest everywhere, start again. Each
    merge is given with the count that won.

    >>> words = {(b"l", b"o", b"w"): 5, (b"n", b"e", b"w"): 6}
    >>> learn_merges_by_definition(words, 2)
    [((b'n', b'e'), 6), ((b'ne', b'w'), 6)]
    """
    learned: list[tuple[Merge, int]] = []
    while len(learned) < num_merges:
        counts = count_pairs(words)
        if not counts or counts[pair := commonest_pair(counts)] < min_count:
            break
        learned.append((pair, counts[pair]))
        words = {merge_pair(word, pair): times for word, times in words.items()}
    return learned


def learn_merges(words: Mapping[Word, int], num_merges: int, min_count: int = 1) -> list[tuple[Merge, int]]:
    """Learn the same merges as `learn_merges_by_definition`, without counting everything anew each time.

    A merge changes only the words that hold the pair. So remember which words those are, take their old pairs
    out of the counts and put their new pairs in. (A word stays listed under a pair that it has lost since:
    visiting it in vain does no harm.)

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
        if not counts or counts[pair := commonest_pair(counts)] < min_count:
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
    r"""Train on texts, or on words already counted; give the vocabulary, the merges and their counts.

    Ids 0-255 are the bytes, then come the merges in order, then the special tokens.

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
        raise UsageError(
            f"vocab_size {vocab_size} is too small: 256 bytes and {len(special_tokens)} special tokens"
            f" need at least {len(BYTES) + len(special_tokens)}"
        )
    counts = count_words_reference(source, special_tokens, pattern)
    words = {tuple(BYTES[byte] for byte in word): times for word, times in counts.items()}
    learned = learn_merges(words, num_merges, min_count)
    merges = [pair for pair, _ in learned]
    tokens = [*BYTES, *(left + right for left, right in merges), *(name.encode() for name in special_tokens)]
    return dict(enumerate(tokens)), merges, [count for _, count in learned]


def extend_reference(
    vocabulary: Vocabulary, source: Source, vocab_size: int, *, min_count: int = 1
) -> tuple[Vocabulary, list[int]]:
    """Go on training: each id and merge stays as it is, new merges follow, new tokens take the next free ids.

    Every token of `vocabulary` must be one that its own bytes encode to, as those of a trained vocabulary are
    (see `ranks.check_reachable`); then no merge can make a token that is there already.

    >>> start = Vocabulary.from_parts(*train_bpe_reference(b"aab aab", 257)[:2], ["<|end|>"])
    >>> start.merges, start.size
    (((b'a', b'b'),), 258)
    >>> longer, counts = extend_reference(start, b"aab aab", 260)
    >>> longer.merges, counts, longer.tokens[258], longer.special_tokens["<|end|>"]
    (((b'a', b'b'), (b'a', b'ab'), (b' ', b'aab')), [2, 1], b'aab', 257)
    """
    if vocab_size < vocabulary.size:
        raise UsageError(
            f"vocab_size {vocab_size} is smaller than the vocabulary already is ({vocabulary.size})"
        )
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


# From text to ids and back


def ranks_of(merges: Iterable[Merge]) -> dict[Merge, int]:
    """Give each merge its place in the order of creation: a lower rank goes first."""
    return {pair: rank for rank, pair in enumerate(merges)}


def encode_word(word: bytes, ranks: Mapping[Merge, int]) -> Word:
    """Apply the merges inside one word in the order in which they were created.

    >>> encode_word(b"newest", ranks_of([(b"s", b"t"), (b"e", b"st"), (b"n", b"e")]))
    (b'ne', b'w', b'est')
    """
    tokens: Word = tuple(BYTES[byte] for byte in word)
    while known := [pair for pair in pairs_of(tokens) if pair in ranks]:
        tokens = merge_pair(tokens, min(known, key=ranks.__getitem__))
    return tokens


def encode_reference(text: bytes, vocabulary: Vocabulary) -> list[int]:
    """Encode: cut out the special tokens, cut the rest into words, merge inside each word, look up the ids.

    A byte outside special tokens that has no token is an error.

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
                raise TokenizerError(
                    f"byte {byte:#04x} at position {position} has no token in this vocabulary"
                )
        for word in pretokenize(part, vocabulary.pattern):
            if word not in ids_of_word:
                ids_of_word[word] = [id_of[token] for token in encode_word(word, ranks)]
            ids += ids_of_word[word]
    return ids


def decode_reference(ids: Sequence[int], vocabulary: Vocabulary) -> bytes:
    """Decode: the bytes of each token, one after the other, which are the text that was encoded.

    Text comes from these bytes by `.decode("utf-8", errors="replace")`, all at once: a token may end in the
    middle of a character.

    >>> vocabulary = Vocabulary.from_parts(dict(enumerate(BYTES)), [])
    >>> decode_reference([0xE2, 0x82, 0xAC], vocabulary).decode()
    '€'
    """
    for position, id in enumerate(ids):
        if id not in vocabulary.tokens:
            raise TokenizerError(
                f"token id {id} at position {position} is outside the vocabulary ({vocabulary.size})"
            )
    return b"".join(vocabulary.tokens[id] for id in ids)

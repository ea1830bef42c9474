"""GPT-2's format: `vocab.json` (ids by spelling) and `merges.txt` (one merge per line).

Neither file contains the pattern, which is GPT-2's, or marks special tokens, which the caller names.
`vocab.json` contains special tokens as plain text, as Hugging Face expects. Each of the two files is written
atomically, but not the pair.

Tokens are spelled in a printable alphabet, which the other formats share. A visible character of Latin-1
stands for its byte. The other 68 bytes are mapped to the characters from U+0100 on: a space is `Ġ`, a line
end `Ċ`. A merge is two spellings separated by a space.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

from bytewright.errors import FormatError, TokenizerError, shorten
from bytewright.storage import atomic
from bytewright.storage.json_reader import Json, read_lines
from bytewright.tokenizer.vocabulary import Merge, Vocabulary, list_special_tokens, naming_files

VISIBLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_INVISIBLE = [byte for byte in range(256) if byte not in VISIBLE]
_SPELL = {byte: chr(0x100 + number) for number, byte in enumerate(_INVISIBLE)}
# Characters of Latin-1 outside the alphabet are mapped out of Latin-1, so that encoding them fails.
_UNSPELL = {ord(character): chr(byte) for byte, character in _SPELL.items()} | dict.fromkeys(
    _INVISIBLE, "\uffff"
)

HEADER = "#version: 0.2"
LONGEST_TOKEN_TO_SPLIT = 256
"""Splitting a token at every position costs the square of its length."""


class TokenizerWarning(UserWarning):
    """A token that no merge makes is not declared as a special token, so no text is encoded to it."""


def write_gpt2(vocabulary: Vocabulary, vocab_path: atomic.StrPath, merges_path: atomic.StrPath) -> None:
    """Write both files; the pattern must be GPT-2's, because the files cannot contain another."""
    if vocabulary.pattern != "gpt2":
        message = f"vocab.json and merges.txt imply the pattern gpt2, not {shorten(vocabulary.pattern)}"
        raise TokenizerError(message, key="pattern", expected="gpt2", found=vocabulary.pattern)
    lines = [HEADER, *spell_merges(vocabulary.merges)]
    spelled = spell_with_special_tokens(vocabulary)
    atomic.write_text(merges_path, "\n".join(lines) + "\n")
    atomic.write_json(vocab_path, spelled)


def spell_with_special_tokens(vocabulary: Vocabulary) -> dict[str, int]:
    """Return the spelled ordinary tokens and the special tokens as plain text, in the order of their ids."""
    spelled = spell_tokens(vocabulary.ids_of_ordinary_tokens)
    for special, id in vocabulary.special_tokens.items():
        if special in spelled:
            same = f"is spelled like the ordinary token {shorten(vocabulary.tokens[spelled[special]])}"
            message = f"special token {shorten(special)} {same}; this format cannot distinguish them"
            raise TokenizerError(message, found=special)
        spelled[special] = id
    return dict(sorted(spelled.items(), key=lambda item: item[1]))


def read_gpt2(
    vocab_path: atomic.StrPath, merges_path: atomic.StrPath, special_tokens: Iterable[str] | None = None
) -> Vocabulary:
    """Return the vocabulary of both files; special tokens that `vocab.json` lacks get the next free ids.

    Without special tokens, a token that no merge makes causes a `TokenizerWarning`: GPT-2's own files have
    one, <|endoftext|>, which is split like other text unless it is declared.
    """
    special_tokens = list_special_tokens(special_tokens)
    specials = set(special_tokens)
    vocab = Json.read(vocab_path)
    merges = read_merges(merges_path)
    known = {left + right for left, right in merges} | {bytes([byte]) for byte in range(256)}
    tokens: dict[int, bytes] = {}
    for spelling, id in read_ids(vocab).items():
        if spelling in specials and unspell(spelling) not in known:
            tokens[id] = spelling.encode(errors="surrogatepass")  # `Vocabulary` rejects surrogates
        else:
            tokens[id] = read_token(spelling, vocab)
    with naming_files(vocab_path, merges_path):
        vocabulary = Vocabulary.from_parts(tokens, merges, special_tokens)
    _check_complete(vocabulary, known, Path(merges_path))
    unmade = [token for token in vocabulary.ids_of_ordinary_tokens if token not in known]
    if unmade and not special_tokens:
        more = f" (and {len(unmade) - 1:,} others)" if len(unmade) > 1 else ""
        shown = shorten(unmade[0].decode(errors="backslashreplace"))
        message = (
            f"{Path(vocab_path)}: no merge makes the token {shown}{more}, so no text is encoded to it; if it"
            " is a special token, name it in special_tokens, or in --special-tokens of `bytewright tokenizer"
            " convert` to make a tokenizer that contains it"
        )
        warnings.warn(message, TokenizerWarning, stacklevel=2)
    return vocabulary


def read_merges(path: atomic.StrPath) -> list[Merge]:
    """Return the merges of a `merges.txt`, with or without its version line."""
    lines = read_lines(path)
    first = 1 if lines and lines[0].startswith("#version") else 0
    return [
        read_merge(Json(line, Path(path), f"line {number}"))
        for number, line in enumerate(lines[first:], start=first + 1)
    ]


def _check_complete(vocabulary: Vocabulary, known: set[bytes], merges_path: Path) -> None:
    """Reject a token without a merge that is the concatenation of two tokens: `merges.txt` is truncated.

    A special token that the caller did not name, such as GPT-2's <|endoftext|>, is not such a concatenation.
    """
    ordinary = vocabulary.ids_of_ordinary_tokens
    for token, id in ordinary.items():
        if token in known or len(token) > LONGEST_TOKEN_TO_SPLIT:
            continue
        if any(token[:cut] in ordinary and token[cut:] in ordinary for cut in range(1, len(token))):
            message = (
                f"{merges_path}: no line makes token {shorten(token)} (id {id}); the file is truncated,"
                " or a special token is not declared"
            )
            raise FormatError(message, path=merges_path, expected=token)


# The printable byte alphabet


def spell(token: bytes) -> str:
    r"""Return a token in the printable alphabet.

    >>> spell(b" the\n")
    'ĠtheĊ'
    """
    return token.decode("latin-1").translate(_SPELL)


def unspell(spelling: str) -> bytes | None:
    """Return the token of a spelling; None if a character is not in the alphabet.

    >>> unspell("Ġthe"), unspell("the end")
    (b' the', None)
    """
    try:
        return spelling.translate(_UNSPELL).encode("latin-1")
    except UnicodeEncodeError:
        return None


def read_merge(merge: Json) -> Merge:
    """Return a merge that is written as "left right" or, in newer files, as ["left", "right"]."""
    halves = merge.value.split(" ") if isinstance(merge.value, str) else merge.value
    if isinstance(halves, list) and len(halves) == 2 and all(isinstance(half, str) for half in halves):
        left, right = unspell(halves[0]), unspell(halves[1])
        if left and right:
            return left, right
    raise merge.error("two tokens in the printable byte alphabet")


def read_ids(vocab: Json) -> dict[str, int]:
    """Return ids by spelling; an id that occurs twice is rejected."""
    ids: dict[str, int] = {}
    owner: dict[int, str] = {}
    for spelling, id in vocab.as_object().items():
        if type(id) is not int:
            raise vocab[spelling].error("an integer")
        if id in owner:
            problem = f"{shorten(owner[id])} and {shorten(spelling)} have the same id {shorten(id)}"
            raise FormatError.at(vocab.file, problem, found=id)
        owner[id] = spelling
        ids[spelling] = id
    return ids


def read_token(spelling: str, vocab: Json) -> bytes:
    """Return the ordinary token of a spelling."""
    token = unspell(spelling)
    if not token:
        message = (
            f"{vocab.file}: {shorten(spelling)} is not in the printable byte alphabet"
            " (special tokens must be declared)"
        )
        raise FormatError(message, path=vocab.file, found=spelling)
    return token


def spell_tokens(ids_of_tokens: Mapping[bytes, int]) -> dict[str, int]:
    """Return the ids of ordinary tokens by spelling, in the order of the ids."""
    return {spell(token): id for token, id in sorted(ids_of_tokens.items(), key=lambda item: item[1])}


def spell_merges(merges: Iterable[Merge]) -> list[str]:
    """Return the spellings of merges: `(b" ", b"t")` is "Ġ t"."""
    return [f"{spell(left)} {spell(right)}" for left, right in merges]

"""GPT-2's format: `vocab.json` (ids by spelling) and `merges.txt` (one merge a line).

Neither file says which tokens are special or how text is cut: special tokens are named by the caller, and the
pattern is GPT-2's. Special tokens stand in `vocab.json` as plain text, where Hugging Face looks for them.
The two files are written one after the other: each is old or new, but not the pair.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from bytewright.errors import FormatError, TokenizerError
from bytewright.storage import atomic
from bytewright.storage.json_reader import Json, read_lines, shorten
from bytewright.tokenizer.vocabulary import Merge, Vocabulary, blaming, list_special_tokens

VISIBLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_INVISIBLE = [byte for byte in range(256) if byte not in VISIBLE]
_SPELL = {byte: chr(0x100 + number) for number, byte in enumerate(_INVISIBLE)}
# Characters of Latin-1 that spell nothing go where Latin-1 cannot follow, so that encoding them fails.
_UNSPELL = {ord(character): chr(byte) for byte, character in _SPELL.items()} | dict.fromkeys(
    _INVISIBLE, "\uffff"
)

HEADER = "#version: 0.2"
# Taking a token apart at every place costs the square of its length, so a giant one is left whole.
LONGEST_TOKEN_TO_TAKE_APART = 256


def write_gpt2(vocabulary: Vocabulary, vocab_path: atomic.StrPath, merges_path: atomic.StrPath) -> None:
    """Write both files; a vocabulary whose pattern is not GPT-2's is refused, since they cannot say so."""
    if vocabulary.pattern != "gpt2":
        raise TokenizerError(
            "vocab.json and merges.txt imply the gpt2 pattern, but this tokenizer has"
            f" {shorten(vocabulary.pattern)}"
        )
    lines = [HEADER, *spell_merges(vocabulary.merges)]
    spelled = spell_with_special_tokens(vocabulary)
    atomic.write_text(merges_path, "\n".join(lines) + "\n")
    atomic.write_json(vocab_path, spelled)


def spell_with_special_tokens(vocabulary: Vocabulary) -> dict[str, int]:
    """Spell the ordinary tokens and add the special ones as plain text, in the order of their ids."""
    spelled = spell_tokens(vocabulary.ids_of_ordinary_tokens)
    for special, id in vocabulary.special_tokens.items():
        if special in spelled:
            raise TokenizerError(
                f"special token {shorten(special)} is spelled like the ordinary token"
                f" {shorten(vocabulary.tokens[spelled[special]])}, which this format cannot tell apart"
            )
        spelled[special] = id
    return dict(sorted(spelled.items(), key=lambda item: item[1]))


def read_gpt2(
    vocab_path: atomic.StrPath, merges_path: atomic.StrPath, special_tokens: Iterable[str] | None = None
) -> Vocabulary:
    """Read both files; special tokens that `vocab.json` lacks get the next free ids."""
    special_tokens = list_special_tokens(special_tokens)
    specials = set(special_tokens)
    vocab = Json.read(vocab_path)
    merges = read_merges(merges_path)
    known = {left + right for left, right in merges} | {bytes([byte]) for byte in range(256)}
    tokens: dict[int, bytes] = {}
    for spelling, id in read_ids(vocab).items():
        if spelling in specials and unspell(spelling) not in known:
            tokens[id] = spelling.encode(errors="surrogatepass")  # what is not Unicode is refused below
        else:
            tokens[id] = read_token(spelling, vocab)
    with blaming(vocab_path, merges_path):
        vocabulary = Vocabulary.from_parts(tokens, merges, special_tokens)
    _refuse_lost_merge(vocabulary, known, Path(merges_path))
    return vocabulary


def read_merges(path: atomic.StrPath) -> list[Merge]:
    """Read the merges of a `merges.txt`, with or without its line of version."""
    lines = read_lines(path)
    first = 1 if lines and lines[0].startswith("#version") else 0
    return [
        read_merge(Json(line, Path(path), f"line {number}"))
        for number, line in enumerate(lines[first:], start=first + 1)
    ]


def _refuse_lost_merge(vocabulary: Vocabulary, known: set[bytes], merges_path: Path) -> None:
    """Refuse a token that no merge makes though two tokens would: the mark of a truncated `merges.txt`.

    A special token that the caller did not name, such as GPT-2's <|endoftext|>, is no merge of two tokens.
    """
    ordinary = vocabulary.ids_of_ordinary_tokens
    for token, id in ordinary.items():
        if token in known or len(token) > LONGEST_TOKEN_TO_TAKE_APART:
            continue
        if any(token[:cut] in ordinary and token[cut:] in ordinary for cut in range(1, len(token))):
            raise FormatError(
                f"{merges_path}: no line makes token {shorten(token)} (id {id}); the file is truncated,"
                " or this is a special token that must be named as one"
            )


# The printable byte alphabet


def spell(token: bytes) -> str:
    r"""Spell a token in printable characters.

    >>> spell(b" the\n")
    'ĠtheĊ'
    """
    return token.decode("latin-1").translate(_SPELL)


def unspell(spelling: str) -> bytes | None:
    """Read a spelling; None when a character of it spells no byte.

    >>> unspell("Ġthe"), unspell("the end")
    (b' the', None)
    """
    try:
        return spelling.translate(_UNSPELL).encode("latin-1")
    except UnicodeEncodeError:
        return None


def spell_merge(merge: Merge) -> str:
    """Spell a merge: `(b" ", b"t") -> "Ġ t"`."""
    return f"{spell(merge[0])} {spell(merge[1])}"


def read_merge(merge: Json) -> Merge:
    """Read a merge written as "left right" or, as newer files have it, as ["left", "right"]."""
    halves = merge.value.split(" ") if isinstance(merge.value, str) else merge.value
    if isinstance(halves, list) and len(halves) == 2 and all(isinstance(half, str) for half in halves):
        left, right = unspell(halves[0]), unspell(halves[1])
        if left and right:
            return left, right
    raise merge.error("two tokens in the printable byte alphabet")


def read_ids(vocab: Json) -> dict[str, int]:
    """Read an object of ids by spelling; an id that is used twice is refused."""
    ids: dict[str, int] = {}
    owner: dict[int, str] = {}
    for spelling, id in vocab.as_object().items():
        if type(id) is not int:
            raise vocab[spelling].error("an integer")
        if id in owner:
            raise FormatError(
                f"{vocab.file}: {shorten(owner[id])} and {shorten(spelling)} have the same id {shorten(id)}"
            )
        owner[id] = spelling
        ids[spelling] = id
    return ids


def read_token(spelling: str, vocab: Json) -> bytes:
    """Read one spelling of an ordinary token."""
    token = unspell(spelling)
    if not token:
        raise FormatError(
            f"{vocab.file}: {shorten(spelling)} is not spelled in the printable byte alphabet"
            " (a special token must be named as one)"
        )
    return token


def spell_tokens(ids_of_tokens: Mapping[bytes, int]) -> dict[str, int]:
    """Spell ordinary tokens, in the order of their ids."""
    return {spell(token): id for token, id in sorted(ids_of_tokens.items(), key=lambda item: item[1])}


def spell_merges(merges: Iterable[Merge]) -> list[str]:
    """Spell all merges, in order."""
    return [spell_merge(merge) for merge in merges]

"""Tokens and merges as printable text: the byte alphabet of GPT-2, which three of the four formats share.

Every byte has one printable character: a visible character of Latin-1 stands for itself, and the other 68
bytes take the characters from U+0100 on, in order, so that a space is `Ġ` and a line end is `Ċ`. A merge is
two such spellings with a space between them, which is unambiguous because no spelling holds a space.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bytewright.errors import FormatError
from bytewright.storage.json_reader import Json, shorten
from bytewright.tokenizer.vocabulary import Merge

VISIBLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_INVISIBLE = [byte for byte in range(256) if byte not in VISIBLE]
_SPELL = {byte: chr(0x100 + number) for number, byte in enumerate(_INVISIBLE)}
# Characters of Latin-1 that spell nothing go where Latin-1 cannot follow, so that encoding them fails.
_UNSPELL = {ord(character): chr(byte) for byte, character in _SPELL.items()} | dict.fromkeys(
    _INVISIBLE, "\uffff"
)


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

"""Values that are not intended for any argument: texts, ids, numbers, patterns, special tokens, vocabularies.

Some of them are fine, and only unusual; most are not. What must hold for all of them is in
`test_hostile_input.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

BYTES = {byte: bytes([byte]) for byte in range(256)}


class OddError(Exception):
    """Raised by an object of the caller; it must propagate unchanged."""


class Odd:
    """An object whose methods all violate their contracts."""

    def _complain(self) -> Any:
        raise OddError("I am odd")

    __index__ = __str__ = __repr__ = __len__ = __iter__ = __fspath__ = __hash__ = _complain


class Liar:
    """A sequence that claims to be longer than memory."""

    def __init__(self, *items: object, length: int = 2**60) -> None:
        self._items, self._length = items, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, place: int) -> object:
        return self._items[place]


TEXTS: list[Any] = [
    *("", b"", "\x00", "a" * 1_000_000, b"a" * 1_000_000, " " * 200_000, "\n" * 10_000, "'" * 5000),
    *(
        "🙂" * 1000,
        b"\xff" * 100_000,
        b"\xf0\x9f" * 1000,
        "<e>" * 1000,
        "<e",
        np.str_("text"),
        np.bytes_(b"text"),
    ),
    *("a" * 15, "a" * 16, "a" * 48, "a" * 49, "é" * 2048, " é" * 2048),
]
NOT_TEXTS: list[Any] = [
    *("\ud800", "a\udfff" * 3, None, True, 0, -1, 1.5, 10**5000, ..., int, object(), Odd()),
    *([], ["a"], {"a": 1}, {"a"}, range(2**60), bytearray(b"abc"), memoryview(b"abc"), iter("ab")),
    *(np.array([97]), np.array("a"), Liar("a", 5), Liar(), Liar("a", length=-1), Liar("a", length=2**45)),
    Liar("a", length=2**70),
]
IDS: list[Any] = [
    *([], [97], (97, 256), {97}, {97: 1}, b"\xff\x00", range(258), [True], [np.uint64(97)], Liar(97, 98)),
    *(np.array([], np.uint16), np.array([97, 98, 97], np.uint16)[::-1], np.arange(256, dtype=np.uint32)[::7]),
    *(np.array([97], ">u2"), np.array([97], np.int8), np.broadcast_to(np.uint16(97), (9,))),
    np.frombuffer(b"\x00" + bytes([97, 0] * 4), np.uint8)[1:].view("<u2"),  # at an odd address
]
NOT_IDS: list[Any] = [
    *(None, 5, -1, 1.5, object(), Odd(), "ab", [None], ["a"], [1.5], [-1], [259], [2**16], [2**32], [2**64]),
    *([10**5000], [[1]], [Odd()], range(2**60), [np.uint64(2**64 - 1)], Liar(97, None), Liar(Odd())),
    *(np.array(5), np.array([[1, 2]], np.uint16), np.array([[1], [2]], np.uint32), np.array([1.5])),
    *(np.array([-1]), np.array(["a"]), np.array([None]), np.array([2**63], np.uint64), np.array([1 + 2j])),
    *(np.array([65535], np.uint16), np.array([97], "M8[s]"), np.array([True]), np.zeros(3, [("a", "u2")])),
]
NUMBERS: list[Any] = [
    *(None, 0, 1, -1, 3, True, 1.5, "2", 2**31, 2**63, 2**64, -(2**63), 10**5000, Odd(), []),
    *(np.int8(-1), np.int8(2), float("nan"), float("inf")),
]
PATTERNS: list[Any] = [
    *("", "(", "[", "\\", "a{1000000}", "(?:a{1000}){1000}", "(" * 10_000, "[a" * 5000, "a|" * 5000),
    *(
        "(?:a|(?=a)a)+b",
        r"(a+)+\1b",
        r"\p{Nonsense}",
        "(?z)",
        r"(?<=a+)b",
        "(?P<n>a)(?P<n>a)",
        "(?i)İ",
        r"\Z",
    ),
    *("\x00", "🙂+", "\ud800", None, 5, b"a", Odd()),
]
SPECIALS: list[Any] = [
    *(None, [], [""], ["\ud800"], ["a"] * 2, ["a" * 100_000], ["\x00"], [b"a"], [5], [None], 5, "ab", b"ab"),
    *(Odd(), [Odd()], {"a": 1}, {"a"}, [str(number) for number in range(3000)]),
]
VOCABULARIES: list[Any] = [
    *(None, 5, {}, [], {Odd: b"x"}, BYTES | {2**32: b"x"}, BYTES | {-1: b"x"}, BYTES | {10**5000: b"x"}),
    *(BYTES | {"a": b"x"}, BYTES | {1.5: b"x"}, BYTES | {True: b"x"}, BYTES | {256: b"x"}),
]
TOKENS: list[Any] = [None, "a", 5, b"", bytearray(b"ab"), Odd(), range(2**60), [97], np.bytes_(b"ab")]
MERGES: list[Any] = [
    *(None, 5, (), (b"a",), (b"a", b"b", b"c"), ("a", "b"), (b"", b""), (b"a", b""), (b"a", None), Odd()),
    *((Odd(), b"a"), "ab", b"ab", [b"a", b"b"], range(2)),
]
PATHS: list[Any] = [None, 5, b"x", [5], [None], Odd(), [Odd()], "\x00", "\ud800", "a" * 5000, [""], ["a\x00"]]

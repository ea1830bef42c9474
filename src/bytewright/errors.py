"""The errors that Bytewright raises on purpose, and the exit code of each.

Invalid input raises a subclass of `BytewrightError`. Its message is one sentence: what is wrong, what was
expected and found, and how to fix it. Its fields hold the same values for programs. The command line prints
the sentence and exits with `exit_code`. Any other exception that reaches the user is a bug.
"""

import reprlib
from collections.abc import Iterable
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any, Self

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 42


class BytewrightError(Exception):
    """Base class of all errors that Bytewright raises on purpose.

    >>> error = UsageError("batch_size must be at least 1, but is 0", key="batch_size", found=0)
    >>> error.key, error.found, str(error)
    ('batch_size', 0, 'batch_size must be at least 1, but is 0')
    """

    exit_code = 1
    """The exit code of a command that ends with this error, unless a subclass states another one."""

    def __init__(
        self,
        *args: object,
        path: str | PathLike[str] | None = None,
        key: str | None = None,
        expected: object = None,
        found: object = None,
    ) -> None:
        super().__init__(*args)
        self.path = None if path is None else Path(path)
        """The file or folder that is wrong."""
        self.key = key
        """The setting, field, option or argument that is wrong."""
        self.expected = expected
        self.found = found

    @classmethod
    def at(cls, path: str | PathLike[str], problem: object, **fields: Any) -> Self:
        """Return the error about the file or folder `path`, which begins the message.

        >>> str(FormatError.at("a.npy", "is truncated"))
        'a.npy: is truncated'
        """
        return cls(f"{path}: {problem}", path=path, **fields)


class UsageError(BytewrightError, ValueError):
    """A command, option or argument is invalid."""

    exit_code = 2


class OutputExistsError(UsageError):
    """The output exists already, and may not be replaced without permission.

    >>> error = OutputExistsError("a.txt exists already", path="a.txt")
    >>> error.describe("add --replace")
    'a.txt exists already; choose another name, or add --replace'
    >>> str(error)
    'a.txt exists already; choose another name, or set replace'
    """

    def __init__(self, problem: str, *, path: str | PathLike[str] | None = None) -> None:
        super().__init__(problem, path=path, key="replace")
        self.problem = problem

    def __str__(self) -> str:
        return self.describe("set replace")

    def describe(self, permission: str | None) -> str:
        """Return the message; `permission` is how the caller allows a replacement, None if it cannot."""
        return f"{self.problem}; choose another name" + (f", or {permission}" if permission else "")


class FormatError(BytewrightError, ValueError):
    """The contents of a file are invalid: truncated, malformed, contradictory or hostile."""

    exit_code = 2


class TokenizerError(BytewrightError, ValueError):
    """A vocabulary contradicts itself, or a text or an id does not fit the vocabulary."""

    exit_code = 2


class ClusterError(BytewrightError, RuntimeError):
    """A cluster cannot be used: no scheduler, no workers, lost workers, or workers of another version."""


class DivergenceError(BytewrightError, ArithmeticError):
    """Values of the model are not finite: in too many successive steps, or while it generates text."""


class StorageError(BytewrightError, OSError):
    """A disk operation failed: a missing or unreadable file, an unwritable target, no space left."""


class LostRankError(BytewrightError, ConnectionError):
    """A process of a training run on several ranks has died; `found` lists the ranks."""


class ReportedError(BytewrightError):
    """Another rank has reported why the run ends: this process ends with the same code and no message."""

    def __init__(self, message: str, *, exit_code: int, found: object = None) -> None:
        super().__init__(message, found=found)
        self.exit_code = exit_code


def wrong_value(
    key: str, expected: str, found: object, *, path: str | PathLike[str] | None = None
) -> UsageError:
    """Return the error about an argument, or a setting of the file `path`, that has an invalid value.

    >>> raise wrong_value("batch_size", "at least 1", 0)
    Traceback (most recent call last):
    bytewright.errors.UsageError: batch_size must be at least 1, but is 0
    """
    source = "" if path is None else f"{path}: "
    message = f"{source}{key} must be {expected}, but is {shorten(found)}"
    return UsageError(message, path=path, key=key, expected=expected, found=found)


def shorten(value: object) -> str:
    """Return a value as it is shown in an error message: on one line and short.

    >>> shorten(b"newest"), shorten("a" * 10_000)
    ("b'newest'", "'aaaaaaaaaaaaaaaaaa...aaaaaaaaaaaaaaaaaaa'")
    """
    try:
        return _SHORT.repr(value)
    except ValueError:  # Python does not write out integers of thousands of digits
        return f"<{type(value).__name__} too long to show>"


def show_key(key: object) -> str:
    """Return a key as it is shown in an error message: quoted and short unless it is a plain name.

    >>> show_key("warmup"), show_key("war mup"), show_key(1)
    ('warmup', "'war mup'", '1')
    """
    is_plain = isinstance(key, str) and key.isidentifier() and len(key) <= _SHORT.maxstring
    return str(key) if is_plain else shorten(key)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out; torch has no class for that on a CPU.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    True
    """
    phrases = ("can't allocate memory", "not enough memory", "out of memory")
    if isinstance(error, RuntimeError):
        return any(phrase in str(error) for phrase in phrases)
    return isinstance(error, MemoryError)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def escape_controls(text: str, keep: str = "") -> str:
    r"""Return `text` with characters that are not printable escaped, except those in `keep`.

    Escape text from a file before it is shown on a terminal. The terminal would execute control characters,
    line breaks and changes of the writing direction. Lone surrogates cannot be encoded.

    >>> print(escape_controls("run\x1b[2J\n\udcff"))
    run\x1b[2J\n\udcff
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def suggest(key: str, known: Iterable[str], path: str = "") -> str:
    """Return the end of a message about an unknown key: the closest known key, or all known keys.

    >>> suggest("warmpu", ["kind", "warmup"], path="schedule."), suggest("x", ["kind", "warmup"])
    ('; did you mean schedule.warmup?', '; known are kind, warmup')
    """
    known = list(known)
    near = find_closest(key, known)
    return f"; did you mean {path}{near}?" if near else f"; known are {', '.join(known)}"


def find_closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that `word` resembles most, or None if it resembles none.

    >>> [find_closest(word, ["kind", "tiny", "warmup"]) for word in ("warmpu", "tyni", "x")]
    ['warmup', 'tiny', None]
    """
    known = list(known)
    # With the default of 0.6, "greedy" would resemble "seed".
    near = get_close_matches(word, known, n=1, cutoff=0.61)
    if not near:  # in a short word, two letters in the wrong order are half of its letters
        near = [other for other in known if sorted(other) == sorted(word)]
    return near[0] if near else None

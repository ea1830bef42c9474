"""The errors a user of Bytewright can meet, and the exit code each one means.

Every mistake in what we were given raises a subclass of `BytewrightError` whose message is one sentence that
names the file, the place, what was expected and what was found. The command line prints that sentence and
leaves with `exit_code`; it never shows a traceback for one of these. Anything else that escapes is our bug.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class BytewrightError(Exception):
    """Base of all errors that Bytewright raises on purpose."""

    exit_code = 1


class UsageError(BytewrightError, ValueError):
    """A command, option or argument asks for something that cannot be done."""

    exit_code = 2


class FormatError(BytewrightError, ValueError):
    """A file is not what it claims to be: truncated, malformed, contradictory or hostile."""

    exit_code = 2


class TokenizerError(BytewrightError, ValueError):
    """A vocabulary contradicts itself, or a text or an id does not fit the vocabulary."""

    exit_code = 2


class DivergenceError(BytewrightError, ArithmeticError):
    """A model's numbers are not finite: those of too many steps in a row, or of the text it is to write."""

    exit_code = 1


class StorageError(BytewrightError, OSError):
    """The disk refused: a missing or unreadable file, an unwritable target, no space left."""

    exit_code = 1


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an error means that there is not enough memory; torch has no class for that on a CPU.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    True
    """
    said = ("can't allocate memory", "not enough memory", "out of memory")
    is_said = isinstance(error, RuntimeError) and any(words in str(error) for words in said)
    return is_said or isinstance(error, MemoryError)


def first_line(error: BaseException) -> str:
    """Give the first line of what an error says, or its kind if it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def escape_controls(text: str, keep: str = "") -> str:
    r"""Write characters that are not printable as escapes, except those in `keep`.

    Text from a file must pass through this before it is shown on a terminal: control characters, line breaks
    and changes of the writing direction would otherwise act there. Lone surrogates could not be encoded.

    >>> print(escape_controls("run\x1b[2J\n\udcff"))
    run\x1b[2J\n\udcff
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def suggest(key: str, known: Iterable[str], path: str = "") -> str:
    """End a sentence about an unknown key: with the one that was probably meant, or with all there are.

    >>> suggest("warmpu", ["kind", "warmup"], path="schedule."), suggest("x", ["kind", "warmup"])
    ('; did you mean schedule.warmup?', '; known are kind, warmup')
    """
    known = list(known)
    near = get_close_matches(key, known, n=1)
    return f"; did you mean {path}{near[0]}?" if near else f"; known are {', '.join(known)}"

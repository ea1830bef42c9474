"""Options that several commands share, and the checks of arguments that run before any work starts.

A file that is missing, empty or not a regular file raises `UsageError`: one sentence and exit code 2.
"""

from __future__ import annotations

import contextlib
import glob
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import tyro

from bytewright.cli import console
from bytewright.errors import FormatError, StorageError, UsageError, wrong_value
from bytewright.storage import atomic

if TYPE_CHECKING:
    from bytewright.tokenizer import Tokenizer, Vocabulary

ANY_FORMAT = "a folder of Bytewright or GPT-2, a tokenizer.json, or a file of tiktoken ranks"

Given = TypeVar("Given", str, Path)

BYTES_SHOWN = 60
"""How many bytes of a token are shown in a list."""


def arg(metavar: str, hint: str = "(optional)", **fields: Any) -> Any:
    """Return the placeholder of an option in the help text, and the remark after its description."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=hint, **fields)


TokenizerPath = Annotated[
    Path, tyro.conf.Positional, tyro.conf.arg(metavar="TOKENIZER", help=f"The tokenizer: {ANY_FORMAT}.")
]

RunPath = Annotated[
    Path,
    tyro.conf.Positional,
    tyro.conf.arg(metavar="RUN", help="The folder of the run, or of one checkpoint."),
]

RunFolder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN", help="The folder of the run.")]

OptionalFile = Annotated[Path | None, tyro.conf.Positional, arg("[FILE]")]

Files = Annotated[tuple[str, ...], tyro.conf.Positional, arg("FILE [FILE ...]", "(required)")]

TextField = Annotated[
    str,
    tyro.conf.arg(help="The field of a JSON line, or the column of a Parquet file, that contains the text."),
]

TextSources = Annotated[tuple[str, ...], tyro.conf.Positional, arg("[FILE …]", "(optional, several)")]
"""Files, folders and patterns; `-` is standard input. `open_texts` finds the files."""

Clean = Annotated[
    bool,
    tyro.conf.arg(
        help="Remove byte-order marks, and convert CRLF line ends to LF.",
        help_behavior_hint="(default: a warning)",
    ),
]

FileOption = Annotated[Path | None, arg("FILE")]

NewFile = Annotated[Path, tyro.conf.arg(metavar="FILE")]

OutputPath = Annotated[Path, tyro.conf.arg(metavar="PATH")]

OutputFolder = Annotated[Path, tyro.conf.arg(metavar="FOLDER")]

Repeated = tyro.conf.UseAppendAction[tuple[str, ...]]

Which = Annotated[Literal["best", "last"], tyro.conf.arg(help="The checkpoint of the run.")]

DeviceName = Annotated[
    Literal["auto", "cpu", "cuda", "mps"],
    tyro.conf.arg(help="The device; auto: CUDA if available, else the CPU."),
]

Overrides = Annotated[
    tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]], arg("KEY=VALUE …", "(optional, repeatable)")
]
"""Groups of values: `--set a=1 b=2 --set c=3` sets three; `list_overrides` flattens them."""

GivenText = Annotated[str | None, arg("TEXT")]


def _how_many(what: str) -> Any:
    text = f"How many {what} to use; the result does not depend on it."
    return arg("INT", "(default: all cores)", help=text)


NumThreads = Annotated[int | None, _how_many("threads")]

NumWorkers = Annotated[int | None, _how_many("processes")]

Cluster = Annotated[
    str | None,
    arg(
        "ADDRESS",
        help="Use the workers of a Dask cluster: tcp://HOST:PORT of its scheduler, or local:N for N processes"
        " here. The result does not depend on it. Its packages: pip install '.[cluster]' in the clone of"
        " Bytewright.",
    ),
]

Plugins = Annotated[
    tyro.conf.UseAppendAction[tuple[Path, ...]],
    arg(
        "FILE",
        "(optional, repeatable)",
        help="A Python file that registers parts (see docs/handbook/plugins.md). The file is executed.",
    ),
]
"""The field `plugin` of commands that read recipes or runs; `main` loads the files first."""

Replace = Annotated[
    bool,
    tyro.conf.arg(
        help="Replace existing output.", help_behavior_hint="(default: existing output is an error)"
    ),
]


@contextlib.contextmanager
def errors_of_overrides(overrides: Sequence[str]) -> Iterator[None]:
    """Change errors about values of --set: they name --set instead of the recipe.

    An error about another value of the same table can have its cause in either, so it names both.
    """
    try:
        yield
    except (UsageError, FormatError) as error:
        from bytewright.train.recipe import parse_override

        start = f"{error.path}: "
        if error.key is None or not str(error).startswith(start):
            raise
        keys = {parse_override(override)[0]: override for override in overrides}
        table = _table_of(error.key)
        of_table = [override for key, override in keys.items() if table and _table_of(key) == table]
        if any(_is_part(error.key, key) or _is_part(key, error.key) for key in keys):
            source = "--set"
        elif of_table:
            source = f"{error.path} with --set {of_table[0]}"
        else:
            raise
        message = f"{source}: {str(error).removeprefix(start)}"
        raise type(error)(
            message, path=error.path, key=error.key, expected=error.expected, found=error.found
        ) from None


def _table_of(key: str) -> str:
    return key.rpartition(".")[0]


def _is_part(key: str, of: str) -> bool:
    """Return whether a key is another one or belongs to its table, as optimizer.lr belongs to optimizer."""
    return f"{key}.".startswith(f"{of}.")


def flag_of(field: str) -> str:
    """Return the option of a field of a command, such as --max-waiting of max_waiting."""
    return "--" + field.replace("_", "-")


def list_overrides(groups: tuple[tuple[str, ...], ...]) -> list[str]:
    """Return all given values in order."""
    return [pair for group in groups for pair in group]


def require_file(path: Path) -> Path:
    """Return `path`; raise if it is missing, a directory, not a regular file, or empty."""
    require_exists(path)
    if path.is_dir():
        raise UsageError(f"{path} is a directory; a file is needed here", path=path)
    if not path.is_file():
        raise UsageError(f"{path} is not a regular file; give the path of a file", path=path)
    if path.stat().st_size == 0:
        raise UsageError(f"{path} is empty; give a file with contents", path=path)
    return path


@contextlib.contextmanager
def open_texts(sources: Sequence[str | Path], *, clean: bool, copy: bool = False) -> Iterator[list[Path]]:
    """Yield the files that `sources` mean; without `clean`, warn of byte-order marks and CRLF line ends.

    With `copy`, texts to clean are replaced by cleaned copies, for readers that cannot clean.
    """
    from bytewright.corpus.file_formats import find_marks_in
    from bytewright.corpus.sources import STDIN, open_sources

    for source in sources:
        if "://" in str(source):
            raise UsageError.at(source, "URLs are read with --cluster only, for example --cluster local:2")
        if str(source) != STDIN and not glob.has_magic(str(source)):
            require_source(Path(source))
    with open_sources(sources, clean=clean and copy) as files:
        for file in files:
            require_file(file)
        marks = {} if clean else {file: found for file in files if (found := find_marks_in(file))}
        if marks:
            first, *others = marks
            more = f" (and {len(others):,} other files)" if others else ""
            sentence = f"{first}{more} has {' and '.join(marks[first])}, which become part of the text"
            console.print_remark(f"warning: {sentence}; --clean removes them")
        yield files


def require_source(path: Path) -> Path:
    """Return `path` if it is a folder or a file that `require_file` accepts."""
    require_exists(path)
    return path if path.is_dir() else require_file(path)


def require_exists(path: Path) -> Path:
    """Return `path`; raise if it does not exist."""
    try:
        exists = path.exists()
    except OSError as error:
        raise UsageError(f"cannot access {path}: {error.strerror}", path=path) from None
    if not exists:
        raise UsageError(f"{path} does not exist", path=path)
    return path


def read_text_bytes(path: Path) -> bytes:
    """Return the bytes of a text file, which need not be valid UTF-8."""
    from bytewright.corpus.file_formats import check_plain_text

    check_plain_text(path)
    try:
        return atomic.read_bytes(require_file(path))
    except StorageError as error:
        raise UsageError(str(error), path=path) from None


def read_either(source: Path | None, text: str | None) -> bytes:
    """Return the bytes of a file or of --text; raise unless exactly one of them is given."""
    if (source is None) == (text is None):
        raise UsageError("give either a file or --text")
    return read_text_bytes(source) if source is not None else encode_text(text or "")


def encode_text(text: str) -> bytes:
    """Return the bytes of a text from the command line, also if it is invalid UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def require_some(paths: tuple[Given, ...], name: str, command: str) -> tuple[Given, ...]:
    """Return `paths`, the argument `name` of a command; raise if there are none."""
    if not paths:
        raise UsageError(f"{name} is missing (see bytewright {command} --help)")
    return paths


def require_at_least(least: int, value: int | None, option: str) -> None:
    """Raise if a number is too small; None is accepted."""
    if value is not None and value < least:
        raise wrong_value(option, f"at least {least}", value)


def load_vocabulary(
    path: Path, special_tokens: tuple[str, ...] = (), pattern: str | None = None
) -> Vocabulary:
    """Return the vocabulary of a tokenizer in any of the supported formats."""
    from bytewright.tokenizer.formats import read_vocabulary

    try:
        return read_vocabulary(require_exists(path), special_tokens, pattern)
    except StorageError as error:
        raise UsageError(str(error), path=path) from None


def load_tokenizer(path: Path) -> Tokenizer:
    """Return a tokenizer in any of the supported formats, ready to encode and decode."""
    from bytewright.tokenizer import Tokenizer

    return Tokenizer.from_vocabulary(load_vocabulary(path))

"""Find the files that a user names as sources of text: files, folders, patterns and standard input.

A folder means all files below it except hidden ones, in the order of their names. A pattern such as
`part-*.txt` means the files that it matches, for shells that do not expand it. `-` means standard input.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from bytewright.corpus.file_formats import BLOCK, check_plain_text, clean_blocks, find_marks_in
from bytewright.errors import UsageError
from bytewright.storage import atomic, filesystem

STDIN = "-"


@contextlib.contextmanager
def open_sources(sources: Sequence[atomic.StrPath], *, clean: bool = False) -> Iterator[list[Path]]:
    """Yield the files that `sources` mean.

    Standard input becomes a temporary file. With `clean`, plain text with a byte-order mark or CRLF is
    replaced by a cleaned temporary copy. Temporary files are removed at the end of the block.
    """
    with contextlib.ExitStack() as stack:
        found: list[Path] = []
        for source in sources:
            if str(source) == STDIN:
                found.append(_copy_stdin(_make_folder(stack)))
            else:
                found += expand_source(source)
        if clean:
            found = [_clean_copy(file, stack) for file in found]
        yield found


def expand_source(source: atomic.StrPath) -> list[Path]:
    """Return the files that a file, folder or pattern means; raise if there are none.

    Empty files of folders and patterns are left out. A path that does not exist is returned unchanged.
    """
    path, paths = Path(source), [Path(source)]
    with filesystem.explain("read", path):
        if not path.exists() and glob.has_magic(str(source)):
            paths = [Path(match) for match in sorted(glob.glob(str(source), recursive=True))]
            if not paths:
                raise UsageError(f"no file matches {source}", path=path)
        elif not path.is_dir():
            return paths
        files = [file for each in paths for file in list_files(each) if file.stat().st_size]
    if not files:
        raise UsageError.at(path, "all files are empty")
    return files


def list_files(folder: Path) -> list[Path]:
    """Return the files below a folder, or the file itself; links are followed, hidden files are left out."""
    if not stat.S_ISDIR(folder.stat().st_mode):
        return [folder]
    below: list[Path] = []
    visited: set[tuple[int, int]] = set()
    for here, subfolders, names in os.walk(folder, onerror=_raise, followlinks=True):
        status = os.stat(here)
        if (status.st_dev, status.st_ino) in visited:
            subfolders.clear()
            continue
        visited.add((status.st_dev, status.st_ino))
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        below += [Path(here, name) for name in names if not name.startswith(".")]
    for file in below:
        with filesystem.explain("read", file):
            if not stat.S_ISREG(file.stat().st_mode):
                raise UsageError.at(file, "expected a regular file in a folder of texts")
    if not below:
        raise UsageError.at(folder, "the folder contains no files")
    return sorted(below)


def _raise(error: OSError) -> NoReturn:
    """Raise the errors that os.walk ignores by default: part of the text would be missing."""
    with filesystem.explain("read", error.filename):
        raise error


def _make_folder(stack: contextlib.ExitStack) -> Path:
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bytewright-")))


def _copy_stdin(folder: Path) -> Path:
    if sys.stdin is None:
        raise UsageError("standard input is closed; pipe a text into the command", path=STDIN)
    path = folder / "stdin"
    with atomic.write_stream(path) as stream:
        shutil.copyfileobj(sys.stdin.buffer, stream, BLOCK)
        if not stream.tell():
            raise UsageError("standard input is empty; pipe a text into the command", path=STDIN)
    return path


def _clean_copy(file: Path, stack: contextlib.ExitStack) -> Path:
    """Return a cleaned copy of a plain text, or the file itself if its start has nothing to clean."""
    check_plain_text(file)
    if not find_marks_in(file):
        return file
    copy = _make_folder(stack) / file.name
    with filesystem.open_to_read(file) as source, atomic.write_stream(copy) as stream:
        for block in clean_blocks(iter(lambda: source.read(BLOCK), b"")):
            stream.write(block)
    return copy

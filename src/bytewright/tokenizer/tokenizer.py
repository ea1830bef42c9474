"""`Tokenizer`: encode text to ids and decode ids to text, with the fused implementation.

The ids are exactly those of `reference.encode_reference`, whether the text is given at once, in pieces or as
a file, for any number of threads. For a user-defined pattern this holds as far as both regular expression
engines agree (see `Vocabulary`). A tokenizer can be used from several threads at the same time.
"""

from __future__ import annotations

import codecs
import operator
import os
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from bytewright import _native
from bytewright.corpus import END_OF_TEXT
from bytewright.corpus.books import read_floor_of_text
from bytewright.corpus.file_formats import check_plain_text
from bytewright.data.tokenfile import Ids, TokenFile, TokenFileWriter
from bytewright.errors import StorageError, TokenizerError, UsageError, shorten
from bytewright.formatting import Progress
from bytewright.storage import atomic
from bytewright.storage.manifest import manifest_path_of
from bytewright.system import Background, usable_cores
from bytewright.tokenizer.formats import read_bytewright, read_gpt2, write_bytewright
from bytewright.tokenizer.vocabulary import (
    PATTERNS,
    Merge,
    Vocabulary,
    list_special_tokens,
    name_of_pattern,
)

PIECE = 8 << 20
"""The size in bytes of the pieces of a file; pieces are smaller with many threads and near the end."""
MAX_PIECES = 128
"""The largest number of pieces that are encoded at the same time, which bounds the memory."""
MAX_THREADS = 2**16
"""The largest number of threads requested; the native code starts fewer."""


def check_num_threads(num_threads: int | None) -> int:
    """Return the number of threads to use: `num_threads`, or the number of usable cores if it is None."""
    if num_threads is None:
        return usable_cores()
    if operator.index(num_threads) < 1:
        message = f"num_threads must be at least 1, but is {shorten(num_threads)}"
        raise UsageError(message, key="num_threads", found=num_threads)
    return min(operator.index(num_threads), MAX_THREADS)


class Tokenizer:
    """A byte-level BPE tokenizer.

    >>> vocab = {id: bytes([id]) for id in range(256)} | {256: b"lo", 257: b"low"}
    >>> tokenizer = Tokenizer(vocab, [(b"l", b"o"), (b"lo", b"w")], ["<|endoftext|>"])
    >>> tokenizer.encode("low<|endoftext|>")
    [257, 258]
    >>> tokenizer.decode([257, 258])
    'low<|endoftext|>'
    """

    def __init__(
        self,
        vocab: Mapping[int, bytes],
        merges: Iterable[Merge],
        special_tokens: Iterable[str] | None = None,
        *,
        pattern: str = "gpt2",
    ) -> None:
        self._prepare(Vocabulary.from_parts(vocab, merges, special_tokens, pattern))

    @classmethod
    def from_vocabulary(cls, vocabulary: Vocabulary) -> Tokenizer:
        """Return a tokenizer for a vocabulary."""
        tokenizer = cls.__new__(cls)
        tokenizer._prepare(vocabulary)
        return tokenizer

    @classmethod
    def from_files(
        cls, vocab_path: str | Path, merges_path: str | Path, special_tokens: Sequence[str] | None = None
    ) -> Tokenizer:
        """Return the tokenizer in GPT-2 style files `vocab.json` and `merges.txt`."""
        return cls.from_vocabulary(read_gpt2(vocab_path, merges_path, special_tokens))

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """Return the tokenizer in a folder written by `save`."""
        return cls.from_vocabulary(read_bytewright(folder))

    def save(self, folder: str | Path, *, replace: bool = False) -> None:
        """Write a folder for `load`, atomically."""
        write_bytewright(self.vocabulary, folder, replace=replace)

    def _prepare(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._native = _native.Encoder(
            list(vocabulary.tokens.items()),
            vocabulary.merges,
            list(vocabulary.special_tokens.items()),
            name_of_pattern(vocabulary.pattern),
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Copy and pickle only the vocabulary; the native tables are built again."""
        return type(self).from_vocabulary, (self.vocabulary,)

    @property
    def vocab(self) -> Mapping[int, bytes]:
        """All tokens by id, including the special tokens."""
        return self.vocabulary.tokens

    @property
    def merges(self) -> tuple[Merge, ...]:
        """The merges in order of creation."""
        return self.vocabulary.merges

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """The special tokens and their ids."""
        return self.vocabulary.special_tokens

    @property
    def pattern(self) -> str:
        """The pre-tokenisation pattern: a name in `PATTERNS` or a regular expression (see `Vocabulary`)."""
        return self.vocabulary.pattern

    @property
    def vocab_size(self) -> int:
        """The largest id plus one."""
        return self.vocabulary.size

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of everything that affects ids."""
        return self.vocabulary.fingerprint

    def __repr__(self) -> str:
        pattern = self.pattern if self.pattern in PATTERNS else "user-defined"
        return f"<Tokenizer: {self.vocab_size:,} ids, pattern {pattern}, fingerprint {self.fingerprint[:12]}>"

    def encode(
        self,
        text: str | bytes,
        *,
        allowed_special: Literal["all"] | Collection[str] = "all",
        disallowed_special: Literal["all"] | Collection[str] = (),
    ) -> list[int]:
        """Return the ids of a text.

        Special tokens in the text become their ids. With `allowed_special`, only the named ones do, and
        others are ordinary text. A special token in `disallowed_special` ("all": all that are not allowed)
        raises `TokenizerError`; use this for untrusted text.
        """
        if allowed_special == "all" and not disallowed_special:
            return self._native.encode(text)
        allowed = self.special_tokens if allowed_special == "all" else allowed_special
        allowed = list_special_tokens(allowed, "allowed_special")
        if disallowed_special == "all":
            disallowed_special = self.special_tokens.keys() - set(allowed)
        disallowed = list_special_tokens(disallowed_special, "disallowed_special")
        return self._native.encode_selected(text, allowed, disallowed)

    def encode_array(self, text: str | bytes, *, num_threads: int | None = None) -> Ids:
        """Return the ids of a text as an array of the smallest sufficient type; long texts use threads."""
        return self._native.encode_array(text, check_num_threads(num_threads))

    def encode_batch(self, texts: Sequence[str | bytes], *, num_threads: int | None = None) -> list[Ids]:
        """Return the ids of many texts, computed on several threads.

        Adjacent arrays share memory blocks of a few megabytes. Copy an array that is kept longer than others.
        """
        return self._native.encode_batch(texts, check_num_threads(num_threads))

    def encode_iterable(self, strings: Iterable[str | bytes]) -> Iterator[int]:
        """Yield the ids of a text that is given in pieces, such as the lines of a file.

        The ids are those of the concatenated text, independent of the pieces. No threads are started, and
        only the text after the last safe cut, about a word, is kept in memory.
        """
        stream = _native.StreamEncoder(self._native)
        for piece in strings:
            yield from stream.feed(piece)
        yield from stream.finish()

    def encode_pieces(self, source: str | Path, *, num_threads: int | None = None) -> Iterator[Ids]:
        """Yield the ids of a file in several arrays, in bounded memory."""
        check_plain_text(source)
        file = _native.FileEncoder(self._native, os.fspath(source))
        for ids, _ in _encode_ahead(file, check_num_threads(num_threads)):
            yield ids

    def encode_file_part(self, source: str | Path, start: int, end: int) -> Iterator[Ids]:
        """Yield the ids of the bytes from `start` to `end`, which must be safe cuts, in several arrays."""
        file = _native.FileEncoder(self._native, os.fspath(source))
        if file.num_bytes < end:
            found = file.num_bytes
            message = f"{source}: was changed while it was read: expected {end} bytes or more, found {found}"
            raise StorageError(message, path=source, expected=end, found=found)
        while start < end:
            cut = min(file.next_cut(start, PIECE), end)
            yield file.encode(start, cut)
            start = cut

    def encode_file(
        self,
        source: str | Path | Sequence[str | Path],
        target: str | Path,
        *,
        num_threads: int | None = None,
        progress: Progress | None = None,
    ) -> TokenFile:
        """Encode one or more files to a token file in bounded memory; `progress` gets the bytes done and all.

        `<|endoftext|>` ends a document. Text after the last one is a document unless it is white space;
        without that special token, the file is one document. With a user-defined pattern only special tokens
        are safe cuts, so memory depends on the longest document. An existing token file is replaced. The
        target must not be a source. If a file does not end with `<|endoftext|>`, it is added before the next.
        The manifest records the information content of a generated text, if it is the only source and the
        tokenizer has `<|endoftext|>`.

        The threads encode; the calling thread finds the ends of documents and writes, which bounds the speed.
        On a machine with 16 cores, it grows up to 4 threads, to 1.8 GB of text per second.
        """
        sources = [source] if isinstance(source, (str, os.PathLike)) else list(source)
        for path in sources:
            atomic.check_not_input(path, target, manifest_path_of(target))
            check_plain_text(path)
        opened = [_native.FileEncoder(self._native, os.fspath(path)) for path in sources]
        files = [file for file in opened if file.num_bytes]  # before an empty one, no end token is added
        documents = DocumentCounter(self)
        # The floor counts no bytes of end tokens; without that special token, evaluations count them.
        has_floor = len(sources) == 1 and END_OF_TEXT in self.special_tokens
        total, before = sum(file.num_bytes for file in files), 0
        with TokenFileWriter(
            target,
            tokenizer_fingerprint=self.fingerprint,
            vocabulary_size=self.vocab_size,
            floor_bits_per_byte=read_floor_of_text(sources[0]) if has_floor else None,
        ) as writer:
            for file in files:
                if documents.is_open and END_OF_TEXT in self.special_tokens:
                    end = np.array([self.special_tokens[END_OF_TEXT]])
                    writer.append(end, num_documents=documents.count_ends(end))
                for ids, position in _encode_ahead(file, check_num_threads(num_threads)):
                    writer.append(ids, num_documents=documents.count_ends(ids))
                    if progress is not None:
                        progress(before + position, total)
                before += file.num_bytes
            writer.append(np.empty(0, dtype=np.uint16), num_documents=int(documents.is_open))
        return TokenFile.open(target)

    def decode_bytes(self, ids: Iterable[int] | npt.NDArray[np.integer]) -> bytes:
        """Return the bytes of ids."""
        return self._native.decode(ids)

    def decode(self, ids: Iterable[int] | npt.NDArray[np.integer]) -> str:
        """Return the text of ids; invalid UTF-8 becomes U+FFFD."""
        return self._native.decode(ids).decode("utf-8", "replace")

    def stream_decoder(self) -> StreamDecoder:
        """Return a decoder for ids that are generated one by one."""
        return StreamDecoder(self)


def _encode_ahead(file: _native.FileEncoder, num_threads: int) -> Iterator[tuple[Ids, int]]:
    """Encode the pieces of a file on several threads; yield the ids of each with its end in the file.

    The threads encode the next pieces while the caller uses the ids. Towards the end of the file pieces
    become shorter, so that all threads have work until the end.
    """
    num_threads = min(num_threads, MAX_PIECES)
    longest = PIECE // (1 + num_threads // 8)
    start = 0
    coming: deque[tuple[Future[Ids], int]] = deque()
    with Background(num_threads) as background:
        while coming or start < file.num_bytes:
            while start < file.num_bytes and len(coming) <= num_threads:
                share = (file.num_bytes - start) // (2 * num_threads)
                end = file.next_cut(start, min(longest, max(share, longest // 8)))
                coming.append((background.submit(file.encode, start, end), end))
                start = end
            future, end = coming.popleft()
            yield future.result(), end


class DocumentCounter:
    """Counts the documents of a file whose ids arrive in pieces, in order."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._end = tokenizer.special_tokens.get(END_OF_TEXT)
        self._blank = {id for id, token in tokenizer.vocab.items() if not token.strip()}
        self.is_open = False
        """Whether more than white space follows the last end of a document."""

    def count_ends(self, ids: Ids) -> int:
        """Return the number of documents that end in the next piece."""
        num_ends, behind = 0, ids
        if self._end is not None:
            is_end = ids == self._end
            num_ends = int(np.count_nonzero(is_end))
            if num_ends:
                behind = ids[_last_true(is_end) + 1 :]
                self.is_open = False
        self.is_open = self.is_open or any(id not in self._blank for id in behind)
        return num_ends


def _last_true(flags: npt.NDArray[np.bool_]) -> int:
    """Return the last index with a true value; it is searched from the end, where it usually is.

    >>> _last_true(np.arange(10_000) == 7)
    7
    """
    end = len(flags)
    while not (found := np.flatnonzero(flags[max(0, end - 4096) : end])).size:
        end -= 4096
    return max(0, end - 4096) + int(found[-1])


class StreamDecoder:
    r"""Decodes ids one by one and returns only complete characters.

    >>> decoder = Tokenizer({id: bytes([id]) for id in range(256)}, []).stream_decoder()
    >>> [decoder.feed(id) for id in "é!".encode()]
    ['', 'é', '!']
    >>> decoder.feed(0xC3), decoder.finish()
    ('', '\ufffd')
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokens = tokenizer.vocab
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, id: int) -> str:
        """Return the characters that this id completes."""
        if id not in self._tokens:
            raise TokenizerError(f"token id {shorten(id)} is outside the vocabulary", found=id)
        return self._decoder.decode(self._tokens[id])

    def breaks_character(self, id: int) -> bool:
        """Return whether a character is incomplete, and this id does not continue it: U+FFFD replaces it."""
        has_incomplete = bool(self._decoder.getstate()[0])
        return has_incomplete and not 0x80 <= self._tokens[id][0] < 0xC0

    def finish(self) -> str:
        """Return U+FFFD if the ids ended inside a character, else an empty text."""
        return self._decoder.decode(b"", final=True)

"""`bytewright tokenizer decode`: a token file, or ids on the command line, back to text."""

from __future__ import annotations

import codecs
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, BinaryIO

import tyro

from bytewright.cli import inputs, options
from bytewright.errors import UsageError
from bytewright.storage import atomic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bytewright.tokenizer import Tokenizer
    from bytewright.tokenizer.tokenizer import Ids

IDS_AT_A_TIME = 2**20


@dataclass(frozen=True, kw_only=True)
class DecodeIds:
    """Turn token ids back into the exact bytes they stand for.

    Refuses a token file that was encoded with another tokenizer.

    For example:
      bytewright tokenizer decode stories-10k stories.npy --out again.txt
      bytewright tokenizer decode stories-10k stories.npy | head
      bytewright tokenizer decode stories-10k --ids 430 511 32
    """

    tokenizer: options.TokenizerPath

    source: options.OptionalFile = None
    """The token file to decode."""

    out: options.OutputFile = None
    """The text file to write; standard output by default."""

    ids: Annotated[
        tuple[int, ...], tyro.conf.arg(metavar="ID [ID ...]", help_behavior_hint="(optional)")
    ] = ()
    """Decode these ids instead."""

    replace: options.Replace = False

    def run(self) -> None:
        """Decode ids or a file, to stdout or a file."""
        from bytewright.cli import console

        if (self.source is None) == (not self.ids):
            raise UsageError("give either a token file or --ids")
        if self.source is not None:
            inputs.require_file(self.source)
        if self.out is not None:
            if self.source is not None:
                from bytewright.data.tokenfile import manifest_path_of

                for path in (self.source, manifest_path_of(self.source)):
                    atomic.refuse_own_input(path, self.out)
            atomic.check_target(self.out, replace=self.replace)
        tokenizer = inputs.load_tokenizer(self.tokenizer)
        ids = self._read_ids(tokenizer)
        if self.out is None:
            if sys.stdout.isatty():
                decoder = codecs.getincrementaldecoder("utf-8")(errors="backslashreplace")
                for chunk in _decode(tokenizer, ids):
                    console.write_text(decoder.decode(chunk))
                console.write_text(decoder.decode(b"", final=True) + "\n")
            else:
                for chunk in _decode(tokenizer, ids):
                    _write_all(sys.stdout.buffer, chunk)
            return
        with atomic.write_stream(self.out) as stream:
            for chunk in _decode(tokenizer, ids):
                stream.write(chunk)
        sentence = f"Wrote {self.out}: {self.out.stat().st_size:,} bytes from {len(ids):,} tokens."
        console.stdout().print(sentence, soft_wrap=True)

    def _read_ids(self, tokenizer: Tokenizer) -> Sequence[int] | Ids:
        if self.source is None:
            return self.ids
        from bytewright.data import TokenFile

        tokens = TokenFile.open(self.source, verify=True)
        tokens.require_tokenizer(tokenizer.fingerprint)
        return tokens.tokens


def _write_all(stream: BinaryIO, data: bytes) -> None:
    """Write all of it: an unbuffered stdout (python -u) takes as much at a time as the pipe has room for."""
    rest = memoryview(data)
    while rest:
        rest = rest[stream.write(rest) :]


def _decode(tokenizer: Tokenizer, ids: Sequence[int] | Ids) -> Iterator[bytes]:
    """Decode a stretch at a time, so that a long file does not have to fit in memory."""
    from bytewright.cli import console

    with console.progress() as report:
        for start in range(0, len(ids), IDS_AT_A_TIME):
            yield tokenizer.decode_bytes(ids[start : start + IDS_AT_A_TIME])
            report("decode", min(start + IDS_AT_A_TIME, len(ids)), len(ids), "tokens")

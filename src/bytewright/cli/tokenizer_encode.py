"""`bytewright tokenizer encode`: a file to a token file, or a text on the command line to ids on stdout."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from bytewright.cli import inputs, options
from bytewright.errors import UsageError
from bytewright.formatting import format_seconds
from bytewright.storage import atomic


@dataclass(frozen=True, kw_only=True)
class EncodeText:
    """Turn text into token ids: a file into a token file, or a short text into numbers on the terminal.

    A token file is a .npy array, uint16 if the vocabulary allows, with a manifest beside it.

    For example:
      bytewright tokenizer encode stories-10k stories.txt --out stories.npy
      bytewright tokenizer encode stories-10k --text 'Once upon a time'
    """

    tokenizer: options.TokenizerPath

    source: options.OptionalFile = None
    """The text file to encode; needs --out."""

    out: options.OutputFile = None
    """The token file to write."""

    text: options.GivenText = None
    """Encode this text instead, and print its ids."""

    num_threads: options.NumThreads = None

    replace: options.Replace = False

    def run(self) -> None:
        """Encode a text or a file."""
        inputs.require_at_least(1, self.num_threads, "--num-threads")
        if self.text is not None:
            if self.source is not None or self.out is not None:
                raise UsageError("give either --text or a file with --out, not both")
            text = self.text.encode("utf-8", "surrogateescape")  # its bytes, valid or not
            print(*inputs.load_tokenizer(self.tokenizer).encode(text))
            return
        if self.source is None or self.out is None:
            raise UsageError("give a file and --out, or --text")
        self._encode_file(inputs.require_file(self.source), self.out)

    def _encode_file(self, source: Path, out: Path) -> None:
        from bytewright.data.tokenfile import manifest_path_of

        written = (out, manifest_path_of(out))
        atomic.refuse_own_input(source, *written)
        for path in written:
            atomic.check_target(path, replace=self.replace)
        tokenizer = inputs.load_tokenizer(self.tokenizer)

        from bytewright.cli import console

        num_bytes = source.stat().st_size
        started = time.perf_counter()
        with console.progress() as report:
            tokens = tokenizer.encode_file(
                source,
                out,
                num_threads=self.num_threads,
                progress=lambda done, total: report("encode", done, total, "bytes"),
            )
        seconds = time.perf_counter() - started
        console.stdout().print(
            f"Wrote {out}: {len(tokens):,} tokens ({tokens.manifest.dtype}),"
            f" {num_bytes / len(tokens):.2f} bytes per token; {console.format_bytes(num_bytes)}"
            f" in {format_seconds(seconds)}, {console.format_bytes(num_bytes / seconds)}/s.",
            soft_wrap=True,
        )

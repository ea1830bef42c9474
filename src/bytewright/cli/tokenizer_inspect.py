"""`bytewright tokenizer inspect`: what is in a vocabulary, and what it makes of a text."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING

from bytewright.cli import inputs, options
from bytewright.errors import UsageError
from bytewright.tokenizer.plain_text import require_plain_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.text import Text

    from bytewright.tokenizer import Tokenizer
    from bytewright.tokenizer.inspect import Piece

BAR_WIDTH = 40
STRIPES = (
    "black on bright_cyan",
    "black on bright_yellow",
    "black on bright_green",
    "black on bright_magenta",
)
SPECIAL_STYLE = "bold white on red"
TEXT_BYTES_SHOWN = 600


@dataclass(frozen=True, kw_only=True)
class InspectTokenizer:
    """Look at a tokenizer: its longest tokens, how long they are, how well it compresses, how it splits.

    Bytes per token, splits and throughput need a text: a file, or --text.

    For example:
      bytewright tokenizer inspect stories-10k
      bytewright tokenizer inspect stories-10k stories.txt --throughput
      bytewright tokenizer inspect stories-10k --text "The owl couldn't sleep."
    """

    tokenizer: options.TokenizerPath

    source: options.OptionalFile = None
    """A text file to look at it with."""

    text: options.GivenText = None
    """A text to look at it with."""

    num_longest: int = 10
    """How many of the longest tokens to list."""

    throughput: bool = False
    """Measure the encoding speed here, and say how many hours the Pile (825 GB) would take."""

    num_threads: options.NumThreads = None

    def run(self) -> None:
        """Print the vocabulary, then what it does to the text."""
        inputs.require_at_least(0, self.num_longest, "--num-longest")
        inputs.require_at_least(1, self.num_threads, "--num-threads")
        if self.source is not None and self.text is not None:
            raise UsageError("give either a file or --text, not both")
        if self.text == "":
            raise UsageError("--text is empty")
        data = None if self.text is None else self.text.encode("utf-8", "surrogateescape")
        if self.source is not None:
            require_plain_text(self.source)
            data = inputs.read_text_bytes(self.source)
        if self.throughput and data is None:
            raise UsageError("--throughput needs a text to encode: a file, or --text")
        tokenizer = inputs.load_tokenizer(self.tokenizer)

        from bytewright.cli import console

        out = console.stdout()
        print_vocabulary(out, tokenizer, self.num_longest)
        if data is not None:
            print_text(out, tokenizer, data)
        if self.throughput and data is not None:
            print_throughput(out, tokenizer, data, self.num_threads)


def print_vocabulary(out: Console, tokenizer: Tokenizer, num_longest: int) -> None:
    """Print the sizes, the special tokens, the longest tokens and the histogram of lengths."""
    from bytewright.cli import console
    from bytewright.tokenizer.inspect import length_histogram, longest_tokens, show_token

    vocabulary = tokenizer.vocabulary
    specials = ", ".join(vocabulary.special_tokens) or "none"
    num_bytes = 256 - len(vocabulary.bytes_without_token)
    out.print(
        f"{len(vocabulary.tokens):,} tokens: {num_bytes} bytes, {len(vocabulary.merges):,} merges,"
        f" {len(vocabulary.special_tokens)} special ({specials});"
        f" pattern {vocabulary.pattern}; fingerprint {vocabulary.fingerprint[:12]}",
    )
    longest = console.table("longest tokens", "bytes", "id")
    for id, token in longest_tokens(vocabulary, num_longest):
        longest.add_row(show_token(token, options.BYTES_SHOWN), str(len(token)), str(id))
    out.print()
    out.print(longest)

    histogram = length_histogram(vocabulary)
    most = max(histogram.values())
    lengths = console.table("bytes in a token", "tokens", "")
    lengths.columns[2].justify = "left"
    for length, count in histogram.items():
        lengths.add_row(str(length), f"{count:,}", "█" * max(1, round(BAR_WIDTH * count / most)))
    out.print()
    out.print(lengths)


def print_text(out: Console, tokenizer: Tokenizer, data: bytes) -> None:
    """Print the compression of a text, and its beginning as it is split."""
    from bytewright.tokenizer.inspect import bytes_per_token, split_text

    out.print()
    out.print(f"{bytes_per_token(tokenizer, data):.3f} bytes per token on {len(data):,} bytes.")
    pieces = split_text(tokenizer, data, max_bytes=TEXT_BYTES_SHOWN)
    num_shown = sum(len(piece.token) for piece in pieces)
    out.print()
    out.print(colour_pieces(pieces, coloured=out.is_terminal), soft_wrap=True)
    if num_shown < len(data):
        out.print(f"(the first {num_shown} of {len(data):,} bytes)")


def print_throughput(out: Console, tokenizer: Tokenizer, data: bytes, num_threads: int | None) -> None:
    """Print the encoding speed on a text, and the hours it means for the Pile."""
    from bytewright.cli import console
    from bytewright.tokenizer.inspect import PILE_BYTES, measure_throughput

    speed = measure_throughput(tokenizer, data, num_threads=num_threads)
    out.print()
    out.print(
        f"{console.format_bytes(speed.bytes_per_second)}/s here (median of {speed.num_runs} runs over"
        f" {console.format_bytes(len(data))}): {speed.hours_for(PILE_BYTES):.1f} hours for the Pile (825 GB)."
    )


def colour_pieces(pieces: Sequence[Piece], *, coloured: bool) -> Text:
    """Set each token apart from its neighbours: by colour on a terminal, by a bar in plain text."""
    from rich.text import Text

    from bytewright.tokenizer.inspect import show_token

    made = Text()
    for number, (piece, stripe) in enumerate(zip(pieces, cycle(STRIPES), strict=False)):
        if number and not coloured:
            made.append("|")
        made.append(show_token(piece.token, TEXT_BYTES_SHOWN), SPECIAL_STYLE if piece.is_special else stripe)
        if piece.token.endswith(b"\n"):
            made.append("\n")
    return made

"""`bytewright tokenizer tokens`, `inspect` and `compare`: print how tokenizers split text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import accumulate, cycle
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from bytewright.cli import console, options
from bytewright.errors import UsageError
from bytewright.formatting import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console
    from rich.text import Text

    from bytewright.tokenizer import Tokenizer
    from bytewright.tokenizer.inspect import Piece
    from bytewright.tokenizer.vocabulary import Merge

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
    """Print the longest tokens, the lengths and the compression of a tokenizer, and how it splits a text.

    Bytes per token, splits and throughput need a text: a file, or --text.

    For example:
      bytewright tokenizer inspect stories-10k
      bytewright tokenizer inspect stories-10k stories.txt --throughput
      bytewright tokenizer inspect stories-10k --text "The owl couldn't sleep."
    """

    tokenizer: options.TokenizerPath
    source: options.OptionalFile = None
    """A text file to encode."""
    text: options.GivenText = None
    """A text to encode."""
    num_longest: int = 10
    """How many of the longest tokens to list."""
    throughput: bool = False
    """Measure the encoding speed, and print how many hours the Pile (825 GB) would take."""
    num_threads: options.NumThreads = None

    def run(self) -> None:
        """Print the vocabulary, then the text as it is split."""
        options.require_at_least(0, self.num_longest, "--num-longest")
        options.require_at_least(1, self.num_threads, "--num-threads")
        if self.source is not None and self.text is not None:
            raise UsageError("give either a file or --text, not both")
        if self.text == "":
            raise UsageError("--text is empty")
        has_text = self.source is not None or self.text is not None
        data = options.read_either(self.source, self.text) if has_text else None
        if self.throughput and data is None:
            raise UsageError("--throughput needs a text to encode: a file, or --text")
        tokenizer = options.load_tokenizer(self.tokenizer)

        out = console.stdout()
        print_vocabulary(out, tokenizer, self.num_longest)
        if data is not None:
            print_split(out, tokenizer, data)
        if self.throughput and data is not None:
            print_throughput(out, tokenizer, data, self.num_threads)


def print_vocabulary(out: Console, tokenizer: Tokenizer, num_longest: int) -> None:
    """Print the sizes, the special tokens, the longest tokens and the histogram of lengths."""
    from bytewright.tokenizer.inspect import length_histogram, longest_tokens, show_token

    vocabulary = tokenizer.vocabulary
    specials = ", ".join(vocabulary.special_tokens) or "none"
    num_bytes = 256 - len(vocabulary.bytes_without_token)
    out.print(
        f"{len(vocabulary.tokens):,} tokens: {num_bytes} bytes, {len(vocabulary.merges):,} merges,"
        f" {len(vocabulary.special_tokens)} special ({specials});"
        f" pattern {vocabulary.pattern}; fingerprint {vocabulary.fingerprint[:12]}"
    )
    longest = [
        (show_token(token, options.BYTES_SHOWN), str(len(token)), str(id))
        for id, token in longest_tokens(vocabulary, num_longest)
    ]
    out.print()
    console.print_table(("longest tokens", "bytes", "id"), longest)

    histogram = length_histogram(vocabulary)
    most = max(histogram.values())
    lengths = [
        (str(length), f"{count:,}", "█" * max(1, round(BAR_WIDTH * count / most)))
        for length, count in histogram.items()
    ]
    out.print()
    console.print_table(("bytes in a token", "tokens", ""), lengths, left=(0, 2))


def print_split(out: Console, tokenizer: Tokenizer, data: bytes) -> None:
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
    from bytewright.tokenizer.inspect import PILE_BYTES, measure_throughput

    speed = measure_throughput(tokenizer, data, num_threads=num_threads)
    out.print()
    out.print(
        f"{format_bytes(speed.bytes_per_second)}/s here (median of {speed.num_runs} runs over"
        f" {format_bytes(len(data))}): {speed.hours_for(PILE_BYTES):.1f} hours for the Pile (825 GB)."
    )


def colour_pieces(pieces: Sequence[Piece], *, coloured: bool) -> Text:
    """Return text in which tokens are separated by colour on a terminal, or by bars in plain text."""
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


EXAMPLES_SHOWN = 8
FIRST_HELP = f"The first tokenizer: {options.ANY_FORMAT}."
TEXTS = options.arg("[TEXT ...]")


@dataclass(frozen=True, kw_only=True)
class ListTokens:
    """List the tokens of a text: position in bytes, id, bytes and text.

    For example:
      bytewright tokenizer tokens stories-10k --text "The owl couldn't sleep."
      bytewright tokenizer tokens runs/tiny/tokenizer story.txt --json > tokens.json
    """

    tokenizer: options.TokenizerPath
    source: options.OptionalFile = None
    """A text file."""
    text: options.GivenText = None
    """A text."""
    json: bool = False
    """Print a JSON list of objects."""

    def run(self) -> None:
        """Print one line per token."""
        from bytewright.tokenizer.inspect import show_token, split_text

        data = options.read_either(self.source, self.text)
        pieces = split_text(options.load_tokenizer(self.tokenizer), data)
        starts = accumulate((len(piece.token) for piece in pieces), initial=0)
        rows = [
            {"start": start, "id": piece.id, "bytes": piece.token.hex(), "special": piece.is_special}
            for start, piece in zip(starts, pieces, strict=False)
        ]
        if self.json:
            print(json.dumps(rows))
            return
        shown = [
            (
                show_token(piece.token, options.BYTES_SHOWN),
                str(row["start"]),
                str(piece.id),
                piece.token.hex(" "),
            )
            for row, piece in zip(rows, pieces, strict=True)
        ]
        console.print_table(("token", "start", "id", "bytes"), shown)


@dataclass(frozen=True, kw_only=True)
class CompareTokenizers:
    """Show what two tokenizers share, the first merge at which they differ, and how well they compress texts.

    The first different merge is shown with the counts of both choices in each text at that point. Give the
    texts that the tokenizers were trained on.

    For example:
      bytewright tokenizer compare stories-10k news-32k
      bytewright tokenizer compare stories-10k news-32k stories.txt news.txt
    """

    first: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FIRST", help=FIRST_HELP)]
    second: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SECOND")]
    """The second tokenizer."""
    texts: Annotated[tuple[Path, ...], tyro.conf.Positional, TEXTS] = ()
    """Text files to encode with both."""

    def run(self) -> None:
        """Print the overlap, the first difference and the compression."""
        texts = {path: options.read_text_bytes(path) for path in self.texts}
        tokenizers = [options.load_tokenizer(path) for path in (self.first, self.second)]
        names = [str(path) for path in (self.first, self.second)]
        print_overlap(names, tokenizers)
        print_first_difference(names, tokenizers, texts)
        if texts:
            print_cross_table(names, tokenizers, texts)


def print_overlap(names: list[str], tokenizers: list[Tokenizer]) -> None:
    """Print the numbers of shared tokens and merges, and examples of tokens in only one vocabulary."""
    from bytewright.tokenizer.inspect import overlap, show_token

    first, second = (tokenizer.vocabulary for tokenizer in tokenizers)
    shared = overlap(first, second)
    num_tokens = [len(vocabulary.ids_of_ordinary_tokens) for vocabulary in (first, second)] + [
        shared.num_shared_tokens
    ]
    num_merges = len(first.merges), len(second.merges), shared.num_shared_merges
    specials = [" ".join(vocabulary.special_tokens) or "none" for vocabulary in (first, second)]
    rows = (
        ("tokens, without special ones", *(f"{number:,}" for number in num_tokens)),
        ("merges", *(f"{number:,}" for number in num_merges)),
        ("special tokens", *specials, ""),
        ("pattern", first.pattern, second.pattern, ""),
    )
    console.print_table(("", *names, "shared"), rows)
    for name, alone in zip(names, (shared.only_in_first, shared.only_in_second), strict=True):
        if alone:
            longest = sorted(alone, key=len, reverse=True)[:EXAMPLES_SHOWN]
            shown = "  ".join(show_token(token, options.BYTES_SHOWN) for token in longest)
            console.stdout().print(f"Only in {name}: {len(alone):,} tokens; the longest: {shown}")


def print_first_difference(
    names: list[str], tokenizers: list[Tokenizer], texts: Mapping[Path, bytes]
) -> None:
    """Print the first merge that differs, and the counts of both choices in each text at that point."""
    from bytewright.tokenizer.inspect import first_difference

    out = console.stdout()
    out.print()
    difference = first_difference(tokenizers[0].merges, tokenizers[1].merges)
    if difference is None:
        out.print(f"All {len(tokenizers[0].merges):,} merges are the same, in the same order.")
        return
    choices = (difference.first, difference.second)
    same = "merge is" if difference.index == 1 else f"{difference.index:,} merges are"
    shared = f"the first {same} the same; then they differ"
    out.print(f"In order of learning, {shared if difference.index else 'the first merge differs already'}:")
    rows = [("merges", *(_show_merge(choice) for choice in choices))]
    for path, data in texts.items():
        counts = [
            _count_choice(tokenizer, difference.index, choice, data)
            for tokenizer, choice in zip(tokenizers, choices, strict=True)
        ]
        rows.append((f"count in {path}", *counts))
    console.print_table((f"merge number {difference.index + 1:,}", *names), rows)
    if not texts:
        out.print("Give the training texts to see how often each choice occurs in them.")


def print_cross_table(names: list[str], tokenizers: list[Tokenizer], texts: Mapping[Path, bytes]) -> None:
    """Print bytes per token of each text under each tokenizer."""
    from bytewright.tokenizer.inspect import cross_table

    values = zip(texts, cross_table(tokenizers, list(texts.values())), strict=True)
    rows = [(str(path), *(f"{value:.3f}" for value in row)) for path, row in values]
    console.stdout().print()
    console.print_table(("bytes per token", *names), rows)


def _show_merge(merge: Merge | None) -> str:
    from bytewright.tokenizer.inspect import show_token

    if merge is None:
        return "none (the list ends)"
    return " + ".join(show_token(half, options.BYTES_SHOWN) for half in merge)


def _count_choice(tokenizer: Tokenizer, num_merges: int, choice: Merge | None, data: bytes) -> str:
    from bytewright.tokenizer.inspect import count_pairs_after
    from bytewright.tokenizer.train import count_texts

    if choice is None:
        return ""
    words = count_texts([data], tokenizer.special_tokens, pattern=tokenizer.pattern).counts()
    return f"{count_pairs_after(words, tokenizer.merges[:num_merges], [choice])[choice]:,}"

"""`bytewright demo`: the tokenizer from end to end, on text made on the spot.

For now that is the tokenizer: train, look, encode, decode. Every stage says what it is about to do. Nothing
is downloaded, and what is written goes into one folder that is removed at the end unless it is asked for.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from bytewright import durable
from bytewright.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from bytewright.tokenizer import Tokenizer

NUM_STORIES = 4000
VOCAB_SIZE = 600
SENTENCE = "One morning Mila and the hedgehog couldn't find a silver key."
UNSEEN = "Сова спит: naïve 🦉, \t2026!"


@dataclass(frozen=True, kw_only=True)
class Demo:
    """Train a tokenizer on text made on the spot, look at it, encode and decode.

    For example:
      bytewright demo
      bytewright demo --keep demo
    """

    keep: Annotated[
        Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="(default: remove it)")
    ] = None
    """Keep what is made in this folder; it must be new or empty."""

    def run(self) -> None:
        """Walk through the stages."""
        from bytewright.cli import console

        with _workplace(self.keep) as folder:
            out = console.stdout()
            text = write_corpus(out, folder)
            tokenizer = train(out, text, folder)
            look(out, tokenizer, text)
            encode_and_decode(out, tokenizer, text, folder)
            if self.keep is not None:
                out.print(f"\nEverything is in {self.keep}.")


@contextlib.contextmanager
def _workplace(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="bytewright-demo-") as folder:
            yield Path(folder)
        return
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise UsageError(f"{keep} exists already and is not an empty folder; choose another name")
    durable.check_target(keep / "stories.txt")
    yield keep


def write_corpus(out: Console, folder: Path) -> Path:
    """Make the text to learn from."""
    from bytewright.cli import console
    from bytewright.cli.demo_text import write_stories

    _announce(out, 1, f"Writing {NUM_STORIES:,} little stories, the same every time.")
    text = folder / "stories.txt"
    durable.write_text(text, "".join(write_stories(NUM_STORIES)))
    out.print(next(write_stories(1)).rstrip(), style="italic")
    out.print(f"{console.format_bytes(text.stat().st_size)} of text in all.")
    return text


def train(out: Console, text: Path, folder: Path) -> Tokenizer:
    """Train, and show the merges that were learned."""
    from bytewright.cli import console
    from bytewright.tokenizer import Tokenizer
    from bytewright.tokenizer.inspect import show_token
    from bytewright.tokenizer.train import train_tokenizer

    _announce(out, 2, f"Training a tokenizer: from 256 bytes to {VOCAB_SIZE} tokens, one merge at a time.")
    training = train_tokenizer(text, VOCAB_SIZE, ["<|endoftext|>"])
    table = console.table("merge", "left + right", "count")
    counted = list(zip(training.vocabulary.merges, training.merge_counts, strict=True))
    for number in [*range(8), len(counted) // 2, len(counted) - 1]:
        (left, right), count = counted[number]
        table.add_row(str(number + 1), f"{show_token(left)} + {show_token(right)}", f"{count:,}")
    out.print(table)
    seconds = sum(phase.wall_seconds for phase in training.phases)
    out.print(f"{len(counted)} merges learned in {console.format_seconds(seconds)}.")
    tokenizer = Tokenizer.from_vocabulary(training.vocabulary)
    tokenizer.save(folder / "tokenizer")
    return tokenizer


def look(out: Console, tokenizer: Tokenizer, text: Path) -> None:
    """Show the vocabulary, and how it splits a sentence."""
    from bytewright.cli.tokenizer_inspect import colour_pieces, print_vocabulary
    from bytewright.tokenizer.inspect import bytes_per_token, split_text

    _announce(out, 3, "Looking at it: the longest tokens, and how long tokens are.")
    print_vocabulary(out, tokenizer, 8)
    _announce(out, 4, "Splitting a sentence into tokens, and one in letters it never saw.")
    for sentence in (SENTENCE, UNSEEN):
        out.print(colour_pieces(split_text(tokenizer, sentence), coloured=out.is_terminal))
        ratio = bytes_per_token(tokenizer, sentence.encode())
        out.print(f"{ratio:.2f} bytes per token")


def encode_and_decode(out: Console, tokenizer: Tokenizer, text: Path, folder: Path) -> None:
    """Encode the whole text to a token file, and check that it comes back byte for byte."""
    from bytewright.cli import console

    _announce(out, 5, "Encoding all the stories to a token file, and decoding it again.")
    tokens = tokenizer.encode_file(text, folder / "stories.npy")
    ids = tokens.tokens
    num_bytes = text.stat().st_size
    out.print(
        f"{console.format_bytes(num_bytes)} became {len(ids):,} tokens of type {ids.dtype}"
        f" ({console.format_bytes(ids.nbytes)}); the first ten: {ids[:10].tolist()}",
    )
    same = tokenizer.decode_bytes(ids) == durable.read_bytes(text)
    out.print("Decoded again it is the same text, byte for byte." if same else "It came back changed: a bug.")


def _announce(out: Console, number: int, what: str) -> None:
    out.print(f"\n{number}. {what}", style="bold")

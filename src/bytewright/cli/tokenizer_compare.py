"""`bytewright tokenizer compare`: what two tokenizers share, where they part, and which fits which text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from bytewright.cli import inputs, options
from bytewright.tokenizer.plain_text import require_plain_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from bytewright.tokenizer import Tokenizer
    from bytewright.tokenizer.vocabulary import Merge

EXAMPLES_SHOWN = 8
ONE = f"One tokenizer: {options.ANY_FORMAT}."
TEXTS = tyro.conf.arg(metavar="[TEXT ...]", help_behavior_hint="(optional)")


@dataclass(frozen=True, kw_only=True)
class CompareTokenizers:
    """See what two tokenizers share, the first merge at which they differ, and how they fit given texts.

    The merge at which they differ is shown with how often each choice occurs in each of the texts at that
    point, so give the texts that they were trained on.

    For example:
      bytewright tokenizer compare stories-10k news-32k
      bytewright tokenizer compare stories-10k news-32k stories.txt news.txt
    """

    first: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FIRST", help=ONE)]

    second: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SECOND")]
    """The other tokenizer."""

    texts: Annotated[tuple[Path, ...], tyro.conf.Positional, TEXTS] = ()
    """Text files to measure both on."""

    def run(self) -> None:
        """Print the overlap, the divergence and the cross table."""
        for path in self.texts:
            require_plain_text(path)
        texts = [inputs.read_text_bytes(path) for path in self.texts]
        tokenizers = [inputs.load_tokenizer(path) for path in (self.first, self.second)]
        names = [str(path) for path in (self.first, self.second)]

        from bytewright.cli import console

        out = console.stdout()
        print_overlap(out, names, tokenizers)
        print_divergence(out, names, tokenizers, dict(zip(self.texts, texts, strict=True)))
        if texts:
            print_cross_table(out, names, tokenizers, dict(zip(self.texts, texts, strict=True)))


def print_overlap(out: Console, names: list[str], tokenizers: list[Tokenizer]) -> None:
    """Print how many tokens and merges are shared, and examples of those that are not."""
    from bytewright.cli import console
    from bytewright.tokenizer.inspect import overlap, show_token

    first, second = (tokenizer.vocabulary for tokenizer in tokenizers)
    shared = overlap(first, second)
    table = console.table("", *names, "shared")
    table.add_row(
        "tokens, without special ones",
        f"{len(first.ids_of_ordinary_tokens):,}",
        f"{len(second.ids_of_ordinary_tokens):,}",
        f"{shared.num_shared_tokens:,}",
    )
    table.add_row(
        "merges", f"{len(first.merges):,}", f"{len(second.merges):,}", f"{shared.num_shared_merges:,}"
    )
    specials = (" ".join(it.special_tokens) or "none" for it in (first, second))
    table.add_row("special tokens", *specials, "")
    table.add_row("pattern", first.pattern, second.pattern, "")
    out.print(table)
    for name, alone in zip(names, (shared.only_in_first, shared.only_in_second), strict=True):
        if alone:
            longest = sorted(alone, key=len, reverse=True)[:EXAMPLES_SHOWN]
            shown = "  ".join(show_token(token, options.BYTES_SHOWN) for token in longest)
            out.print(f"Only in {name}: {len(alone):,} tokens; the longest: {shown}")


def print_divergence(
    out: Console, names: list[str], tokenizers: list[Tokenizer], texts: Mapping[Path, bytes]
) -> None:
    """Print the first merge that differs, and how often each choice occurs in each text at that point."""
    from bytewright.cli import console
    from bytewright.tokenizer.inspect import first_divergence

    out.print()
    divergence = first_divergence(tokenizers[0].merges, tokenizers[1].merges)
    if divergence is None:
        out.print(f"All {len(tokenizers[0].merges):,} merges are the same, in the same order.")
        return
    choices = (divergence.first, divergence.second)
    same = "merge is" if divergence.index == 1 else f"{divergence.index:,} merges are"
    shared = (
        f"the first {same} the same; then they differ"
        if divergence.index
        else "the first merge differs already"
    )
    out.print(f"In order of learning, {shared}:")
    table = console.table(f"merge number {divergence.index + 1:,}", *names)
    table.add_row("merges", *(_spell(choice) for choice in choices))
    for path, data in texts.items():
        counts = [
            _count(tokenizer, divergence.index, choice, data)
            for tokenizer, choice in zip(tokenizers, choices, strict=True)
        ]
        table.add_row(f"count in {path}", *counts)
    out.print(table)
    if not texts:
        out.print("Give the texts they were trained on to see how often each choice occurs there.")


def print_cross_table(
    out: Console, names: list[str], tokenizers: list[Tokenizer], texts: Mapping[Path, bytes]
) -> None:
    """Print bytes per token of each text under each tokenizer."""
    from bytewright.cli import console
    from bytewright.tokenizer.inspect import cross_table

    table = console.table("bytes per token", *names)
    for path, row in zip(texts, cross_table(tokenizers, list(texts.values())), strict=True):
        table.add_row(str(path), *(f"{value:.3f}" for value in row))
    out.print()
    out.print(table)


def _spell(merge: Merge | None) -> str:
    from bytewright.tokenizer.inspect import show_token

    return (
        "none: it ends here"
        if merge is None
        else " + ".join(show_token(half, options.BYTES_SHOWN) for half in merge)
    )


def _count(tokenizer: Tokenizer, num_merges: int, choice: Merge | None, data: bytes) -> str:
    from bytewright.tokenizer.inspect import count_pairs_after
    from bytewright.tokenizer.train import count_texts

    if choice is None:
        return ""
    words = count_texts([data], tokenizer.special_tokens, pattern=tokenizer.pattern).counts()
    return f"{count_pairs_after(words, tokenizer.merges[:num_merges], [choice])[choice]:,}"

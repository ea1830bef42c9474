"""The parts of commands that run on a cluster: `--cluster` of `tokenizer` and `corpus` commands.

Everything that can be checked is checked before the cluster is contacted. The results are those of the same
command without `--cluster`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bytewright.cli import console
from bytewright.errors import UsageError
from bytewright.executors import open_cluster
from bytewright.formatting import PhaseProgress, format_bytes, format_seconds

if TYPE_CHECKING:
    from bytewright.corpus.ranges import TextRange
    from bytewright.corpus.stats import CorpusStats
    from bytewright.corpus.storybook import Split, Written
    from bytewright.tokenizer import Tokenizer, TrainingResult


def check_options(*, clean: bool = False, num_threads: int | None = None) -> None:
    """Raise if an option is given that has no effect on a cluster."""
    for option, is_given in (("--clean", clean), ("--num-threads", num_threads is not None)):
        if is_given:
            remedy = "convert the texts with `bytewright corpus text --clean`" if clean else "leave it out"
            raise UsageError(f"{option} does not work with --cluster; {remedy}", key=option)


def train_tokenizer_on(
    cluster: str,
    sources: Sequence[str],
    vocab_size: int,
    special_tokens: Sequence[str],
    *,
    pattern: str,
    min_count: int,
) -> TrainingResult:
    """Count words on a cluster, then learn merges here."""
    from bytewright.tokenizer import Phase, train_tokenizer
    from bytewright.tokenizer.cluster import count_on
    from bytewright.tokenizer.train import check_special_tokens, check_vocab_size

    check_vocab_size(vocab_size, check_special_tokens(special_tokens))
    with console.progress() as show:
        ranges = _cut_sources(sources, special_tokens, pattern, show)
        if not ranges:
            raise UsageError.at(sources[0], "the texts are empty")
        before = time.perf_counter()
        with open_cluster(cluster) as (executor, num_workers):
            started = time.perf_counter()
            table = count_on(
                executor,
                ranges,
                special_tokens,
                pattern=pattern,
                num_workers=num_workers,
                progress=lambda done, total: show("count", done, total, "bytes"),
            )
            counting = time.perf_counter() - started
        connecting = started - before
        connected = Phase(name="connect", seconds=connecting, wall_seconds=connecting)
        counted = Phase(name="count", seconds=sum(table.stats()[3:]), wall_seconds=counting)

        training = train_tokenizer(
            table, vocab_size, special_tokens, pattern=pattern, min_count=min_count, progress=show
        )
    merging = [phase for phase in training.phases if phase.name == "merge"]
    return dataclasses.replace(training, phases=[connected, counted, *merging])


def _cut_sources(
    sources: Sequence[str], special_tokens: Sequence[str], pattern: str, show: PhaseProgress
) -> list[TextRange]:
    """Find the texts, check that they are plain text, and cut them into ranges."""
    from bytewright.corpus.ranges import check_plain, list_sources
    from bytewright.tokenizer.cluster import cut_texts

    found = list_sources(sources)
    for source in found:
        check_plain(source)
    return cut_texts(
        found,
        special_tokens,
        pattern=pattern,
        progress=lambda done, total: show("cut", done, total, "bytes"),
    )


def encode_on_cluster(
    cluster: str, tokenizer: Tokenizer, sources: Sequence[str], out: Path, *, replace: bool
) -> None:
    """Encode texts to a dataset on a cluster, and print its size."""
    from bytewright.tokenizer.cluster import encode_on

    started = time.perf_counter()
    with console.progress() as show:
        ranges = _cut_sources(sources, list(tokenizer.special_tokens), tokenizer.pattern, show)
        with open_cluster(cluster) as (executor, num_workers):
            encoded = encode_on(
                executor,
                tokenizer,
                ranges,
                out,
                num_workers=num_workers,
                replace=replace,
                progress=lambda done, total: show("encode", done, total, "bytes"),
            )
    seconds, num_bytes = time.perf_counter() - started, sum(each.num_bytes for each in ranges)
    tokens, reused = encoded.tokens, encoded.num_reused
    num_shards = "1 shard" if encoded.num_shards == 1 else f"{encoded.num_shards:,} shards"
    kept = f" ({reused:,} were there already)" if reused else ""
    console.print_line(
        f"Wrote {out}: {len(tokens):,} tokens ({tokens.manifest.dtype}) in {num_shards}"
        f"{kept}, {num_bytes / len(tokens):.2f} bytes per token; {format_bytes(num_bytes)} in"
        f" {format_seconds(seconds)}, {format_bytes(num_bytes / seconds)}/s."
    )


def measure_on_cluster(cluster: str, sources: Sequence[str], *, field: str, num_common: int) -> CorpusStats:
    """Count documents and words on a cluster."""
    from bytewright.corpus.ranges import list_sources
    from bytewright.corpus.stats import cut_for_stats, measure_corpus_on

    with console.progress() as show:
        ranges = cut_for_stats(
            list_sources(sources), progress=lambda done, total: show("cut", done, total, "bytes")
        )
        with open_cluster(cluster) as (executor, num_workers):
            return measure_corpus_on(
                executor,
                ranges,
                field=field,
                num_common=num_common,
                num_workers=num_workers,
                progress=lambda done, total: show("count", done, total, "bytes"),
            )


def write_stories_on(cluster: str, out: Path, size: int, *, seed: int, split: Split) -> Written:
    """Generate stories on a cluster, and write them here."""
    from bytewright.corpus.storybook import write_stories

    with (
        open_cluster(cluster) as (executor, num_workers),
        console.phase_progress("stories", "bytes") as progress,
    ):
        return write_stories(
            out, size, seed=seed, split=split, executor=executor, num_workers=num_workers, progress=progress
        )

"""Compute the figures of bpe.md."""

from __future__ import annotations

from statistics import median

from records import result

made = result("../handbook/tokenizer_experiments.json")
stories, prose = made["stories"], made["prose"]


def speed_rows():
    names = {
        "5mb-10k": "5 MB, 10,000 tokens",
        "5mb-32k": "5 MB, 32,000",
        "100mb-10k": "100 MB, 10,000",
        "100mb-32k": "100 MB, 32,000",
        "1gb-10k": "1 GB, 10,000",
    }
    rows = [("technical English, two cores", "seconds", "peak memory, MB")]
    for column in result("2026-11-15-tokenizer-training.json")["columns"]:
        (ours,) = [row for row in column["results"] if row["contestant"] == "bytewright"]
        if name := names.get(column["title"]):
            rows.append((name, f"{ours['seconds']['median']:.2f}", f"{ours['peak_rss_mb']['median']:,.0f}"))
    return rows


def with_range(values, digits, unit=""):
    return f"{median(values):.{digits}f}{unit} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def corpus_rows():
    def column(corpus):
        totals = [sum(phases.values()) for phases in corpus["thread_seconds"]]
        shares = [100 * phases["merge"] / sum(phases.values()) for phases in corpus["thread_seconds"]]
        return [
            f"{corpus['corpus_bytes']:,}",
            f"{corpus['num_words']:,}",
            f"{corpus['num_distinct_words']:,}",
            with_range(totals, 2),
            with_range(shares, 0, " %"),
            f"{corpus['last_merge_count']:,}",
            len(corpus["longest"][0]),
        ]

    titles = [
        "bytes",
        "words",
        "distinct words",
        "seconds, all threads together",
        "share of merging",
        "count of the last merge",
        "longest token, bytes",
    ]
    return [
        ("", "stories, 10,000", "prose, 32,000"),
        *zip(titles, column(stories), column(prose), strict=True),
    ]


of_stories, of_novels = made["first_merges"]


def show(tokens):
    return ", ".join(tokens)


FIGURES = [
    # How long does training take, how much memory, and in which phase?
    speed_rows(),
    # Two vocabularies
    corpus_rows(),
    f"the stories are {show(stories['longest'][:4])}. Those of the novels are {show(prose['longest'][:4])}",
    f"hardly enough for a vocabulary of {stories['vocab_size']:,}.",
    f"merge occurs only {stories['last_merge_count']} times",
    (
        f"The first merge of the stories is {of_stories}, that of the novels {of_novels}. "
        f"The tokenizers share {made['shared_merges']:,} merges. "
        f"Only the stories' vocabulary has {show(made['only_in_stories'][:8])}. "
        f"Only the novels' has {show(made['only_in_prose'][:8])}"
    ),
]
GIVEN = {
    "the 256 bytes": "the values of a byte",
    "75 English novels": "the file that the script was run with",
}

"""Compute the figures of 2026-11-18-two-cores.md."""

from __future__ import annotations

from statistics import median

from records import result

measured = result("2026-11-18-two-cores.json")
versions = measured["versions"]
serving, books = measured["serving"], measured["books"]["books"]
SERVERS = ("bytewright", "llama-cpp-python", "transformers")


def rank_rows():
    yield ("", "tokens/s", "÷ one process", "lowest", "highest", "goal")
    goals = {"2 ranks, 1 thread, exact": "0.80", "2 ranks, 1 thread, fast": "0.90"}
    for label, ratios in measured["ranks"]["ratios"].items():
        speed = median(measured["ranks"]["tokens_per_second"][label])
        figures = (f"{value:.2f}" for value in (median(ratios), min(ratios), max(ratios)))
        yield (label, f"{speed:,.0f}", *figures, goals.get(label, ""))


def deviation_rows():
    yield ("ranks", "step", "weights", "loss")
    for row in measured["deviation"]["rows"]:
        loss = f"{row['loss']:.1e}" if row["loss"] else "0"
        yield (row["ranks"], row["step"], f"{row['weights']:.1e}", loss)


cluster = measured["cluster"]
memory = cluster["memory"]


def cluster_rows():
    yield ("text", "work", "one process, s", "cluster, s", "ratio", "lowest", "highest", "goal")
    for text, works in cluster["seconds"].items():
        for work, clocks in works.items():
            one, many = clocks["elapsed"]["one process"], clocks["elapsed"]["cluster"]
            ratios = [cluster / alone for cluster, alone in zip(many, one, strict=True)]
            shown = (median(one), median(many), median(ratios), min(ratios), max(ratios))
            yield (text, work, *(f"{value:.2f}" for value in shown), "1.40")


def memory_rows():
    yield ("memory", "GB", "÷ merged table")
    for label, key in {
        "all tables": "bytes_of_all_tables",
        "merged table": "bytes_of_merged_table",
        "peak of merging": "peak_of_merging",
        "peak of learning merges": "peak_of_learning",
    }.items():
        yield (label, f"{memory[key] / 1e9:.2f}", f"{memory[key] / memory['bytes_of_merged_table']:.1f}")


def find_row(rows, server: str, clients: int):
    return next(row for row in rows if (row["server"], row["clients"]) == (server, clients))


def serving_rows():
    yield ("clients", "server", "tokens/s", "first token p50, ms", "p99, ms", "next token p50, ms", "p99, ms")
    for clients in (1, 8, 32, 128):
        for server in SERVERS:
            row = find_row(serving["rows"], server, clients)
            first, following = row["first_token_ms"], row["next_token_ms"]
            shown = [f"{first[share]:,.0f}" for share in ("p50", "p99")]
            later = [f"{following[share]:.1f}" for share in ("p50", "p99")]
            yield (clients, server, f"{row['tokens_per_second']:,.0f}", *shown, *later)


def factor(rows):
    """Return the tokens per second of our server, divided by those of the faster other one."""
    ours, *others = (find_row(rows, server, 32)["tokens_per_second"] for server in SERVERS)
    return ours / max(others)


def step_rows():
    yield ("texts", "step, µs", "tokens/s")
    for row in serving["engine_alone"]["rows"]:
        yield (row["texts"], f"{row['us_per_step']:,.0f}", f"{row['tokens_per_second']:,.0f}")


intervals = serving["switch_interval"]["ms"]
p99_of = {ms: runs["next_token_p99_ms"] for ms, runs in intervals.items()}
shorter = [p99 for ms, runs in p99_of.items() if ms != "5" for p99 in runs]
load = cluster["load_average_at_start"]
before = {name: min(times) for name, times in cluster["before"]["seconds"]["train"].items()}
settings = serving["settings"]
assert not any(row["errors"] for row in serving["rows"]), "no request failed"

FIGURES = [
    (
        f"Python {measured['machine']['python']}, torch {versions['torch']}, llama-cpp-python "
        f"{versions['llama-cpp-python']}, transformers {versions['transformers']} and "
        f"locust {versions['locust']}"
    ),
    list(rank_rows()),
    list(deviation_rows()),
    list(cluster_rows()),
    f"load average was {load['novels']:.1f} and {load['technical']:.1f}",
    f"took {before['cluster'] / before['one process']:.2f} times as long",
    list(memory_rows()),
    f"{memory['num_distinct_words'] / 1e6:.0f} million distinct words",
    f"about {memory['peak_of_learning'] / memory['num_distinct_words']:.0f} bytes for each distinct word",
    f"prompt of {settings['prompt_tokens']} tokens",
    f"requests {settings['new_tokens']} new ones",
    f"serve` ({settings['slots']} slots)",
    list(serving_rows()),
    list(step_rows()),
    f"With 32 clients, our server generates {factor(serving['rows']):.1f} times as many tokens per second",
    f"with two threads for each server it was {factor(serving['two_threads']):.1f}",
    f"(commit {serving['commit'][:7]})",
    (
        f"a p99 of {min(shorter):.1f} to {max(shorter):.1f} ms instead of {min(p99_of['5']):.1f} to"
        f" {max(p99_of['5']):.1f}"
    ),
    f"{books['storybook']['MB/s']:.0f} MB/s and the world book at {books['worldbook']['MB/s']:.0f} MB/s",
]
GIVEN = {
    "a factor of 1.5": "the goal",
    "50 MB/s": "the goal",
    "batches of 8 × 256": "the settings of the benchmark",
    "With 128 clients": "a row of the table",
    "128 clients were measured": "a row of the table",
    "one of the 32 slots": "the settings of the benchmark",
    "within 5 % of before": "the bound of the test",
    "took 46 ms with one client": "measured with the same command before the change",
    "bursts of 40 ms": "measured with the same command before the change",
    "1 GB": "the size that was asked for",
    "110 ms": "processor time of the function, in a process with the same environment variable",
    "79 ms": "processor time of the function, in a process with the same environment variable",
    "1,000 tables": "the settings of the benchmark",
    "the exponent 0.6": "the settings of the benchmark",
    "18 times": "57 MB of novels in 1 GB",
    "With 32 clients, the connections": "a row of the table",
    "10,000 hostile requests": "tests/serve/test_hostile.py, with --slow",
    "in 16 seconds": "printed by pytest",
    "with 0.1, 0.5 and 1 ms instead of 5": "the values that were tried, and Python's default",
    "three runs of 32 clients": "the settings of the measurement",
}

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


def cluster_rows():
    yield ("work", "one process, s", "cluster, s", "ratio", "goal")
    for work, seconds in measured["cluster"]["seconds"].items():
        best = {name: min(times) for name, times in seconds.items()}
        ratio = best["cluster"] / best["one process"]
        yield (work, f"{best['one process']:.2f}", f"{best['cluster']:.2f}", f"{ratio:.2f}", "1.40")


def find_row(server: str, clients: int, run: int):
    return next(
        row
        for row in serving["rows"]
        if (row["server"], row["clients"], row["run"]) == (server, clients, run)
    )


def serving_rows():
    yield ("clients", "server", "tokens/s", "first token p50, ms", "p99, ms", "next token p50, ms", "p99, ms")
    for clients in (1, 8, 32, 128):
        for server in SERVERS:
            row = find_row(server, clients, 2 if server == "transformers" else 1)
            first, following = row["first_token_ms"], row["next_token_ms"]
            # 0 means that no request began after the warm-up and got a token.
            shown = [f"{first[share]:,.0f}" if first[share] else "–" for share in ("p50", "p99")]
            later = [f"{following[share]:.1f}" for share in ("p50", "p99")]
            yield (clients, server, f"{row['tokens_per_second']:,.0f}", *shown, *later)


def thread_rows():
    yield ("threads", "clients", "tokens/s", "next token p50, ms", "p99, ms")
    for row in serving["threads"]["rows"]:
        later = [f"{row['next_token_ms'][share]:.1f}" for share in ("p50", "p99")]
        yield (row["threads"], row["clients"], f"{row['tokens_per_second']:,.0f}", *later)


def step_rows():
    yield ("texts", "step, µs", "tokens/s")
    for row in serving["engine_alone"]["rows"]:
        yield (row["texts"], f"{row['us_per_step']:,.0f}", f"{row['tokens_per_second']:,.0f}")


ours, again = (find_row("bytewright", 32, run)["tokens_per_second"] for run in (1, 2))
peers = {"llama-cpp-python": 1, "transformers": 2}
fastest = max(find_row(name, 32, run)["tokens_per_second"] for name, run in peers.items())
settings = serving["settings"]
assert not any(row["errors"] for row in serving["rows"]), "no request failed"

FIGURES = [
    (
        f"Python {measured['machine']['python']}, torch {versions['torch']}, llama-cpp-python "
        f"{versions['llama-cpp-python']}, transformers {versions['transformers']}, locust "
        f"{versions['locust']}"
    ),
    list(rank_rows()),
    list(deviation_rows()),
    list(cluster_rows()),
    f"prompt of {settings['prompt_tokens']} tokens",
    f"requests {settings['new_tokens']} new ones",
    f"serve` ({settings['slots']} slots)",
    list(serving_rows()),
    list(thread_rows()),
    list(step_rows()),
    f"{serving['threads']['seconds']} seconds for each line",
    f"With 32 clients, our server generates {ours / fastest:.1f} times as many tokens per second",
    f"reached {again:,.0f} tokens/s with 32 clients",
    f"{books['storybook']['MB/s']:.0f} MB/s and the world book at {books['worldbook']['MB/s']:.0f} MB/s",
]
GIVEN = {
    "a factor of 1.5 at 32 clients": "the goal",
    "50 MB/s": "the goal",
    "batch 8 × 256": "the settings of the benchmark",
    "With 128 clients": "a row of the table",
    "one of the 32 slots": "the settings of the benchmark",
    "within 5 % of before": "the bound of the test",
    "took 46 ms with one client": "measured with the same command before the change",
    "bursts of 40 ms": "measured with the same command before the change",
    "1 GB": "the size that was asked for",
    "0.5 s": "the difference in the table",
    "18 times": "57 MB of novels in 1 GB",
    "With 32 clients, the connections": "a row of the table",
    "10,000 hostile requests": "tests/serve/test_hostile.py, with --slow",
    "in 16 seconds": "printed by pytest",
}

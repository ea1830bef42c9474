"""Compute the figures of 2026-11-19-serving.md."""

from __future__ import annotations

from records import result

measured = result("2026-11-19-serving.json")
versions, settings = measured["versions"], measured["settings"]
rows = {(row["round"], row["server"], row["clients"]): row for row in measured["rows"]}
OURS, LLAMA, TRANSFORMERS = SERVERS = ("bytewright", "llama-cpp-python", "transformers")
assert not any(row["errors"] for row in rows.values()), "no request failed"
for row in rows.values():
    for share in ("p50", "p99"):
        tokens = row["request_ms"][share] / row["request_ms_per_token"][share]
        assert abs(tokens - 100) < 0.2, "every request has 100 tokens"


def latency_rows():
    headings = ("first token p99", "next token p99", "request p50", "request p99")
    yield ("clients", "server", "tokens/s", *headings, "requests")
    for clients in (1, 8, 32, 128):
        for server in SERVERS:
            row = rows[1, server, clients]
            yield (
                clients,
                server,
                f"{row['tokens_per_second']:,.0f}",
                f"{row['first_token_ms']['p99']:,.0f}",
                f"{row['next_token_ms']['p99']:.1f}",
                *(f"{row['request_ms'][share]:,.0f}" for share in ("p50", "p99")),
                f"{row['request_ms']['count']:,}",
            )


def p99(measure: str, server: str, clients: int = 32, turn: int = 1) -> float:
    value: float = rows[turn, server, clients][measure]["p99"]
    return value


def speedup(turn: int) -> float:
    ours, *others = (rows[turn, server, 32]["tokens_per_second"] for server in SERVERS)
    return ours / max(others)


def wait(server: str) -> str:
    """Return the median time until the first token, as a part of the median time of a request."""
    row = rows[1, server, 32]
    return f"{100 * row['first_token_ms']['p50'] / row['request_ms']['p50']:.0f} %"


for clients in (8, 32, 128):
    for peer in (LLAMA, TRANSFORMERS):
        assert p99("first_token_ms", OURS, clients) < p99("first_token_ms", peer, clients)
        assert p99("request_ms", OURS, clients) < p99("request_ms", peer, clients)
        assert p99("next_token_ms", OURS, clients) > p99("next_token_ms", peer, clients)
step = {server: rows[1, server, 32]["next_token_ms"]["p50"] for server in SERVERS}
lowest = min(p99("request_ms", LLAMA, n) / p99("request_ms", OURS, n) for n in (8, 32, 128))
others = max(row["cores_used_by_others"] for row in rows.values())
again = {row["clients"]: row for row in measured["repeated"]["rows"]}
turns = measured["turns of the engine, 32 clients"]
reading, stepping = turns["with a chunk"], turns["without a chunk"]
share_of_reading = reading["count"] / (reading["count"] + stepping["count"])

FIGURES = [
    (
        f"Python {measured['machine']['python']}, torch {versions['torch']}, llama-cpp-python "
        f"{versions['llama-cpp-python']}, transformers {versions['transformers']} and "
        f"locust {versions['locust']}"
    ),
    f"commit {measured['commit'][:7]}",
    f"({settings['slots']} slots)",
    f"prompt of {settings['prompt_tokens']} tokens and requests {settings['new_tokens']} new ones",
    f"at most {others:.2f} of the two cores",
    list(latency_rows()),
    f"{speedup(1):.1f} times as many tokens per second as the faster peer, and {speedup(2):.1f} times",
    f"{p99('first_token_ms', OURS):.0f} ms instead of {p99('first_token_ms', LLAMA):,.0f} ms",
    f"{p99('request_ms', OURS):.0f} ms instead of {p99('request_ms', LLAMA):,.0f} ms",
    f"{p99('request_ms', OURS, turn=2):.0f} ms instead of {p99('request_ms', LLAMA, turn=2):,.0f} ms",
    (
        f"{p99('request_ms_per_token', OURS):.1f} ms per token instead of "
        f"{p99('request_ms_per_token', LLAMA):.1f} ms"
    ),
    f"{p99('next_token_ms', OURS):.1f} ms instead of {p99('next_token_ms', LLAMA):.1f} ms",
    f"the first token is {wait(LLAMA)} of the median time of a request",
    f"compared with {wait(OURS)} with our server",
    f"median of {step[OURS]:.1f} ms instead of {step[LLAMA]:.1f} ms",
    f"{100 * share_of_reading:.0f} % of the engine's turns",
    f"commit {turns['commit'][:7]}, with at least {turns['at_least_slots_in_use']} of the slots",
    "these turns took {p50:.1f} ms (median; p99 {p99:.1f} ms)".format(**reading["milliseconds"]),
    "turns {p50:.1f} ms (p99 {p99:.1f} ms)".format(**stepping["milliseconds"]),
    f"commit {measured['repeated']['commit'][:7]}, after changes",
    "generated {:,.0f}, {:,.0f} and {:,.0f} tokens".format(
        *(again[clients]["tokens_per_second"] for clients in (1, 8, 32))
    ),
    f"was {again[32]['first_token_ms']['p99']:.0f} ms for the first token",
    f"{again[32]['next_token_ms']['p99']:.1f} ms between tokens",
    f"{again[32]['request_ms']['p99']:.0f} ms for a request",
    f"lower by a factor of {lowest:.1f} or more",
    f"{p99('request_ms', OURS, 1):.0f} ms instead of {p99('request_ms', LLAMA, 1):.0f} ms",
]
GIVEN = {
    "at least 1.5 times": "the goal",
    "faster peer with 32 clients": "the goal",
    "With 32 clients": "a row of the table",
    "with 32 and 128 clients": "rows of the table",
    "With 8, 32 and 128 clients": "rows of the table",
    "transformers with 128 clients": "a row of the table",
    "up to 32 requests": "the settings of the benchmark",
    "took 20 s, and with 128 clients 40 s": "the settings of the benchmark",
    "fewer than 200": "follows from the definition of p99 in the benchmark",
    "has 100 tokens": "the assertion in this script",
    "With 1, 8 and 32\nclients": "the arguments of the repetition",
    "(1 ms and 0.2 ms instead of 5 ms)": "sys.setswitchinterval, in six runs of 12 s",
    "used 0.6 cores": "the processor time of other processes during the discarded run",
    "used 0.4 cores with up to 32 clients and 1.1 cores with 128": "the same, of the discarded measurement",
}

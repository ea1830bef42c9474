"""Compute the figures of 2026-11-18-scaling-predictions.md: the predictions for the isoFLOP runs."""

from __future__ import annotations

from records import percent, result

from bytewright.corpus.worldbook import Worldbook
from bytewright.corpus.worldbook.curves import (
    capacity_exponent,
    count_mentions,
    data_exponent,
    local_exponent,
    people_that_fit,
    predict_fact_excess,
    share_beyond,
    unknown_share,
)
from bytewright.laws.law import fit_law
from bytewright.laws.points import Point, Points

BITS_PER_PARAMETER = 2.0
MANY = 100
"""How often a fact is read before it is known, in the second prediction."""

plan = result("2026-11-18-scaling-predictions.json")
text, planned = plan["text"], plan["planned"]
book = Worldbook()
world, entropy = book.world, book.entropy()
mentions = count_mentions(book.grammar, entropy.num_sections)
bytes_per_token = text["num_bytes"] / text["num_tokens"]
bytes_per_document = entropy.bits / (text["bits"] / text["num_bytes"])
tokens_per_document = bytes_per_document / bytes_per_token
mentions_per_token = mentions.per_document / tokens_per_document
all_facts = mentions.per_document * mentions.bits_per_mention
MILLION = 1e6


def mentions_in(tokens: float) -> float:
    return tokens * mentions_per_token


def people(parameters: float) -> float:
    return people_that_fit(parameters, BITS_PER_PARAMETER, mentions.fact_bits_per_person)


def of_data(tokens: float, num_needed: int = 1) -> float:
    """Return the bits per document of facts that D tokens have not stated often enough."""
    return predict_fact_excess(world, mentions, mentions_in(tokens), num_needed=num_needed)


def of_capacity(parameters: float) -> float:
    """Return the bits per document of facts that do not fit into N parameters."""
    return all_facts * share_beyond(world, people(parameters))


def of_both(parameters: float, tokens: float, num_needed: int = 1) -> float:
    return predict_fact_excess(
        world, mentions, mentions_in(tokens), num_needed=num_needed, num_stored=people(parameters)
    )


def law_of(num_needed: int):
    """Return the law that fits the predicted excess of facts at the planned points."""
    points = [
        Point(
            parameters=it["parameters"],
            tokens=it["tokens"],
            loss=of_both(it["parameters"], it["tokens"], num_needed),
            floor=0.0,
        )
        for it in planned
    ]
    return fit_law(Points(points=points), known_limit=True)


sizes = sorted({it["parameters"] for it in planned})
tokens = sorted({it["tokens"] for it in planned})
ends_of_tokens, ends_of_sizes = [tokens[0], tokens[-1]], [sizes[0], sizes[-1]]
once, often = law_of(1), law_of(MANY)


def bits(value: float) -> str:
    return f"{value:.2f}"


def per_byte(value: float) -> str:
    return f"{value / bytes_per_document:.5f}"


def million(value: float) -> str:
    return f"{value / MILLION:.1f}"


def data_rows():
    yield (
        "training tokens, millions", "mentions, thousands", "people not mentioned", "bits per document",
        "bits per byte", f"bits per document if {MANY} readings are needed",
    )  # fmt: skip
    for each in tokens[:: (len(tokens) - 1) // 5]:
        n = mentions_in(each)
        yield (
            million(each),
            f"{n / 1000:,.0f}",
            percent(unknown_share(world, n), 1),
            bits(of_data(each)),
            per_byte(of_data(each)),
            bits(of_data(each, MANY)),
        )


def capacity_rows():
    yield (
        "parameters, millions", "people that fit, thousands", "mentions of others", "bits per document",
        "bits per byte",
    )  # fmt: skip
    for each in sizes:
        yield (
            million(each),
            f"{people(each) / 1000:,.0f}",
            percent(share_beyond(world, people(each)), 1),
            bits(of_capacity(each)),
            per_byte(of_capacity(each)),
        )


def joint_rows():
    yield (
        "FLOPs", "width", "N, millions", "D, millions", "data alone", "capacity alone", "both",
        "both, per byte", f"both, {MANY} readings",
    )  # fmt: skip
    for it in planned:
        n, d = it["parameters"], it["tokens"]
        yield (
            f"{it['flops']:.0e}".replace("e+", "e"),
            it["d_model"],
            million(n),
            million(d),
            bits(of_data(d)),
            bits(of_capacity(n)),
            bits(of_both(n, d)),
            per_byte(of_both(n, d)),
            bits(of_both(n, d, MANY)),
        )


def exponent_rows():
    unseen = [unknown_share(world, mentions_in(each)) for each in ends_of_tokens]
    beyond = [share_beyond(world, people(each)) for each in ends_of_sizes]
    yield "exponent", "parameters (a)", "tokens (b)"
    yield "limit: s − 1 and 1 − 1/s", f"{capacity_exponent(world):.3f}", f"{data_exponent(world):.3f}"
    yield (
        "between the ends of the plan: shares of people",
        f"{local_exponent(ends_of_sizes, beyond):.3f}",
        f"{local_exponent(ends_of_tokens, unseen):.3f}",
    )
    yield (
        "between the ends of the plan: bits of facts",
        f"{local_exponent(ends_of_sizes, [of_capacity(each) for each in ends_of_sizes]):.3f}",
        f"{local_exponent(ends_of_tokens, [of_data(each) for each in ends_of_tokens]):.3f}",
    )
    yield (
        f"the same, {MANY} readings needed",
        "",
        f"{local_exponent(ends_of_tokens, [of_data(each, MANY) for each in ends_of_tokens]):.3f}",
    )
    yield 'fit of the law to "both"', *exponents_of(once)
    yield f'fit of the law to "both, {MANY} readings"', *exponents_of(often)


def exponents_of(law):
    """Return the exponents of a fitted law; a term with the coefficient 0 has none."""
    of_size = f"{law.size_exponent:.3f}" if law.size_scale else "none (A = 0)"
    return of_size, f"{law.data_exponent:.3f}"


excess_of_capacity = max(
    of_both(it["parameters"], it["tokens"]) / of_data(it["tokens"]) - 1 for it in planned[1:]
)

FIGURES = [
    f"{len(planned)} settings of N and D",
    f"{million(sizes[0])} to {million(sizes[-1])} million parameters",
    f"{million(tokens[0])} to {million(tokens[-1])} million tokens",
    f"entropy of a document is {entropy.bits:.2f} bits",
    f"{bytes_per_document:,.0f} bytes and {tokens_per_document:.0f} tokens on average",
    f"{bytes_per_token:.2f} bytes per token",
    f"{mentions.per_document:.3f} mentions of people per document",
    f"{sum(mentions.rates.values()):.2f} facts with {mentions.bits_per_mention:.2f} bits",
    f"{all_facts:.1f} bits per document",
    f"all {mentions.fact_bits_per_person:.0f} bits of a person",
    f"{MANY} times",
    list(data_rows()),
    list(capacity_rows()),
    list(joint_rows()),
    list(exponent_rows()),
    f"at most {percent(excess_of_capacity, 1)} at all points but the first",
]
GIVEN = {
    "sample of 100 MB": "the command",
    "vocabulary of 2,048": "the recipes",
    "context of 512 tokens": "the recipes",
    "s = 1.25": "the exponent of the world",
}

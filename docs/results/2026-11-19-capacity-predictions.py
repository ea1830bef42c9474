"""Compute the figures of 2026-11-19-capacity-predictions.md: what models of limited capacity should store."""

from __future__ import annotations

import dataclasses
from decimal import Decimal

from records import result

from bytewright.corpus.worldbook import Worldbook
from bytewright.corpus.worldbook.book import load_grammar
from bytewright.corpus.worldbook.curves import (
    capacity_exponent,
    count_mentions,
    people_that_fit,
    predict_fact_excess,
    share_beyond,
)
from bytewright.corpus.worldbook.world import World

RATES = (0.5, 1.0, 2.0)
"""Bits that a parameter may store."""
MANY = 100
MILLION = 1e6

plan = result("2026-11-19-capacity-predictions.json")
earlier = result("2026-11-18-scaling-predictions.json")["text"]
text, planned = plan["text"], plan["planned"]
world = World(exponent=Decimal(plan["exponent"]), num_people=plan["people"])
book = Worldbook(world, dataclasses.replace(load_grammar(), genres={"people": 1}))
whole = Worldbook()
mentions = count_mentions(book.grammar, book.entropy().num_sections)
whole_mentions = count_mentions(whole.grammar, whole.entropy().num_sections)
whole_tokens_per_mention = earlier["num_tokens"] / earlier["num_documents"] / whole_mentions.per_document
tokens_per_mention = text["num_tokens"] / text["num_documents"] / mentions.per_document
bits_of_person = mentions.fact_bits_per_person
all_facts = mentions.per_document * mentions.bits_per_mention
all_fact_bits = bits_of_person * world.num_people

full = max(it["tokens"] for it in planned)
half = min(it["tokens"] for it in planned)
sizes = sorted({(it["width"], it["parameters"], it["parameters_without_embeddings"]) for it in planned})


def of_capacity(parameters: float, rate: float) -> float:
    """Return the bits per document of facts that do not fit into a model."""
    return all_facts * share_beyond(world, people_that_fit(parameters, rate, bits_of_person))


def of_data(tokens: float, num_needed: int = 1) -> float:
    """Return the bits per document of facts that a text has not stated often enough."""
    return predict_fact_excess(world, mentions, tokens / tokens_per_mention, num_needed=num_needed)


def size_rows():
    yield (
        "width", "parameters", "without input embeddings", "people that fit at 1 bit",
        *(f"excess at {rate:g} bit{'' if rate == 1 else 's'}" for rate in RATES),
    )  # fmt: skip
    for width, parameters, without in sizes:
        yield (
            width,
            f"{parameters:,}",
            f"{without:,}",
            f"{min(world.num_people, people_that_fit(parameters, 1.0, bits_of_person)):,.0f}",
            *(f"{of_capacity(parameters, rate):.1f}" for rate in RATES),
        )


def data_rows():
    yield "tokens, millions", "mentions, millions", "excess if one reading is enough", f"if {MANY} are needed"
    for tokens in (half, full):
        yield (
            f"{tokens / MILLION:.0f}",
            f"{tokens / tokens_per_mention / MILLION:.1f}",
            f"{of_data(tokens):.1f}",
            f"{of_data(tokens, MANY):.1f}",
        )


FIGURES = [
    f"The world has {world.num_people:,} people, drawn with the exponent s = {world.exponent}",
    f"mention of a person every {tokens_per_mention:.0f} tokens",
    f"instead of {whole_tokens_per_mention:.0f}",
    f"{mentions.per_document:.1f} mentions of people",
    f"{all_facts:.1f} bits per document",
    f"{bits_of_person:.0f} bits per person",
    f"{all_fact_bits / 1000:.0f} thousand bits in all",
    f"from {sizes[0][1] / 1000:.0f} to {sizes[-1][1] / 1000:.0f} thousand parameters",
    f"read {full / MILLION:.0f} million tokens",
    f"and {half / MILLION:.0f} million tokens",
    list(size_rows()),
    list(data_rows()),
    f"a = s − 1 = {capacity_exponent(whole.world):.2f}",
    f"where s = {whole.world.exponent}",
]
GIVEN = {
    "vocabulary of 512": "benchmarks/capacity.py",
    "by less than 20 %": "a limit chosen for this page",
    "from 0.8 to 1.2": "a range chosen for this page",
    "from 0.5 to 2 bits": "the range of the table",
    "after 100 readings": "Allen-Zhu and Li, 2024",
    "bits after 1,000": "Allen-Zhu and Li, 2024",
}

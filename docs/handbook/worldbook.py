"""Compute the figures of worldbook.md."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from itertools import islice
from math import log10

from records import percent, result

from bytewright.corpus.worldbook import World, Worldbook
from bytewright.corpus.worldbook.curves import (
    capacity_exponent,
    data_exponent,
    fact_bits,
    local_exponent,
    unseen_share,
    unstored_share,
)
from bytewright.corpus.worldbook.world import BUCKET_BITS

book = Worldbook()
entropy = book.entropy()
documents = list(islice(book.documents("validation"), 1500))
text_bytes = sum(len(document.text) for document in documents)
bits = sum(document.bits for document in documents)
recalls = [
    choice.distance or 0
    for document in documents
    for choice in document.derivation.choices
    if choice.kind == "recall"
]
decades = Counter(len(str(distance)) - 1 for distance in recalls)
recall_exponent = 1 + log10(decades[2] / decades[3])
"""A density that falls as d^-a has a mass per decade that falls as d^(1-a)."""

fact_bits_per_person = sum(fact_bits(book.grammar).values())
mentions = [10**power for power in range(3, 10, 2)]
parameters = [10**power for power in range(5, 10)]
worlds = [World(exponent=Decimal(exponent)) for exponent in ("1.25", "1.5")]


def share(value: float) -> str:
    return f"{100 * value:.2g} %"


def curve(world: World, num_mentions: int) -> float:
    return unseen_share(world, num_mentions)


def capacity(world: World, num_parameters: int) -> float:
    return unstored_share(world, num_parameters, fact_bits_per_person=fact_bits_per_person)


# The excess of a model, per document

measured = result("2026-11-18-scaling.json")
texts = measured["sets"]["test"]
(run,) = (
    run
    for run in measured["runs"]
    if (run["width"], run["tokens"], run["lr"], run["seed"]) == (128, 54_116_352, measured["lr"], 0)
)


def excess_rows():
    """Yield the kinds of choice with the largest excess, and the total."""
    kinds: dict[str, list[float]] = {}
    columns = zip(texts["choices"], texts["true_bits"], run["model_bits"]["test"], strict=True)
    for (kind, *_), (choices, true, model) in zip(texts["cells"], columns, strict=True):
        values = [each / texts["documents"] for each in (choices, true, model, model - true)]
        for name in (kind, "all"):
            kinds[name] = [a + b for a, b in zip(kinds.get(name, [0.0] * 4), values, strict=True)]
    yield "kind of choice", "choices", "true bits", "model bits", "excess"
    largest = sorted(kinds, key=lambda kind: -kinds[kind][-1])
    assert largest[:4] == ["all", "recall", "fact", "recent thing"]
    for kind in [*largest[1:6], "all"]:
        yield kind, *(f"{each:.2f}" for each in kinds[kind])


FIGURES = [
    # The text
    documents[9].text.split("\n\n")[0].replace("\n", " "),
    # The floor
    f"document has {entropy.bits:.1f} bits on average and {entropy.num_sections:.1f} sections",
    f"about {bits / text_bytes:.2f} bits per byte",
    [
        ["choices", "bits per document"],
        ["genres of the sections", f"{entropy.genre_bits:.1f}"],
        ["number of sections", f"{entropy.length_bits:.1f}"],
        *(
            [f"inside sections of the genre *{name}*", f"{value:.1f}"]
            for name, value in entropy.section_bits.items()
        ),
    ],
    # What a model must recall
    (
        f"Of the recalls, {percent(decades[2] / len(recalls))} have a distance of 100 to 999, and "
        f"{percent(decades[3] / len(recalls))} one of 1,000 to 9,999"
    ),
    f"density that falls as d^−{recall_exponent:.2f}",
    # Two curves
    f"sets s ({World().exponent} by default)",
    f"{fact_bits_per_person:.0f} bits about each person",
    f"{2**BUCKET_BITS} for each doubling of the rank",
    f"the facts of N·c / {fact_bits_per_person:.0f} people",
    [
        ["mentions n", *(f"unseen, s = {world.exponent}" for world in worlds)],
        *([f"10^{log10(n):.0f}", *(share(curve(world, n)) for world in worlds)] for n in mentions),
        [
            "exponent of these points",
            *(f"{local_exponent(mentions, [curve(world, n) for n in mentions]):.3f}" for world in worlds),
        ],
        ["1 − 1/s", *(f"{data_exponent(world):.3f}" for world in worlds)],
    ],
    [
        ["parameters N", *(f"not stored, s = {world.exponent}" for world in worlds)],
        *([f"10^{log10(n):.0f}", *(share(capacity(world, n)) for world in worlds)] for n in parameters),
        [
            "exponent of these points",
            *(
                f"{local_exponent(parameters, [capacity(world, n) for n in parameters]):.3f}"
                for world in worlds
            ),
        ],
        ["s − 1", *(f"{capacity_exponent(world):.3f}" for world in worlds)],
    ],
    # The excess of a model
    f"model of {run['parameters'] / 1e6:.1f} million parameters was trained on"
    f" {run['tokens'] / 1e6:.1f} million tokens",
    f"means over {texts['documents']:,} test documents",
    list(excess_rows()),
]
GIVEN = {
    "30-bit number": "the name spells two times three syllables of 32",
    "1 to 256 sections": "the limit in the grammar",
}

"""Compute the figures of 2026-11-19-capacity.md: how many facts and names small models store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from math import log, sqrt
from pathlib import Path
from runpy import run_path
from statistics import mean, stdev

import numpy as np
from records import percent, result

from bytewright.corpus.worldbook.world import NAME_BITS, World
from bytewright.laws.inference import CONFIDENCE, student_quantile
from bytewright.report.charts import Axis, Chart, Series
from bytewright.report.draw import draw_chart

NAME = "2026-11-19-capacity"
predicted = run_path(str(Path(__file__).with_name(f"{NAME}-predictions.py")))
mentions, bits_of_person = predicted["mentions"], predicted["bits_of_person"]
all_facts = predicted["all_facts"]
bits_per_fact = mentions.bits_per_mention / sum(mentions.rates.values())
MILLION = 1e6
LONGEST_RATE_RUN = 2e8
"""Runs with fewer tokens only served to choose the rate."""


@dataclass(frozen=True)
class Stored:
    """Bits that a model stores, if it knows the fewest people of each range, or each person of it evenly."""

    fewest: float
    even: float

    def __add__(self, other: Stored) -> Stored:
        return Stored(self.fewest + other.fewest, self.even + other.even)


class Measured:
    """The runs of one world, with what each of them stores."""

    def __init__(self, name: str) -> None:
        record = result(name)
        self.runs = record["runs"]
        self.world = World(exponent=Decimal(record["exponent"]), num_people=record["people"])
        self.test = record["sets"]["test"]
        ratios = [self.world.ratio(rank) for rank in range(1, self.world.num_people + 1)]
        self.shares = np.array([above / below for above, below in ratios])
        self.saved = NAME_BITS + np.log2(self.shares)
        """Bits of a name that a model saves by storing it, by rank."""

    def groups(self) -> dict[tuple[int, int], list]:
        """Return the runs of each number of parameters and of tokens at the chosen rate, over seeds."""
        found: dict[tuple[int, int], list] = {}
        rate = self.runs[-1]["lr"]
        for run in sorted(self.runs, key=lambda it: (it["parameters"], it["tokens"], it["seed"])):
            if run["lr"] == rate and run["tokens"] > LONGEST_RATE_RUN:
                found.setdefault((run["parameters"], run["tokens"]), []).append(run)
        return found

    def unknown(self, run) -> float:
        """Return the excess of facts as a share of the bits that they cost if none is known."""
        found = self.by_range(run, "fact").values()
        return sum(bits for bits, _ in found) / sum(number for _, number in found) / bits_per_fact

    def excess(self, run) -> float:
        """Return the excess of facts in bits per document with the mean number of facts."""
        return self.unknown(run) * all_facts

    def ranges(self) -> dict[str, slice]:
        """Return the ranges of ranks by their label, as slices of arrays over all people."""
        found = {}
        for _, label, _ in self.test["cells"]:
            if label != "-":
                low, high = (int(each.replace(",", "")) for each in label.split("-"))
                found[label] = slice(low - 1, min(high, self.world.num_people))
        return dict(sorted(found.items(), key=lambda it: it[1].start))

    def by_range(self, run, kind: str) -> dict[str, tuple[float, int]]:
        """Return the excess in bits and the number of choices of a kind by range of ranks."""
        above = np.array(run["model_bits"]["test"]) - np.array(self.test["true_bits"])
        return {
            label: (float(above[cell]), self.test["choices"][cell])
            for cell, (each, label, _) in enumerate(self.test["cells"])
            if each == kind and label != "-"
        }

    def known(self, run, kind: str) -> dict[str, float]:
        """Return the share of the bits of facts or names that a run knows, by range of ranks; 0 to 1."""
        return {label: min(1.0, max(0.0, share)) for label, share in self.saved_shares(run, kind).items()}

    def saved_shares(self, run, kind: str) -> dict[str, float]:
        """Return the known shares without limits: they are negative if wrong guesses cost more bits."""
        found = {}
        for label, part in self.ranges().items():
            bits, number = self.by_range(run, kind)[label]
            if kind == "fact":
                cost = bits_per_fact
            else:
                cost = float(self.shares[part] @ self.saved[part] / self.shares[part].sum())
            found[label] = 1 - bits / number / cost
        return found

    def stored(self, run, kind: str) -> Stored:
        """Return the bits of facts or names that a run stores."""
        total = Stored(0.0, 0.0)
        for label, share in self.known(run, kind).items():
            shares, saved = self.shares[self.ranges()[label]], self.saved[self.ranges()[label]]
            each = np.full_like(saved, bits_of_person) if kind == "fact" else saved
            gain = shares if kind == "fact" else shares * saved
            number = int(np.searchsorted(np.cumsum(gain) / gain.sum(), share - 1e-12))
            total += Stored(float(each[:number].sum()), share * float(each.sum()))
        return total

    def fewest_fact_bits(self, run) -> float:
        """Return the fewest bits of facts that explain the excess: the facts that are stated most often."""
        total = 0.0
        for label, share in self.known(run, "fact").items():
            shares = self.shares[self.ranges()[label]]
            stated = np.concatenate([rate * shares for rate in mentions.rates.values()])
            each = np.repeat([mentions.bits[name] for name in mentions.rates], len(shares))
            order = np.argsort(-stated, kind="stable")
            gain = np.cumsum((stated * each)[order])
            total += float(each[order][: np.searchsorted(gain / gain[-1], share - 1e-12)].sum())
        return total

    def embeddings(self, run) -> int:
        """Return the number of parameters in the tables of the input and of the output tokens."""
        return 2 * (run["parameters"] - run["parameters_without_embeddings"])

    def people(self, run) -> int:
        """Return how many of the most frequent people explain the excess of facts of a run."""
        return int(np.searchsorted(np.cumsum(self.shares), 1 - self.unknown(run)))


first, second = Measured(f"{NAME}.json"), Measured(f"{NAME}-second.json")
settings = result(f"{NAME}-settings.json")
"""The earlier attempt."""


def size_rows(measured: Measured) -> Iterator[tuple[object, ...]]:
    yield (
        "width", "parameters", "tokens, millions", "seeds", "excess of facts", "deviation",
        "people that explain it", "bits of their facts per parameter",
    )  # fmt: skip
    for (parameters, tokens), runs in measured.groups().items():
        facts = [measured.excess(run) for run in runs]
        people = mean(measured.people(run) for run in runs)
        yield (
            runs[0]["width"],
            f"{parameters:,}",
            f"{tokens / MILLION:.0f}",
            len(runs),
            f"{mean(facts):.1f}",
            f"{stdev(facts):.1f}" if len(facts) > 1 else "–",
            f"{people:,.0f}",
            f"{people * bits_of_person / parameters:.2f}",
        )


def known_rows(measured: Measured) -> Iterator[tuple[object, ...]]:
    """Yield the known shares by range of ranks; ranges that all models know, or none, are left out."""
    headings = (
        f"{runs[0]['width']}, {tokens / MILLION:.0f} M" for (_, tokens), runs in measured.groups().items()
    )
    yield "kind", "ranks", *headings
    for kind, name in (("fact", "facts"), ("person", "names")):
        for label, part in measured.ranges().items():
            shares = [
                mean(measured.known(run, kind)[label] for run in runs) for runs in measured.groups().values()
            ]
            if min(max(shares), 1 - min(shares)) > 0.005:
                ranks = f"{part.start + 1:,} to {part.stop:,}"
                yield name, ranks, *(percent(share, 0) for share in shares)


def stored_of(measured: Measured, runs) -> tuple[Stored, Stored]:
    """Return the mean stored bits of facts and of names over seeds."""
    found = []
    for kind in ("fact", "person"):
        each = [measured.stored(run, kind) for run in runs]
        found.append(Stored(mean(it.fewest for it in each), mean(it.even for it in each)))
    return found[0], found[1]


def stored_rows(measured: Measured) -> Iterator[tuple[object, ...]]:
    yield (
        "width", "tokens, millions", "facts, thousand bits", "names, thousand bits", "together",
        "bits per parameter",
    )  # fmt: skip
    for (parameters, tokens), runs in measured.groups().items():
        facts, names = stored_of(measured, runs)
        both = facts + names
        yield (
            runs[0]["width"],
            f"{tokens / MILLION:.0f}",
            *(f"{each.fewest / 1000:.0f} to {each.even / 1000:.0f}" for each in (facts, names, both)),
            f"{both.fewest / parameters:.2f} to {both.even / parameters:.2f}",
        )


def at(measured: Measured, tokens: int) -> dict[int, list]:
    """Return the runs with about this number of million tokens by width."""
    return {
        runs[0]["width"]: runs
        for (_, each), runs in measured.groups().items()
        if round(each / MILLION) == tokens
    }


def all_parameters(run) -> int:
    return run["parameters"]


def without_embeddings(run) -> int:
    return run["parameters"] - first.embeddings(run)


def both_of(measured: Measured, which: str):
    def value(run) -> float:
        return getattr(measured.stored(run, "fact") + measured.stored(run, "person"), which)

    return value


def exponents(
    measured: Measured, tokens: int, few: int, many: int, value, size=all_parameters
) -> list[float]:
    """Return the exponents of a value between two widths, as a power of the parameters, by seed."""
    small, large = at(measured, tokens)[few], at(measured, tokens)[many]
    ratio = log(size(large[0]) / size(small[0]))
    return [log(value(b) / value(a)) / ratio for a, b in zip(small, large, strict=True)]


def with_interval(values: list[float]) -> str:
    """Write a mean over seeds with its 95 % t interval, or the value of a single seed."""
    if len(values) == 1:
        return f"{values[0]:.2f}"
    half = student_quantile(CONFIDENCE, len(values) - 1) * stdev(values) / sqrt(len(values))
    return f"{mean(values):.2f} ({mean(values) - half:.2f} to {mean(values) + half:.2f})"


def exponent_rows(measured: Measured, tokens: int) -> Iterator[tuple[object, ...]]:
    yield "widths", "people that explain the excess", "facts and names, fewest", "facts and names, even"
    widths = sorted(at(measured, tokens))
    for few, many in [*pairwise(widths), (widths[0], widths[-1])]:
        values = (measured.people, both_of(measured, "fewest"), both_of(measured, "even"))
        yield (
            f"{few} to {many}",
            *(with_interval(exponents(measured, tokens, few, many, value)) for value in values),
        )


def growth_with_tokens(value) -> dict[int, float]:
    """Return the factor by which twice the tokens change a value of the first world, by width."""
    half, whole = (
        {width: mean(map(value, runs)) for width, runs in at(first, it).items()} for it in (300, 600)
    )
    return {width: whole[width] / half[width] for width in half}


def excess_at_rates() -> dict[float, float]:
    """Return the excess of facts of the runs that chose the rate, by rate."""
    return {run["lr"]: first.excess(run) for run in first.runs if run["tokens"] < LONGEST_RATE_RUN}


def known_shares() -> dict[str, float]:
    """Return the share of the bits of facts that each run of the earlier attempt knows, by its name."""
    test = settings["sets"]["test"]
    facts = [cell for cell, (kind, _, _) in enumerate(test["cells"]) if kind == "fact"]
    cost = bits_per_fact * sum(test["choices"][cell] for cell in facts)
    return {
        run["name"]: 1 - sum(run["model_bits"]["test"][cell] for cell in facts) / cost
        for run in settings["runs"]
    }


def short(rate: float) -> str:
    """Write a rate as on the pages: 4e-3."""
    return f"{rate:.0e}".replace("e-0", "e-")


def implied(low: float, high: float) -> str:
    """Return the exponents of the capacity curve of the world book that follow from those of people."""
    return f"{low * capacity:.2f} to {high * capacity:.2f}"


capacity = predicted["capacity_exponent"](World())
widths = sorted(at(first, 600))
excess_of = {
    tokens: {width: mean(map(first.excess, runs)) for width, runs in at(first, tokens).items()}
    for tokens in (300, 600)
}
added = {width: excess_of[300][width] - excess_of[600][width] for width in widths}
added_share = {width: added[width] / excess_of[600][width] for width in widths}
fewer = {width: percent(added_share[width], 0) for width in widths}
for width in widths[:2]:
    assert added[width] < 2 * stdev(map(first.excess, at(first, 600)[width]))
more_people = growth_with_tokens(first.people)
more_bits = [
    factor for which in ("fewest", "even") for factor in growth_with_tokens(both_of(first, which)).values()
]
for world in (first, second):
    for runs in world.groups().values():
        people_of = {
            kind: sum(
                mean(world.known(run, kind)[each] for run in runs) * (part.stop - part.start)
                for each, part in world.ranges().items()
            )
            for kind in ("fact", "person")
        }
        assert people_of["person"] > people_of["fact"], "more names are known than facts"
assert all(added_share[width] < 0.2 for width in widths[:-1])
assert added_share[widths[-1]] > 0.2
whole = with_interval(exponents(first, 600, widths[0], widths[-1], first.people))
size_row = {int(row[0]): row for row in list(size_rows(first))[1:] if row[2] == "600"}
large = exponents(second, 300, 64, 96, second.people)[0], exponents(second, 300, 48, 64, second.people)[0]
slopes = [mean(exponents(first, 600, *pair, first.people)) for pair in pairwise(widths)]
assert sorted(slopes, reverse=True) == slopes
stored_first = {row[0]: row for row in list(stored_rows(first))[1:] if row[1] == "600"}
stored_half = {row[0]: row for row in list(stored_rows(first))[1:] if row[1] == "300"}
stored_second = {row[0]: row for row in list(stored_rows(second))[1:]}
of_rates = excess_at_rates()
assert min(of_rates, key=lambda lr: of_rates[lr]) == first.runs[-1]["lr"]
higher = {percent(each / min(of_rates.values()) - 1, 0) for each in of_rates.values()} - {"0 %"}
assert len(higher) == 1
half_of_16 = at(first, 300)[16][0]
loss_of = {kind: -list(first.saved_shares(half_of_16, kind).values())[-1] for kind in ("fact", "person")}
of_96 = at(second, 300)[96][0]
least = (second.fewest_fact_bits(of_96) + second.stored(of_96, "person").fewest) / of_96["parameters"]
same_widths = exponents(first, 300, 48, 64, first.people)[0]
assert same_widths > large[1] > large[0], "the exponent depends on the world"
inner = [
    mean(exponents(measured, tokens, *pair, measured.people, without_embeddings))
    for measured, tokens, pair in ((first, 600, (16, 64)), (second, 300, (48, 64)), (second, 300, (64, 96)))
]
embedded = {
    run["width"]: percent(first.embeddings(run) / run["parameters"], 0)
    for run in (half_of_16, at(first, 300)[64][0], of_96)
}
assert 256 / predicted["tokens_per_mention"] * first.shares[99] < 0.01
stated = [mentions.rates[name] for name in ("year", "beast", "colour")]
assert mentions.rates["trade"] == mentions.rates["town"] == 1
chosen_rate = short(first.runs[-1]["lr"])
attempt_tokens = max(run["tokens"] for run in settings["runs"])
attempt_sizes = sorted({run["parameters"] for run in settings["runs"]})
known_share = known_shares()
best_of_attempt = max(known_share, key=lambda name: known_share[name])
lowest_of_attempt = min(
    (run for run in settings["runs"] if run["width"] == 64), key=lambda run: run["validation_loss"]
)
assert best_of_attempt == lowest_of_attempt["name"], "the run with the lowest loss knows the most facts"
assert "AdamW" in best_of_attempt
steps = [b / a for a, b in pairwise(sorted(runs[0]["parameters"] for runs in at(second, 300).values()))]
rate_tokens = {run["tokens"] for run in first.runs if run["tokens"] < LONGEST_RATE_RUN}
assert len(rate_tokens) == 1
mentions_of_person = (
    attempt_tokens
    / (settings["sets"]["test"]["tokens"] / settings["sets"]["test"]["documents"])
    * predicted["whole_mentions"].per_document
    / settings["world"]["people"]
)


def known_series(runs) -> Series:
    """Return the share of facts that a size knows, by the middle of each octave of ranks."""
    (run,) = runs
    shares = second.known(run, "fact")
    middles = {label: sqrt((part.start + 1) * part.stop) for label, part in second.ranges().items()}
    return Series(
        f"{run['parameters'] / 1000:.0f} thousand parameters (width {run['width']})",
        [(middles[each], shares[each]) for each in shares],
    )


PICTURES = {
    f"{NAME}.svg": draw_chart(
        Chart(
            title="Known share of facts, by rank of the person",
            x=Axis("rank by frequency", log=True),
            y=Axis("known share of facts"),
            series=[known_series(runs) for runs in at(second, 300).values()],
            ordered=True,
        )
    )
}
GROWTH = [
    f"grows as N^{whole.split()[0]} from 33 to 279 thousand parameters",
    f"N^{large[1]:.2f} from 160 to 279 thousand, and as N^{large[0]:.2f} from 279 to 542 thousand",
]
FIGURES = [
    f"it is {all_facts:.1f} if no fact is known",
    list(size_rows(first)),
    f"At widths 16, 32, 48 and 64 it is higher by {fewer[16]}, {fewer[32]}, {fewer[48]} and {fewer[64]}",
    f"higher by {min(added.values()):.1f} to {max(added.values()):.1f} bits, and by {added[64]:.1f} at width"
    " 64",
    f"by {100 * min(more_people.values()) - 100:.0f} to {percent(max(more_people.values()) - 1, 0)}, and by"
    f" {percent(more_people[64] - 1, 0)} at width 64",
    f"with twice the tokens, models store {100 * min(more_bits) - 100:.0f} to"
    f" {percent(max(more_bits) - 1, 0)} more bits",
    f"The predicted exponent was from 0.8 to 1.2. It is {whole}",
    f"{size_row[16][-1]} to {size_row[64][-1]} instead of 0.5 to 2",
    f"A name costs {NAME_BITS} bits",
    list(known_rows(first)),
    list(stored_rows(first)),
    list(exponent_rows(first, 600)),
    f"{stored_first[64][3]} of all {first.saved.sum() / 1000:.0f} thousand bits of names",
    f"are {stored_first[48][5]} bits per parameter at width 48, and {stored_first[64][5]} at width 64",
    list(size_rows(second)),
    list(known_rows(second)),
    list(stored_rows(second)),
    list(exponent_rows(second, 300)),
    f"At width 48 they are {stored_half[48][4]} thousand bits in the first world",
    f"and {stored_second[48][4]} in the second",
    f"at width 64 {stored_half[64][4]} and {stored_second[64][4]}",
    f"That from width 48 to 96 is {mean(exponents(second, 300, 48, 96, both_of(second, 'even'))):.2f}",
    f"From width 48 to 64 alone it is {mean(exponents(second, 300, 48, 64, both_of(second, 'even'))):.2f}",
    f"At width 96 it is {stored_second[96][5]}",
    f"and {stored_second[96][5]} in the second",
    f"exponent of people is {slopes[0]:.2f}, {slopes[1]:.2f} and {slopes[2]:.2f}",
    f"and {large[1]:.2f} and {large[0]:.2f}",
    f"s = {World().exponent}, would be {implied(*large)} instead of {capacity:.2f}",
    f"from width 48 to 64, with 300 million tokens, it is {same_widths:.2f} in the first world and"
    f" {large[1]:.2f} in the second",
    f"is {inner[0]:.2f} instead of {whole.split()[0]} from width 16 to 64 in the first world, and"
    f" {inner[1]:.2f} and {inner[2]:.2f} in the second",
    f"exponent of {implied(inner[2], inner[1])}",
    f"have {embedded[16]} of the parameters at width 16, {embedded[64]} at width 64 and {embedded[96]} at"
    " width 96",
    f"only {percent(min(stated), 0)} to {percent(max(stated), 0)} state",
    f"are then {least:.2f} bits per parameter instead of {stored_second[96][5].split()[0]}",
    f"facts of ranks from 1,000 cost {percent(loss_of['fact'], 0)} more",
    f"For names, the loss is {percent(loss_of['person'], 0)} of the bits",
    f"facts that is {higher.pop()} higher",
    f"know at most {percent(known_share[best_of_attempt], 1)} of the bits of facts",
    f"mentioned each person about {mentions_of_person:.0f} times",
    f"The rate {chosen_rate} was the best of three at width 48",
    f"with one seed and {rate_tokens.pop() / MILLION:.0f} million",
    f"with {steps[0]:.1f} or {steps[1]:.1f} times the parameters",
    f"{attempt_sizes[0] / 1000:.0f} and {attempt_sizes[1] / 1000:.0f} thousand parameters",
    f"{attempt_tokens / MILLION:.0f} million tokens mentioned",
    f"AdamW with {short(lowest_of_attempt['lr'])} has the lowest validation loss at width 64",
    *GROWTH,
    f"together are {stored_first[64][5]} bits per parameter",
]
GIVEN = {
    "less than 20 %": "the predictions",
    "**Missed at width 64": "the table",
    "Width 64 has the highest percentage": "the table",
    "At widths 16 and 32": "the assertion about deviations",
    "with 600 million tokens and 95 % t intervals over three": "the table above it",
    "At width 64 and 600 million": "the table above it",
    "names from width 48 to 64 are": "the table above it",
    "one bit after 100 readings": "the predictions",
    "such as 128 to 255": "an octave of ranks",
    "has 32,768 people": "the command",
    "widths 48, 64 and 96 on 600 million tokens with three seeds, and on 300 million": "the command",
    "the runs with 300 million tokens were completed": "the table below it",
    "The expected exponent was from 0.8 to 1.2": "stated before the runs",
    "The expectation was from 0.5 to 1.2 bits": "stated before the runs",
    "bits per parameter at width 96.**": "the command",
    "more than 542 thousand parameters was": "the tables",
    "with 8,192 equally frequent people": "the recipe",
    "At width 96, facts": "the command",
    "At width 16 with 300 million": "the JSON file",
    "known costs 30 bits only": "the number of bits of a name",
    "context of 256 tokens": "benchmarks/capacity.py",
    "Above rank 100, less than 1 %": "the assertion about the context",
    "At width 48, with a quarter": "the JSON file",
    "heads of 16 dimensions and a vocabulary of 512": "benchmarks/capacity.py",
    "weight decay of 0.1": "recipes/isoflop.toml",
}

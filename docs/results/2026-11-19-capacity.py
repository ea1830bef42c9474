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

from bytewright.corpus.worldbook import Worldbook
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


@dataclass(frozen=True)
class Stored:
    """Bits that a model stores: the fewest that explain its excess, and those if a range is known evenly."""

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
        book = Worldbook(self.world)
        self.test = record["sets"]["test"]
        ratios = [book.world.ratio(rank) for rank in range(1, self.world.num_people + 1)]
        self.shares = np.array([above / below for above, below in ratios])
        self.saved = NAME_BITS + np.log2(self.shares)
        """Bits of a name that a model saves by storing it, by rank."""

    def groups(self) -> dict[tuple[int, int], list]:
        """Return the runs of each number of parameters and of tokens at the chosen rate, over seeds."""
        found: dict[tuple[int, int], list] = {}
        rate = self.runs[-1]["lr"]
        for run in sorted(self.runs, key=lambda it: (it["parameters"], it["tokens"], it["seed"])):
            if run["lr"] == rate and run["tokens"] > 2e8:
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
        found = {}
        for label, part in self.ranges().items():
            bits, number = self.by_range(run, kind)[label]
            if kind == "fact":
                cost = bits_per_fact
            else:
                cost = float(self.shares[part] @ self.saved[part] / self.shares[part].sum())
            found[label] = min(1.0, max(0.0, 1 - bits / number / cost))
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

    def people(self, run) -> int:
        """Return how many of the most frequent people explain the excess of facts of a run."""
        return int(np.searchsorted(np.cumsum(self.shares), 1 - self.unknown(run)))


first, second = Measured(f"{NAME}.json"), Measured(f"{NAME}-second.json")


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


def both_of(measured: Measured, which: str):
    def value(run) -> float:
        return getattr(measured.stored(run, "fact") + measured.stored(run, "person"), which)

    return value


def exponents(measured: Measured, tokens: int, few: int, many: int, value) -> list[float]:
    """Return the exponents of a value between two widths, as a power of the parameters, by seed."""
    small, large = at(measured, tokens)[few], at(measured, tokens)[many]
    ratio = log(large[0]["parameters"] / small[0]["parameters"])
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


def share_of_fewer(measured: Measured, width: int) -> float:
    """Return by how much half of the tokens raises the excess of facts, as a share."""
    half, whole = (mean(measured.excess(run) for run in at(measured, it)[width]) for it in (300, 600))
    return half / whole - 1


def highest_known_share() -> float:
    """Return the largest share of the bits of facts that a run of the earlier attempt knows."""
    record = result(f"{NAME}-settings.json")
    test = record["sets"]["test"]
    facts = [cell for cell, (kind, _, _) in enumerate(test["cells"]) if kind == "fact"]
    cost = bits_per_fact * sum(test["choices"][cell] for cell in facts)
    return max(1 - sum(run["model_bits"]["test"][cell] for cell in facts) / cost for run in record["runs"])


def implied(low: float, high: float) -> str:
    """Return the exponents of the capacity curve of the world book that follow from those of people."""
    return f"{low * capacity:.2f} to {high * capacity:.2f}"


capacity = predicted["capacity_exponent"](World())
widths = sorted(at(first, 600))
fewer = {width: percent(share_of_fewer(first, width), 0) for width in widths}
assert all(share_of_fewer(first, width) < 0.2 for width in widths[:-1])
assert share_of_fewer(first, widths[-1]) > 0.2
whole = with_interval(exponents(first, 600, widths[0], widths[-1], first.people))
rates = {int(row[0]): row for row in list(size_rows(first))[1:] if row[2] == "600"}
large = exponents(second, 300, 64, 96, second.people)[0], exponents(second, 300, 48, 64, second.people)[0]
slopes = [mean(exponents(first, 600, *pair, first.people)) for pair in pairwise(widths)]
assert sorted(slopes, reverse=True) == slopes
stored_first = {row[0]: row for row in list(stored_rows(first))[1:] if row[1] == "600"}
stored_half = {row[0]: row for row in list(stored_rows(first))[1:] if row[1] == "300"}
stored_second = {row[0]: row for row in list(stored_rows(second))[1:]}
settings = result(f"{NAME}-settings.json")
mentions_of_person = (
    max(run["tokens"] for run in settings["runs"])
    / (settings["sets"]["test"]["tokens"] / settings["sets"]["test"]["documents"])
    * predicted["whole_mentions"].per_document
    / settings["world"]["people"]
)


def known_series(runs) -> Series:
    """Return the share of facts that a size knows, by the middle of each octave of ranks."""
    (run,) = runs
    shares = second.known(run, "fact")
    middles = {label: sqrt((part.start + 1) * part.stop) for label, part in second.ranges().items()}
    label = f"{run['parameters'] / 1000:.0f}k parameters"
    return Series(label, [(middles[each], shares[each]) for each in shares])


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
    f"people that a model knows grows as N^{whole.split()[0]} from 33 to 279 thousand parameters",
    f"as N^{large[0]:.2f} from 279 to 542 thousand",
]
FIGURES = [
    f"it is {all_facts:.1f} if no fact is known",
    list(size_rows(first)),
    f"At widths 16, 32 and 48 it is higher by {fewer[16]}, {fewer[32]} and {fewer[48]}",
    f"At width 64 it is higher by {fewer[64]}",
    f"The predicted exponent was from 0.8 to 1.2. It is {whole}",
    f"{rates[16][-1]} to {rates[64][-1]} instead of 0.5 to 2",
    f"A name costs {NAME_BITS} bits",
    list(known_rows(first)),
    list(stored_rows(first)),
    list(exponent_rows(first, 600)),
    f"are {stored_first[48][5]} bits per parameter at width 48, and {stored_first[64][5]} at width 64",
    list(size_rows(second)),
    list(known_rows(second)),
    list(stored_rows(second)),
    list(exponent_rows(second, 300)),
    f"At width 48 they are {stored_half[48][4]} thousand bits in the first world",
    f"and {stored_second[48][4]} in the second",
    f"at width 64 {stored_half[64][4]} and {stored_second[64][4]}",
    f"from width 48 to 96 is {mean(exponents(second, 300, 48, 96, both_of(second, 'even'))):.2f}",
    f"At width 96 it is {stored_second[96][5]}",
    f"exponent of people is {slopes[0]:.2f}, {slopes[1]:.2f} and {slopes[2]:.2f}",
    f"and {large[1]:.2f} and {large[0]:.2f}",
    f"exponent would be {implied(*large)} instead of {capacity:.2f}",
    f"know at most {percent(highest_known_share(), 1)} of the bits of facts",
    f"mentioned each person about {mentions_of_person:.0f} times",
    f"from {first.runs[-1]['lr']:.0e}".replace("e-0", "e-")[5:] + " was the best of three at width 48",
    f"excess of facts by {fewer[16].removesuffix(' %')} to {fewer[48]}",
    *GROWTH,
    f"together are {stored_first[64][5]} bits per parameter",
]
GIVEN = {
    "less than 20 %": "the predictions",
    "with 600 million tokens and 95 % t intervals over three": "the table above it",
    "one bit after 100 readings": "the predictions",
    "has 32,768 people": "the command",
    "widths 48, 64 and 96 on 600 million tokens with three seeds, and on 300 million": "the command",
    "the runs with 300 million tokens were completed": "the table below it",
    "The expected exponent was from 0.8 to 1.2": "stated before the runs",
    "The expectation was from 0.5 to 1.2 bits": "stated before the runs",
    "with 1.7 or 1.9 times the parameters": "the table of sizes",
    "bits per parameter at width 96.**": "the command",
    "from 279 to 542 thousand parameters. With": "the tables",
    "reaches 0.25": "s - 1",
    "107 and 345 thousand parameters": "the JSON file",
    "with 8,192 equally frequent people": "the recipe",
    "229 million tokens": "the JSON file",
    "AdamW with 2e-3 has the lowest validation loss at width 64": "the JSON file",
    "known costs 30 bits only": "the number of bits of a name",
    "At width 48, three rates differ little": "the JSON file",
    "heads of 16 dimensions. Their vocabulary of 512": "benchmarks/capacity.py",
}

"""Compute the figures of 2026-11-19-capacity.md: how many facts and names small models store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from math import log
from pathlib import Path
from runpy import run_path
from statistics import mean, stdev

import numpy as np
from records import percent, result

from bytewright.corpus.worldbook import Worldbook
from bytewright.corpus.worldbook.world import NAME_BITS, World

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


first = Measured(f"{NAME}.json")


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
    labels = list(measured.ranges())
    yield ("width", "tokens, millions", *(f"{kind}s, {each}" for kind in ("fact", "name") for each in labels))
    for (_, tokens), runs in measured.groups().items():
        yield (
            runs[0]["width"],
            f"{tokens / MILLION:.0f}",
            *(
                percent(mean(measured.known(run, kind)[label] for run in runs), 0)
                for kind in ("fact", "person")
                for label in labels
            ),
        )


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


def full(measured: Measured) -> dict[int, list]:
    """Return the runs with all tokens by width."""
    most = max(tokens for _, tokens in measured.groups())
    return {runs[0]["width"]: runs for (_, tokens), runs in measured.groups().items() if tokens == most}


def exponent(measured: Measured, few: int, many: int, value) -> float:
    """Return the exponent of a value between two widths, as a power of the parameters."""
    small, large = full(measured)[few], full(measured)[many]
    above = mean(value(run) for run in large) / mean(value(run) for run in small)
    return log(above) / log(large[0]["parameters"] / small[0]["parameters"])


def both_of(measured: Measured, which: str):
    def value(run) -> float:
        return getattr(measured.stored(run, "fact") + measured.stored(run, "person"), which)

    return value


def exponent_rows(measured: Measured) -> Iterator[tuple[object, ...]]:
    yield "widths", "people that explain the excess", "facts and names, fewest", "facts and names, even"
    widths = sorted(full(measured))
    for few, many in [*pairwise(widths), (widths[0], widths[-1])]:
        yield (
            f"{few} to {many}",
            f"{exponent(measured, few, many, measured.people):.2f}",
            *(f"{exponent(measured, few, many, both_of(measured, it)):.2f}" for it in ("fewest", "even")),
        )


if __name__ == "__main__":
    for rows in (size_rows, known_rows, stored_rows, exponent_rows):
        print(*list(rows(first)), sep="\n")

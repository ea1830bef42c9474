"""`bytewright corpus worldbook`: generate documents about a world, and report checks of such documents."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from bytewright.cli import console, options
from bytewright.errors import wrong_value
from bytewright.formatting import format_bytes, format_seconds, parse_bytes
from bytewright.storage import atomic
from bytewright.system import usable_cores

if TYPE_CHECKING:
    from bytewright.corpus.worldbook import World
    from bytewright.corpus.worldbook.check import WorldReport
    from bytewright.experiments.evaluation.world_eval import ExcessReport

DOCUMENTS_LISTED = 10
FACT_TITLES = {
    "fact": "facts about people that are right",
    "recall": "holders of things that are right",
    "result": "sums that are right",
}


@dataclass(frozen=True, kw_only=True)
class WriteWorldbook:
    """Generate a corpus about one world, with known entropy and known scaling curves.

    Documents state facts about people, whose frequencies follow a power law. They also contain nested tales,
    things that change hands, sums, and prose with a large vocabulary. The same options give the same bytes on
    any machine. FILE.json records the world and the exact information content of the file.

    For example:
      bytewright corpus worldbook --size 500MB --out world.txt
      bytewright corpus worldbook --size 5MB --split validation --out world-valid.txt
      bytewright corpus worldbook --size 500MB --world 7 --exponent 1.5 --out other.txt
    """

    out: options.NewFile
    """The file to write."""

    size: Annotated[str, tyro.conf.arg(metavar="SIZE")]
    """The maximum size of the file, such as 50MB or 1GB; only whole documents are written."""

    world: int = 1
    """The seed of the world: another one gives people other names and facts."""

    exponent: Annotated[str, tyro.conf.arg(metavar="S")] = "1.25"
    """The person of rank i is mentioned with probability proportional to i to the power of -S."""

    people: int = 2**30 - 1
    """The number of people in the world."""

    seed: int = 1
    """The seed of the documents: another one gives other documents about the same world."""

    split: Literal["train", "validation", "test"] = "train"
    """Documents for training, validation or test; the splits have different random numbers."""

    num_workers: options.NumWorkers = None

    replace: options.Replace = False

    def run(self) -> None:
        """Write the documents, and print their size and entropy."""
        size = int(parse_bytes(self.size, default_unit="B", key="--size"))
        options.require_at_least(1, self.num_workers, "--num-workers")
        if not 0 <= self.seed < 2**64:
            raise wrong_value("--seed", "from 0 to 2^64 - 1", self.seed)
        atomic.check_target(self.out, replace=self.replace)
        world = make_world(self.world, self.exponent, self.people)

        from bytewright.corpus.worldbook.files import write_worldbook

        started = time.perf_counter()
        with console.phase_progress("documents", "bytes") as progress:
            written = write_worldbook(
                self.out,
                size,
                world=world,
                seed=self.seed,
                split=self.split,
                num_threads=self.num_workers or usable_cores(),
                progress=progress,
            )
        seconds = time.perf_counter() - started
        console.print_line(
            f"Wrote {self.out}: {written.num_documents:,} documents, {format_bytes(written.num_bytes)}"
            f" in {format_seconds(seconds)}. Their entropy is {written.bits_per_byte:.4f} bits per"
            " byte: the expected loss of any model is at least that."
        )


def find_world(file: Path, seed: int | None, exponent: str | None, num_people: int | None) -> World:
    """Return the world of a text: from the options, else from its manifest, else the default."""
    from bytewright.corpus.worldbook import World
    from bytewright.corpus.worldbook.files import read_world_manifest

    manifest = read_world_manifest(file)
    world = World() if manifest is None else manifest.world
    return make_world(
        world.seed if seed is None else seed,
        str(world.exponent) if exponent is None else exponent,
        world.num_people if num_people is None else num_people,
    )


def check_documents(
    file: Path, world: World, *, training_path: Path | None, num_workers: int, print_json: bool
) -> None:
    """Check the documents of a file, and print the result."""
    from bytewright.corpus.worldbook.check import check_document_file

    with console.phase_progress("check", "bytes") as progress:
        report = check_document_file(
            file, world, training_path=training_path, num_workers=num_workers, progress=progress
        )
    if print_json:
        print(
            json.dumps(world_report_fields(report, copies_known=training_path is not None), allow_nan=False)
        )
    else:
        print_world_check(report, copies_known=training_path is not None)


def make_world(seed: int, exponent: str, num_people: int) -> World:
    """Return the world of the options; values outside the ranges raise `UsageError`."""
    from bytewright.corpus.worldbook import World

    try:
        power = Decimal(exponent)
    except InvalidOperation:
        raise wrong_value("--exponent", "a number such as 1.25", exponent) from None
    return World(seed=seed, exponent=power, num_people=num_people)


EXCESS_TITLES = {
    "kind": "kind of choice",
    "rule": "rule",
    "rank": "rank of the person",
    "distance": "characters since the holder was stated",
    "depth": "depth of nesting",
    "moves": "moves of the thing",
}
ROWS_SHOWN = 16


def print_excess(report: ExcessReport, num_documents: int) -> None:
    """Print the tables of excess bits; the rows of each table add up to the same total."""
    from bytewright.experiments.evaluation.world_eval import add_rows

    console.print_line("Means per document; excess = model bits - true bits:")
    for name, title in EXCESS_TITLES.items():
        rows = list(report.tables[name].items())
        if len(rows) > ROWS_SHOWN:
            rows = [*rows[: ROWS_SHOWN - 1], ("others", add_rows(row for _, row in rows[ROWS_SHOWN - 1 :]))]
        lines = []
        for label, row in [*rows, ("all", report.total(name))]:
            figures = (row.true_bits, row.model_bits, row.excess)
            cells = [f"{figure / num_documents:.3f}" for figure in figures]
            lines.append(
                ["none" if label == "-" else label, f"{row.num_choices / num_documents:.2f}", *cells]
            )
        console.print_line("")
        console.print_table((title, "choices", "true bits", "model bits", "excess"), lines)


def world_report_fields(report: WorldReport, *, copies_known: bool) -> dict[str, object]:
    """Return the shares and all documents; infinite and unknown values are null."""
    documents = [dataclasses.asdict(document) for document in report.documents]
    for document in documents:
        document["bits"] = document["bits"] if math.isfinite(document["bits"]) else None
    return {
        "book": "worldbook",
        "num_documents": len(documents),
        "well_formed": report.well_formed,
        "consistent": report.consistent,
        "copies": report.copies if copies_known else None,
        "bits_per_document": report.bits_per_document,
        "facts": {kind: report.right_facts(kind) for kind in FACT_TITLES},
        "documents": documents,
    }


def print_world_check(report: WorldReport, *, copies_known: bool) -> None:
    """Print the shares as a table, then the first documents that leave the grammar."""
    rows = {
        "documents of the world book": f"{len(report.documents):,}",
        "documents that are well-formed": f"{report.well_formed:.1%}",
        "documents that are also consistent": f"{report.consistent:.1%}",
    }
    for kind, title in FACT_TITLES.items():
        stated, right = report.right_facts(kind)
        if stated:
            rows[title] = f"{right / stated:.1%} of {stated:,}"
    if copies_known:
        rows["copies of training documents"] = f"{report.copies:.1%}"
    if report.bits_per_document is not None:
        rows["bits per consistent document"] = f"{report.bits_per_document:.1f}"
    console.print_table(("", ""), rows.items())
    outside = [(number, each) for number, each in enumerate(report.documents, 1) if not each.has_shape]
    for number, each in outside[:DOCUMENTS_LISTED]:
        place = f"character {each.leaves_at_character}, at {each.found!r}"
        console.print_line(f"document {number:,} leaves the grammar at {place}")
    if len(outside) > DOCUMENTS_LISTED:
        console.print_line(f"and {len(outside) - DOCUMENTS_LISTED:,} more; --json lists them all")

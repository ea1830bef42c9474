"""Compute the figures of 2026-11-18-rank-matrix.md."""

from __future__ import annotations

from records import result

measured = result("2026-11-18-rank-matrix.json")
RANKS = ("1", "2", "4", "8")


def matrix_rows():
    yield ("strategy", "compile", "optimizer", "precision", *(f"{number} ranks" for number in RANKS))
    for row in measured["matrix"]:
        found = [row[number] for number in RANKS]
        assert len({str(one) for one in found if one is not None}) == 1, "all digests of a row are equal"
        yield (*row["kind"], *("not finished" if one is None else one["weights"][:10] for one in found))


num_finished = sum(row[number] is not None for row in measured["matrix"] for number in RANKS)
num_on_four = sum(row["4"] is not None for row in measured["matrix"])

FIGURES = [
    f"torch {measured['versions']['torch']}",
    f"{measured['machine']['cores']} cores",
    f"{measured['settings']['steps']} steps",
    f"{num_finished} of {4 * len(measured['matrix'])} runs",
    f"{num_on_four} of {len(measured['matrix'])} combinations",
    list(matrix_rows()),
]
GIVEN = {
    "torch 2.13.0": "the version on two cores",
    "8 ranks": "the settings of the tests",
    "495 seconds": "printed by pytest",
    "20 times": "the settings of the second test",
    "414 seconds": "printed by pytest",
}

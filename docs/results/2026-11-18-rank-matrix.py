"""Compute the figures of 2026-11-18-rank-matrix.md."""

from __future__ import annotations

from records import result

measured = result("2026-11-18-rank-matrix.json")
calls = [measured, *measured["later"]]
RANKS = ("1", "2", "4", "8")

digests: dict[tuple[str, ...], dict[str, dict[str, str]]] = {}
for call in calls:
    assert call["versions"]["torch"] == measured["versions"]["torch"]
    assert call["settings"]["steps"] == measured["settings"]["steps"]
    for row in call["matrix"]:
        found = digests.setdefault(tuple(row["kind"]), {})
        for number in RANKS:
            if row.get(number) is not None:
                first = next(iter(found.values()), row[number])
                assert row[number] == first, "weights, optimizer state and metrics of a kind are equal"
                found[number] = row[number]


def matrix_rows():
    yield "strategy", "compile", "optimizer", "precision", "SHA-256 of the weights", "ranks"
    for kind, found in digests.items():
        yield *kind, found["1"]["weights"][:10], ", ".join(sorted(found))


assert all({"1", "2"} <= found.keys() for found in digests.values())
missing = [kind for kind, found in digests.items() if "4" not in found]
assert missing == [
    ("replicate", "on", "muon", "bf16"),
    ("shard", "off", "muon", "fp32"),
    ("shard", "off", "muon", "bf16"),
], "the words of the page"
assert all(("8" in found) == (kind[0] == "shard") for kind, found in digests.items())
for (strategy, *kind), found in digests.items():
    if strategy == "shard" and kind[0] == "off":
        other = digests["replicate", *kind]["1"]
        assert all(found["1"][part] == other[part] for part in ("weights", "optimizer"))

FIGURES = [
    f"torch {measured['versions']['torch']}",
    f"{measured['settings']['steps']} steps",
    f"{sum(map(len, digests.values()))} of the {len(RANKS) * len(digests)} combinations",
    f"The other {len(RANKS) * len(digests) - sum(map(len, digests.values()))} are",
    list(matrix_rows()),
]
GIVEN = {
    "torch 2.13.0": "the version on two cores",
    "495 seconds": "printed by pytest",
    "20 times": "the settings of the second test",
    "414 seconds": "printed by pytest",
}

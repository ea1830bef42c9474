"""Differences to a baseline are paired over seeds, with t intervals and corrected p-values."""

from __future__ import annotations

import statistics

import pytest

from bytewright.experiments.loss_metric import VALIDATION
from bytewright.experiments.records import RunRecord
from bytewright.experiments.results import SweepInfo
from bytewright.laws.inference import holm, student_tail
from bytewright.report.compare import group_by_setting
from bytewright.report.tables import compare_with_baseline, format_p, table_of_groups
from example_records import make_record

ENDS = {
    "base": [1.50, 1.52, 1.54],
    "shifted": [1.60, 1.63, 1.64],  # by about the same amount for every seed
    "noisy": [1.40, 1.60, 1.66],
}
ABOUT = SweepInfo(name="sweep", axes=["variant"], baseline={"variant": "base"})


def records_of(ends: dict[str, list[float]]) -> list[RunRecord]:
    return [
        make_record(f"{name}{n}", end, labels={"variant": name, "seed": n}, settings={"seed": n})
        for name, values in ends.items()
        for n, end in enumerate(values)
    ]


def test_the_table_has_paired_intervals_and_corrected_p_values() -> None:
    groups = group_by_setting(records_of(ENDS), ABOUT)
    table = table_of_groups(groups, VALIDATION, ABOUT, None)
    differences = compare_with_baseline(groups, groups[0], VALIDATION)
    base, shifted = (groups[n].values_by_seed("validation_loss") for n in (0, 1))
    pairs = [shifted[seed] - base[seed] for seed in range(3)]
    error = statistics.stdev(pairs) / 3**0.5
    found = differences["shifted"]
    assert found.value == pytest.approx(statistics.fmean(pairs))
    assert found.error == pytest.approx(error)
    cell = f"{found.value:+.4f} ± {4.302653 * error:.4f}"
    assert table.rows[1][table.columns.index("to baseline")] == cell
    raw = [student_tail(each.value / each.error, 2) for each in differences.values()]
    p_column = table.columns.index("p")
    assert [row[p_column] for row in table.rows] == [None, *map(format_p, holm(raw))]
    assert "seed by seed" in table.caption
    assert "Holm's correction for 2 comparisons" in table.caption


def test_one_comparison_needs_no_correction() -> None:
    groups = group_by_setting(records_of({name: ENDS[name] for name in ("base", "shifted")}), ABOUT)
    caption = table_of_groups(groups, VALIDATION, ABOUT, None).caption
    assert "p: probability" in caption
    assert "Holm" not in caption


def test_one_seed_has_a_difference_without_interval() -> None:
    groups = group_by_setting(records_of({name: ENDS[name][:1] for name in ENDS}), ABOUT)
    table = table_of_groups(groups, VALIDATION, ABOUT, None)
    assert "p" not in table.columns
    assert "±" not in "".join(str(cell) for row in table.rows for cell in row)
    assert str(table.rows[1][table.columns.index("to baseline")]).startswith("+0.0")

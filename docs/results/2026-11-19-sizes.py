"""Compute the figures of 2026-11-19-sizes.md: the choice of a setting, and a comparison of sizes in it."""

from __future__ import annotations

from math import sqrt
from statistics import correlation, mean, stdev

from records import result

from bytewright.laws.inference import compare_means

measured = result("2026-11-19-sizes.json")
scaling = result("2026-11-18-scaling.json")
MILLION = 1e6
CHOSEN, PRESENT = "Muon, QK-norm, heads of 32", "as isotoken"
SMALLEST, LARGEST = 128, 1280
SETS = {
    "test": "all test documents",
    "validation": "validation documents",
    "fitting": "test documents that fit",
}
NEAR, FAR = "10-99", "100-999"
CHI_SQUARED = {4: (0.48442, 11.1433), 8: (2.1797, 17.5345)}
"""The quantiles 0.025 and 0.975 of the chi-squared distribution, by its degrees of freedom."""


def excess(run, name: str = "test", *left_out: str) -> float:
    """Return the excess of a run in bits per byte, without some kinds of choice."""
    documents = measured["sets"][name]
    cells = zip(documents["cells"], run["model_bits"][name], documents["true_bits"], strict=True)
    return sum(bits - true for (kind, _, _), bits, true in cells if kind not in left_out) / documents["bytes"]


def recall_bits(run, decade: str) -> float:
    """Return the mean bits of a recall at distances of a decade; the true bits are 0."""
    documents = measured["sets"]["test"]
    place = documents["cells"].index(["recall", "-", decade])
    assert documents["true_bits"][place] == 0
    return run["model_bits"]["test"][place] / documents["choices"][place]


# The choice of a setting

settings: dict[str, list] = {}
for run in measured["runs"]:
    if run["sweep"] == "isotoken_settings":
        settings.setdefault(run["variant"], []).append(run)
for found in settings.values():
    found.sort(key=lambda run: run["seed"])
    assert [run["seed"] for run in found] == [0, 1, 2, 3, 4]


def losses(runs, name: str = "test") -> list[float]:
    return [run[f"{name}_bits_per_byte"] for run in runs]


limit = mean(losses(settings[PRESENT], "validation"))
allowed = {name: found for name, found in settings.items() if mean(losses(found, "validation")) <= limit}
chosen = min(allowed, key=lambda name: stdev(losses(allowed[name], "validation")))
assert chosen == CHOSEN, "the rule of the recipe chooses this setting"
chosen_deviation = stdev(losses(settings[CHOSEN], "validation"))
assert chosen_deviation < 0.0003


def setting_rows():
    yield "setting, seeds 0 to 4", "validation loss", "deviation", "test loss", "deviation, test"
    for name, found in settings.items():
        validation, test = losses(found, "validation"), losses(found)
        yield (
            name,
            f"{mean(validation):.5f}",
            f"{stdev(validation):.5f}",
            f"{mean(test):.5f}",
            f"{stdev(test):.5f}",
        )


def part(run, kind: str) -> float:
    """Return the excess of a run from one kind of choice."""
    return excess(run) - excess(run, "test", kind)


def deviation_of(name: str, kind: str) -> float:
    return stdev(part(run, kind) for run in settings[name])


def part_rows():
    yield (
        "setting, seeds 0 to 4", "recall", "mention", "total without recall",
        "bits per recall at distance 10–99", "at distance 100–999",
    )  # fmt: skip
    for name, found in settings.items():
        yield (
            name,
            *(f"{deviation_of(name, kind):.5f}" for kind in ("recall", "mention")),
            f"{stdev(excess(run, 'test', 'recall') for run in found):.5f}",
            *(", ".join(f"{recall_bits(run, decade):.2f}" for run in found) for decade in (NEAR, FAR)),
        )


# The comparison of sizes

sizes: dict[int, list] = {}
for run in sorted(measured["runs"], key=lambda run: (run["width"], run["seed"])):
    if run["sweep"] == "isotoken_judged":
        sizes.setdefault(run["width"], []).append(run)
for found in sizes.values():
    assert [run["seed"] for run in found] == [5, 6, 7, 8, 9]
floor = {name: documents["floor"] for name, documents in measured["sets"].items()}
assert all(abs(excess(run) + floor["test"] - run["test_bits_per_byte"]) < 1e-6 for run in sizes[SMALLEST])


def size_rows():
    yield (
        "N, millions",
        "width",
        "loss",
        "deviation",
        "above E",
        "documents that fit: loss",
        "their deviation",
        "above their E",
    )
    for width, found in sizes.items():
        test, fitting = losses(found), losses(found, "fitting")
        yield (
            f"{found[0]['parameters'] / MILLION:.1f}",
            width,
            f"{mean(test):.5f}",
            f"{stdev(test):.5f}",
            f"{mean(test) - floor['test']:.5f}",
            f"{mean(fitting):.5f}",
            f"{stdev(fitting):.5f}",
            f"{mean(fitting) - floor['fitting']:.5f}",
        )


def compare(name: str, *left_out: str) -> tuple[float, float]:
    """Return the difference of the smallest and the largest size, and their pooled deviation over seeds."""
    small, large = ([excess(run, name, *left_out) for run in sizes[width]] for width in (SMALLEST, LARGEST))
    return mean(small) - mean(large), sqrt((stdev(small) ** 2 + stdev(large) ** 2) / 2)


def in_deviations(name: str, *left_out: str) -> float:
    difference, deviation = compare(name, *left_out)
    return difference / deviation


def interval(name: str, *left_out: str) -> list[float]:
    """Return the 95 % interval of `in_deviations`; only the pooled deviation is uncertain."""
    return [in_deviations(name, *left_out) * sqrt(quantile / 8) for quantile in CHI_SQUARED[8]]


def comparison_rows():
    yield (
        "documents",
        "left out",
        "difference of means",
        "pooled deviation",
        "in pooled deviations",
        "95 % interval",
    )
    for name, words in SETS.items():
        for left_out in ((), ("recall",)):
            difference, deviation = compare(name, *left_out)
            low, high = interval(name, *left_out)
            yield (
                words,
                " and ".join(left_out) or "nothing",
                f"{difference:.5f}",
                f"{deviation:.5f}",
                f"{difference / deviation:.1f}",
                f"{low:.0f} to {high:.0f}",
            )


paired = compare_means(
    *({run["seed"]: run["test_bits_per_byte"] for run in sizes[width]} for width in (SMALLEST, LARGEST))
)
assert paired is not None
assert paired.is_paired
assert in_deviations("test") < 20 < in_deviations("fitting")
assert in_deviations("validation") < 20
assert all(in_deviations(name, "recall") > 20 for name in SETS)


def recall_rows():
    yield (
        "width",
        "bits per recall at distance 10–99, by seed",
        "at distance 100–999, by seed",
        "loss, by seed",
    )
    for width, found in sizes.items():
        yield (
            width,
            *(", ".join(f"{recall_bits(run, decade):.2f}" for run in found) for decade in (NEAR, FAR)),
            ", ".join(f"{loss:.4f}" for loss in losses(found)),
        )


without_best = [run for run in sizes[LARGEST] if run["seed"] != 9]
assert min(sizes[LARGEST], key=lambda run: run["test_bits_per_byte"])["seed"] == 9
spread_without_best = stdev(losses(without_best))
spread_of_largest = stdev(losses(sizes[LARGEST]))
rest_of_largest = stdev(excess(run, "test", "recall") for run in sizes[LARGEST])
share_of_recall = 1 - (rest_of_largest / spread_of_largest) ** 2


# The rate at the highest level


def at_rate(runs, lr: float) -> dict[tuple[int, int], dict]:
    return {
        (run["width"], run["seed"]): run for run in runs if run["lr"] == lr and run["sweep"] == "isoflop_high"
    }


low_rate, usual_rate = at_rate(measured["runs"], 1e-3), at_rate(scaling["runs"], 2e-3)
pairs = {pair: (run, usual_rate[pair]) for pair, run in sorted(low_rate.items())}


def rate_rows():
    yield (
        "width", "seed", "loss at 1e-3", "at 2e-3", "excess without recall at 1e-3", "at 2e-3",
        "bits per recall at distance 100–999 at 1e-3", "at 2e-3",
    )  # fmt: skip
    for (width, seed), both in pairs.items():
        yield (
            width,
            seed,
            *(f"{loss:.5f}" for loss in losses(both)),
            *(f"{excess(run, 'test', 'recall'):.5f}" for run in both),
            *(f"{recall_bits(run, FAR):.2f}" for run in both),
        )


differences = {
    pair: excess(low, "test", "recall") - excess(usual, "test", "recall")
    for pair, (low, usual) in pairs.items()
}
assert list(differences) == [(192, 0), (256, 1), (256, 2), (384, 1), (384, 2)]
assert all((difference < 0) == (width < 384) for (width, _), difference in differences.items())
narrow = [abs(difference) for (width, _), difference in differences.items() if width < 384]
wide = [abs(difference) for (width, _), difference in differences.items() if width == 384]

# Statements of the page

far = {width: [recall_bits(run, FAR) for run in found] for width, found in sizes.items()}
below = {width: [bits for bits in found if bits < 1.5] for width, found in far.items()}
assert [len(found) for found in below.values()] == [0, 2, 1, 1]
lower = sorted(bits for found in below.values() for bits in found)
others = sorted(bits for found in far.values() for bits in found if bits >= 1.5)
assert all(
    small > large for small, large in zip(losses(sizes[SMALLEST]), losses(sizes[LARGEST]), strict=True)
)
best = mean(losses(sizes[LARGEST])) - floor["test"]
judged_deviation = stdev(losses(sizes[SMALLEST], "validation"))
without_recall = [in_deviations(name, "recall") for name in SETS]
assert interval("fitting")[0] < 20
chosen_interval = [chosen_deviation * sqrt(4 / quantile) for quantile in reversed(CHI_SQUARED[4])]
with_wider_heads = stdev(losses(settings["Muon, QK-norm"], "validation"))
assert judged_deviation > 0.0003 < with_wider_heads


def recalls_per_byte(name: str) -> float:
    documents = measured["sets"][name]
    return documents["choices"][documents["cells"].index(["recall", "-", FAR])] / documents["bytes"]


assert 0.45 < recalls_per_byte("fitting") / recalls_per_byte("test") < 0.6
cancelled = correlation(
    [excess(run, "fitting") - excess(run, "fitting", "recall") for run in sizes[LARGEST]],
    [excess(run, "fitting", "recall") for run in sizes[LARGEST]],
)
assert cancelled < -0.5
assert deviation_of(PRESENT, "mention") > deviation_of(PRESENT, "recall")
stuck = [recall_bits(run, FAR) for run in settings[CHOSEN]]
gap = [recall_bits(run, FAR) for run in settings["QK-norm, heads of 32"] if run["seed"] == 3]
earlier = sorted(
    bits
    for run in scaling["runs"]
    if run["lr"] == 2e-3 and lower[-1] < (bits := recall_bits(run, FAR)) < others[0]
)
assert len(earlier) == 6
assert lower[-1] < gap[0] < others[0]
small = settings[CHOSEN][0]
FIGURES = [
    list(setting_rows()),
    list(part_rows()),
    list(size_rows()),
    list(comparison_rows()),
    list(recall_rows()),
    list(rate_rows()),
    f"differ by {in_deviations('test'):.1f} pooled deviations\ninstead of",
    f"the sizes differ by {in_deviations('fitting'):.1f} pooled deviations. Without\nrecall, "
    f"they differ by {min(without_recall):.0f} to {max(without_recall):.0f}",
    f"entropy: {floor['test']:.5f} for all test documents, and {floor['fitting']:.5f} for those",
    f"with {small['parameters'] / MILLION:.1f} million parameters (width {SMALLEST})\n"
    f"on {small['tokens'] / MILLION:.1f} million tokens",
    f"a deviation of {chosen_deviation:.5f} (95 % interval {chosen_interval[0]:.5f} to\n"
    f"{chosen_interval[1]:.5f})",
    f"setting has {with_wider_heads:.5f} and misses",
    f"seeds 5 to\n9 ({judged_deviation:.5f}).",
    f"need {min(stuck):.1f} to {max(stuck):.1f} bits at a distance",
    f"no longer vary: {deviation_of(CHOSEN, 'mention'):.5f} instead of "
    f"{deviation_of(PRESENT, 'mention'):.5f}",
    f"That of recall is {deviation_of(CHOSEN, 'recall'):.5f}, more than",
    f"named: {in_deviations('test'):.1f} pooled deviations instead of",
    f"On validation documents it is {in_deviations('validation'):.1f}.",
    f"into the context, it is {in_deviations('fitting'):.1f}.**",
    f"it is {without_recall[0]:.1f}** on all test documents, {without_recall[1]:.1f} on validation "
    f"documents, and {without_recall[2]:.1f} on documents",
    f"is {paired.value:.4f} ± {paired.half_width():.4f} bits per byte",
    f"is {best:.4f} above it, or {100 * best / floor['test']:.0f} %",
    f"need {lower[0]:.2f} to {lower[-1]:.2f} bits: two",
    f"The other {len(others)} need {others[0]:.2f} to {others[-1]:.2f}.",
    f"gap: one above with {gap[0]:.2f} bits, and six on the earlier page with {earlier[0]:.2f} to "
    f"{earlier[-1]:.2f} bits",
    f"deviation of {spread_without_best:.5f} instead of {spread_of_largest:.5f}",
    f"Recall causes {100 * share_of_recall:.0f} %",
    f"by {min(narrow):.4f} to {max(narrow):.4f}), and worse",
    f"by {min(wide):.4f} to {max(wide):.4f})",
]
GIVEN = {
    "differ by more than 20\nstandard deviations": "isotoken.toml",
    "instead of more than 20": "isotoken_judged.toml",
    "instead of more\n  than 20": "isotoken_judged.toml",
    "mentions and recent things at 40.4 million tokens, and recall at 80.7\nmillion": "2026-11-18-scaling.md",
    "heads of 32": "isotoken_settings.toml",
    "heads of 64": "isotoken_settings.toml",
    "deviation below 0.0003": "the expectation in isotoken_settings.toml",
    "distance of 100 to 999": "the decade of the cells",
    "needs 6.0": "2026-11-18-scaling.md",
    "Widths 128 and 1,280": "compare",
    "losses of width 1,280": "recall_rows",
    "limit of the interval is below 20": "asserted above",
    "At width 1,280, the variation of other": "asserted above",
    "figure was 7.7 at 40.4 million tokens and 32.9 at\n  80.7 million": "2026-11-18-scaling.md",
    "95 % t\n  interval": "compare_means",
    "these 20 runs": "four sizes with five seeds",
    "two of width 256, one of width 512 and one\nof width 1,280": "asserted above",
    "best seed, width 1,280": "asserted above",
    "with 40.4 million tokens, some": "isotoken_judged.toml",
    "less than 1.5 bits": "the border of `below`",
    "with 8e15 FLOPs, by mistake at 1e-3 instead of 2e-3": "isoflop_high.toml and the runs",
    "widths 192 and 256": "asserted above",
    "width\n384 (two": "asserted above",
    "setting: 2e-3 for AdamW": "isoflop.toml",
    "0.02 for Muon": "the default of OptimizerConfig",
    "width 64, which differed from\n  the largest by 4.7": "2026-11-18-scaling.md",
    "smallest has width 128": "isotoken_long.toml",
    "text had 1.9 GB": "isotoken_judged.toml",
    "comparison 1.3 GB": "isotoken.toml",
}

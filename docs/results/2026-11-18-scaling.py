"""Compute the figures of 2026-11-18-scaling.md: the measured isoFLOP runs next to the predictions.

Its last sections compare sizes at equal tokens, and the seeds of one size by kind of choice. The folder
`2026-11-18-scaling` has the fits with resampled seeds, which `bytewright fit` made: for test
documents, for those that fit into the context (`fitting`), and for the excess of facts (`facts`).
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from math import ceil, floor, log
from pathlib import Path
from runpy import run_path
from statistics import correlation, mean, median, stdev, variance

from records import percent, recipe, result, spell

from bytewright.laws import NUM_RESAMPLES
from bytewright.laws.bootstrap import SeedResampler
from bytewright.laws.inference import Difference, compare_means, holm, incomplete_beta
from bytewright.laws.law import Law, fit_law
from bytewright.laws.points import read_points
from bytewright.laws.power import OBJECTIVES

NAME = "2026-11-18-scaling"
measured = result(f"{NAME}.json")
fits = {"test": result(f"{NAME}/fit.json"), "fitting": result(f"{NAME}/fitting/fit.json")}
(facts_with_known_limit,) = (
    fit["values"]
    for fit in result(f"{NAME}/facts/fit.json")["fits"]
    if fit["known_limit"] and fit["objective"] == "log"
)
predicted = run_path(str(Path(__file__).with_name(f"{NAME}-predictions.py")))
of_data, bytes_per_document = predicted["of_data"], predicted["bytes_per_document"]
MANY = predicted["MANY"]
entropy = measured["sets"]["test"]["floor"]
MILLION = 1e6


def minus(text: str) -> str:
    return text.replace("-", "−")


def at_least(value: float, digits: int) -> str:
    """Write a lower bound, rounded down."""
    return f"{floor(value * 10**digits) / 10**digits:.{digits}f}"


def at_most(value: float, digits: int) -> str:
    """Write an upper bound, rounded up."""
    return f"{ceil(value * 10**digits) / 10**digits:.{digits}f}"


def settings_of(points):
    """Return the points of each setting (width or N, D), over seeds, in the order of compute and size."""
    found = {}
    for point in sorted(points, key=lambda it: (round(log(it["flops"]), 1), it["parameters"], it["seed"])):
        found.setdefault((point["parameters"], point["tokens"]), []).append(point)
    return found


widths = {run["parameters"]: run["width"] for run in measured["runs"]}
settings = settings_of(measured["points"])
levels: dict[str, list] = {}
for (_, _), group in settings.items():
    levels.setdefault(f"{group[0]['flops']:.0e}".replace("e+", "e"), []).append(group)


def facts(group) -> float:
    """Return the mean excess of facts in bits per byte."""
    return mean(point["excess"]["fact"] for point in group)


def losses(group) -> list[float]:
    return [point["loss"] for point in group]


def deviation(values) -> str:
    return f"{stdev(values):.5f}" if len(values) > 1 else "–"


def point_rows():
    yield (
        "FLOPs", "width", "N, millions", "D, millions", "seeds", "loss", "deviation", "above E",
        "facts: data alone", "facts: measured", f"facts: {MANY} readings",
    )  # fmt: skip
    for level, groups in levels.items():
        for group in groups:
            n, d = group[0]["parameters"], group[0]["tokens"]
            yield (
                level,
                widths[n],
                f"{n / MILLION:.1f}",
                f"{d / MILLION:.1f}",
                len(group),
                f"{mean(losses(group)):.5f}",
                deviation(losses(group)),
                f"{mean(losses(group)) - entropy:.5f}",
                f"{of_data(d) / bytes_per_document:.5f}",
                f"{facts(group):.5f}",
                f"{of_data(d, MANY) / bytes_per_document:.5f}",
            )


# Facts: from one number of tokens to four times as many, at one width


def steps_of_tokens():
    """Return pairs of groups of one width, the second with about four times the tokens."""
    by_width: dict[int, list] = {}
    for (n, _), group in settings.items():
        by_width.setdefault(widths[n], []).append(group)
    for width, groups in sorted(by_width.items()):
        groups.sort(key=lambda group: group[0]["tokens"])
        for few, many in pairwise(groups):
            yield width, few, many


def exponent(few, many, value) -> float:
    return log(value(few) / value(many)) / log(many[0]["tokens"] / few[0]["tokens"])


def step_rows():
    yield (
        "width", "from D, millions", "to", "seeds", "facts: measured b", "facts: data alone",
        f"facts: {MANY} readings",
    )  # fmt: skip
    for width, few, many in steps_of_tokens():
        yield (
            width,
            f"{few[0]['tokens'] / MILLION:.1f}",
            f"{many[0]['tokens'] / MILLION:.1f}",
            f"{len(few)} and {len(many)}",
            f"{exponent(few, many, facts):.2f}",
            f"{exponent(few, many, lambda it: of_data(it[0]['tokens'])):.2f}",
            f"{exponent(few, many, lambda it: of_data(it[0]['tokens'], MANY)):.2f}",
        )


steps = list(steps_of_tokens())
early = [exponent(few, many, facts) for _, few, many in steps if few[0]["tokens"] < 20e6]
late = [exponent(few, many, facts) for _, few, many in steps if few[0]["tokens"] > 50e6]
bounds = [exponent(few, many, lambda it: of_data(it[0]["tokens"])) for _, few, many in steps]
facts_of_data_alone = min(bounds), max(bounds)
assert max(late) < min(bounds)
above_bound = min(facts(group) / (of_data(d) / bytes_per_document) for (_, d), group in settings.items())
above_many = [
    widths[n] for (n, d), group in settings.items() if facts(group) * bytes_per_document > of_data(d, MANY)
]
assert above_many == [64], "all but the smallest model are below the second prediction"
assert above_bound > 1, "no run is below the bound"


# Fits

(capacity_limit,) = (
    each["asymptotic"]
    for each in result(f"{NAME}/facts/fit.json")["predictions"]
    if each["name"].startswith("a ")
)
assert (
    not facts_with_known_limit["a"]["interval"][0]
    <= capacity_limit
    <= facts_with_known_limit["a"]["interval"][1]
)


def interval(value, digits=3) -> str:
    if value["interval"] is None:
        return f"{value['value']:.{digits}f}"
    low, high = value["interval"]
    return minus(f"{value['value']:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})")


def exponent_rows():
    law = predicted["once"], predicted["often"]
    yield "exponents of the excess of facts", "parameters (a)", "tokens (b)"
    yield 'predicted: fit to "both"', f"{law[0].size_exponent:.3f}", f"{law[0].data_exponent:.3f}"
    yield f'predicted: fit to "both, {MANY} readings"', "none (A = 0)", f"{law[1].data_exponent:.3f}"
    values = facts_with_known_limit
    yield "measured: fit with the known E = 0", interval(values["a"]), interval(values["b"])


def law_rows():
    yield "law of the total loss", "documents", "E", "a", "b"
    for name, words in (("test", "all"), ("fitting", "that fit")):
        for each in fits[name]["fits"]:
            values = each["values"]
            yield each["name"], words, interval(values["E"], 4), interval(values["a"]), interval(values["b"])


def recovery_rows():
    yield "procedure", "documents", "points", "E", "true E", "difference", "in standard errors"
    for name, words in (("test", "all"), ("fitting", "that fit")):
        for each in fits[name]["recovery"]:
            found, true = each["estimate"], each["true"]
            if found is None:
                yield each["procedure"], words, each["data"], "not possible", f"{true:.4f}", "–", "–"
                continue
            yield (
                each["procedure"],
                words,
                each["data"],
                interval(found, 4),
                f"{true:.4f}",
                minus(f"{100 * (found['value'] / true - 1):+.1f} %"),
                minus(f"{each['errors_from_true']:+.1f}"),
            )


most_seeds = max(len(group) for group in settings.values())
"""The largest number of seeds of a setting, which determines the degrees of freedom of the intervals."""


def resampled_limits(objective) -> list[float]:
    """Return the E of resamples of the documents that fit into the context, drawn as `fit` does."""
    points = read_points(Path(__file__).with_name(f"{NAME}-fitting.json"))
    law, resampler = fit_law(points, objective=objective), SeedResampler(points)
    draws = (resampler.draw() for _ in range(NUM_RESAMPLES))
    return [fit_law(points, objective=objective, losses=draw, start=law).limit for draw in draws]


JOINT = {
    "joint fit, squared error of ln L": "log",
    "joint fit, squared error of L": "linear",
    "joint fit, Huber loss of ln L": "huber",
}
assert set(JOINT.values()) == set(OBJECTIVES)
joint_fits = {
    JOINT[each["procedure"]]: each
    for each in fits["fitting"]["recovery"]
    if each["procedure"] in JOINT and each["data"] == "all"
}
resampled = {objective: resampled_limits(objective) for objective in joint_fits}
fitting_entropy = joint_fits["log"]["true"]
half_widths = []
for each in joint_fits.values():
    low, high = each["estimate"]["interval"]
    assert low < fitting_entropy < each["estimate"]["value"] < high
    half_widths.append((high - low) / 2 / fitting_entropy)
for each in fits["test"]["recovery"]:
    if each["procedure"] in JOINT:
        assert each["data"] != "all" or each["estimate"]["interval"][0] > entropy, "the true E is outside"
lowest_limit = min(map(min, resampled.values()))
assert lowest_limit > 0, "no resample is at the bound"

(envelope_of_fitting,) = (
    each["estimate"]
    for each in fits["fitting"]["recovery"]
    if "envelope" in each["procedure"] and each["data"] == "all"
)
minima_of_fitting = [each["estimates"]["lowest"]["value"] for each in fits["fitting"]["levels"]]
falls = [few - many for few, many in pairwise(minima_of_fitting)]
assert envelope_of_fitting["value"] == 0, "the envelope is at the bound"
assert falls[0] < falls[1], "the minima do not approach a limit"


def recovered(name: str) -> dict[str, float]:
    """Return the relative error of E of each joint fit with all points."""
    return {
        each["procedure"]: each["estimate"]["value"] / each["true"] - 1
        for each in fits[name]["recovery"]
        if each["data"] == "all" and "envelope" not in each["procedure"]
    }


def level_rows():
    yield (
        "level, FLOPs", "runs", "sizes with several seeds", "best N, millions", "best D, millions",
        "lowest loss", "lowest measured",
    )  # fmt: skip
    for each, (level, groups) in zip(fits["test"]["levels"], levels.items(), strict=True):
        best = groups[best_group(groups)]
        values = each["estimates"]
        yield (
            level,
            each["num_points"],
            sum(len(group) > 1 for group in groups),
            million_interval(values["best_size"]),
            million_interval(values["best_tokens"], 0),
            interval(values["lowest"], 4),
            f"{mean(losses(best)):.4f} at width {widths[best[0]['parameters']]}",
        )


def best_group(groups) -> int:
    """Return the place of the size with the lowest loss at a level."""
    return min(range(len(groups)), key=lambda place: mean(losses(groups[place])))


for groups in levels.values():
    assert 0 < best_group(groups) < len(groups) - 1, "every level brackets its minimum"
best_sizes = [each["estimates"]["best_size"] for each in fits["test"]["levels"]]


def million_interval(value, digits=1) -> str:
    scaled = {"value": value["value"] / MILLION, "interval": value["interval"]}
    if value["interval"] is not None:
        scaled["interval"] = [each / MILLION for each in value["interval"]]
    return interval(scaled, digits)


# Kinds of choice


def kind_rows():
    ends = {
        "4.3 M, 278.7 M": min(settings.values(), key=lambda group: mean(losses(group))),
        "83.6 M, 15.5 M": settings[max(settings)],
        "14.6 M, 5.3 M": max(settings.values(), key=lambda group: mean(losses(group))),
    }
    for label, group in ends.items():
        n, d = group[0]["parameters"], group[0]["tokens"]
        assert label == f"{n / MILLION:.1f} M, {d / MILLION:.1f} M"
    yield "excess by kind: N, D", *ends
    first = next(iter(ends.values()))[0]["excess"]
    for kind in sorted(first, key=lambda kind: -first[kind]):
        values = [mean(point["excess"][kind] for point in group) for group in ends.values()]
        if max(values) >= 0.0005:
            yield kind, *(minus(f"{value:.5f}") for value in values)
    yield "total", *(f"{mean(losses(group)) - entropy:.5f}" for group in ends.values())


# Rates


def rate_rows():
    runs = [run for run in measured["runs"] if run["sweep"] == "isoflop_rate"]
    runs = [run for run in runs if run["seed"] == 0]
    rates = sorted({run["lr"] for run in runs})
    yield "width, updates", *(f"{lr:g}" for lr in rates)
    for width in sorted({run["width"] for run in runs}):
        found = {run["lr"]: run for run in runs if run["width"] == width}
        cells = [f"{found[lr]['test_bits_per_byte']:.5f}" for lr in rates]
        yield f"{width}, {found[rates[0]]['steps']:,}", *cells


def at_rate(width: int, lr: float) -> float:
    (found,) = (
        run["test_bits_per_byte"]
        for run in measured["runs"]
        if (run["width"], run["lr"], run["sweep"], run["seed"]) == (width, lr, "isoflop_rate", 0)
    )
    return found


# Equal tokens

EQUAL_TOKENS, TWICE = 40_370_176, 80_740_352
ByWidth = dict[int, dict[int, float]]
at_rate_of_all = [run for run in measured["runs"] if run["lr"] == measured["lr"] and run["sweep"] != "repeat"]
runs_of: dict[tuple[int, int], dict[int, dict]] = {}
"""Runs at the chosen rate by seed, for each width and number of tokens."""
for run in sorted(at_rate_of_all, key=lambda it: (it["width"], it["tokens"], it["seed"])):
    runs_of.setdefault((run["width"], run["tokens"]), {})[run["seed"]] = run


def losses_at(tokens: int) -> ByWidth:
    """Return the losses after a number of tokens by width and seed."""
    return {
        width: {seed: run["test_bits_per_byte"] for seed, run in found.items()}
        for (width, read), found in runs_of.items()
        if read == tokens
    }


equal, twice = losses_at(EQUAL_TOKENS), losses_at(TWICE)
parameters = {width: n for n, width in widths.items()}
LARGEST = 1280
assert max(equal) == max(twice) == LARGEST


def compared(of_width: ByWidth) -> list[int]:
    """Return the widths with several seeds, without the largest one."""
    return [width for width, found in of_width.items() if len(found) > 2 and width != LARGEST]


def pooled_deviation(*groups: dict[int, float]) -> float:
    """Return the standard deviation over seeds, pooled over groups."""
    squares = sum((value - mean(group.values())) ** 2 for group in groups for value in group.values())
    return (squares / sum(len(group) - 1 for group in groups)) ** 0.5


def size_rows(of_width: ByWidth):
    yield "N, millions", "width", "seeds", "loss", "deviation", "above E"
    for width, found in of_width.items():
        loss = mean(found.values())
        yield (
            f"{parameters[width] / MILLION:.1f}",
            width,
            len(found),
            f"{loss:.5f}",
            f"{stdev(found.values()):.5f}",
            f"{loss - entropy:.5f}",
        )


def apart(of_width: ByWidth, width: int) -> float:
    """Return the difference of the means of a width and of the largest one."""
    return mean(of_width[width].values()) - mean(of_width[LARGEST].values())


def median_apart(of_width: ByWidth, width: int) -> float:
    return median(of_width[width].values()) - median(of_width[LARGEST].values())


def in_deviations(of_width: ByWidth, width: int) -> float:
    return apart(of_width, width) / pooled_deviation(of_width[width], of_width[LARGEST])


CHI_SQUARED = 1.2373, 14.4494
"""The quantiles 0.025 and 0.975 of the chi-squared distribution with 6 degrees of freedom."""
runs_of_128 = len(equal[128]) + len(equal[LARGEST])
assert runs_of_128 == len(twice[128]) + len(twice[LARGEST]) == 6 + 2


def deviations_interval(of_width: ByWidth) -> str:
    """Return the 95 % interval of `in_deviations(of_width, 128)`; only the pooled deviation is uncertain."""
    low, high = (in_deviations(of_width, 128) * (quantile / 6) ** 0.5 for quantile in CHI_SQUARED)
    return f"{low:.0f} to {high:.0f}"


def paired(of_width: ByWidth, width: int) -> Difference:
    found = compare_means(of_width[width], of_width[LARGEST])
    assert found is not None
    assert found.is_paired
    return found


def apart_rows(of_width: ByWidth):
    yield (
        f"width, compared with {LARGEST:,}", "difference of means", "in pooled deviations",
        "in deviations of this width", f"in deviations of {LARGEST:,}", "paired difference",
    )  # fmt: skip
    for width in compared(of_width):
        difference = apart(of_width, width)
        found = paired(of_width, width)
        yield (
            width,
            f"{difference:.4f}",
            f"{in_deviations(of_width, width):.1f}",
            f"{difference / stdev(of_width[width].values()):.1f}",
            f"{difference / stdev(of_width[LARGEST].values()):.1f}",
            f"{found.value:.4f} ± {found.half_width():.4f}",
        )


assert compared(twice) == [128]
assert apart(twice, 128) > 20 * stdev(twice[LARGEST].values())
assert all(twice[128][seed] > loss for seed, loss in twice[LARGEST].items())
for of_width in (equal, twice):
    assert max(in_deviations(of_width, width) for width in compared(of_width)) < 20, "the goal is missed"
p_values = [[paired(found, width).p_value for width in compared(found)] for found in (equal, twice)]
highest_p = max(holm(p_values[0]))
assert highest_p < 0.05, "every difference at equal tokens is significant"
p_of_all = holm([*p_values[0], *p_values[1]])
assert [p < 0.05 for p in p_of_all] == [False, True, False, False, False]
assert len({f"{p:.3f}" for p in p_of_all if p >= 0.05}) == 1


def more_variance_p(few: dict[int, float], many: dict[int, float]) -> float:
    """Return the two-sided p-value of the F test of equal variances of two groups."""
    degrees = len(few) - 1, len(many) - 1
    ratio = variance(many.values()) / variance(few.values())
    below = incomplete_beta(
        degrees[1] * ratio / (degrees[1] * ratio + degrees[0]), degrees[1] / 2, degrees[0] / 2
    )
    return 2 * min(below, 1 - below)


# The excess of each seed, by kind of choice

VARYING = "recall", "mention", "recent thing", "result"
Excess = dict[str, float]


def excess_of(run, name: str = "test") -> Excess:
    """Return the excess of a run in bits per byte by kind of choice."""
    documents, found = measured["sets"][name], {}
    for (kind, _, _), bits, true in zip(
        documents["cells"], run["model_bits"][name], documents["true_bits"], strict=True
    ):
        found[kind] = found.get(kind, 0.0) + (bits - true) / documents["bytes"]
    return found


above_bound_of_runs = min(
    excess_of(run)["fact"] / (of_data(run["tokens"]) / bytes_per_document) for run in measured["runs"]
)
assert above_bound_of_runs > 1, "no run is below the bound"


def without(run, *left_out: str, name: str = "test") -> float:
    """Return the excess of a run without some kinds of choice."""
    return sum(value for kind, value in excess_of(run, name).items() if kind not in left_out)


def excess_without(tokens: int, *left_out: str, name: str = "test") -> ByWidth:
    """Return the excess without some kinds, by width and seed, of the sizes with the same tokens."""
    return {
        width: {seed: without(run, *left_out, name=name) for seed, run in found.items()}
        for (width, read), found in runs_of.items()
        if read == tokens
    }


long_settings = {
    setting: list(found.values())
    for setting, found in runs_of.items()
    if setting[1] >= EQUAL_TOKENS and len(found) > 2
}
assert all(
    abs(run["test_bits_per_byte"] - entropy - without(run)) < 1e-6
    for found in long_settings.values()
    for run in found
), "the kinds add up to the loss above E"


def share_of_recall(width: int, tokens: int) -> float:
    """Return which share of the variance of the excess disappears without recall."""
    found = long_settings[width, tokens]
    return 1 - variance([without(run, "recall") for run in found]) / variance([without(run) for run in found])


def variation_rows():
    """Yield the deviations over seeds of the excess and of its parts."""
    yield "width", "D, millions", "seeds", "total", *VARYING, "all other kinds", "total without recall"
    for (width, tokens), found in long_settings.items():
        parts = [[excess_of(run)[kind] for run in found] for kind in VARYING]
        parts.append([without(run, *VARYING) for run in found])
        total = [without(run) for run in found]
        rest = [without(run, "recall") for run in found]
        cells = (f"{stdev(values):.5f}" for values in [total, *parts, rest])
        yield width, f"{tokens / MILLION:.1f}", len(found), *cells


def recall_bits(run, decade: str) -> float:
    """Return the mean bits of a recall at distances of a decade; the true bits are 0."""
    documents = measured["sets"]["test"]
    place = documents["cells"].index(["recall", "-", decade])
    assert documents["true_bits"][place] == 0
    return run["model_bits"]["test"][place] / documents["choices"][place]


NEAR, FAR = "10-99", "100-999"
CONTEXT = 512
bytes_per_token = measured["sets"]["test"]["bytes"] / measured["sets"]["test"]["tokens"]


def recall_rows():
    yield (
        "width", "D, millions", f"bits per recall at distance {NEAR}, by seed".replace("-", "–"),
        f"at distance {FAR}, by seed".replace("-", "–"),
    )  # fmt: skip
    for (width, tokens), found in long_settings.items():
        cells = (", ".join(f"{recall_bits(run, decade):.2f}" for run in found) for decade in (NEAR, FAR))
        yield width, f"{tokens / MILLION:.1f}", *cells


excesses = [excess_of(run) for run in long_settings[128, EQUAL_TOKENS]]
assert correlation([each["recall"] for each in excesses], [each["mention"] for each in excesses]) < -0.5
by_setting = {
    setting: stdev([excess_of(run)["recent thing"] for run in found])
    for setting, found in long_settings.items()
}
assert max(by_setting, key=lambda setting: by_setting[setting]) == (64, EQUAL_TOKENS)
assert share_of_recall(256, 69_681_152) < 0


def nears(width: int) -> list[float]:
    """Return the bits per recall at the nearer distance of the runs of a width in the table."""
    return [recall_bits(run, NEAR) for (w, _), found in long_settings.items() if w == width for run in found]


near_of_128 = nears(128)
BETWEEN = 0.8
"""A number of bits between the two groups of runs of width 128."""
lower = [bits for bits in near_of_128 if bits < BETWEEN]
upper = [bits for bits in near_of_128 if bits >= BETWEEN]
num_lower = [
    sum(recall_bits(run, NEAR) < BETWEEN for run in long_settings[128, tokens])
    for tokens in (EQUAL_TOKENS, 54_116_352, TWICE)
]
highest_of_wide = max(bits for (width, _) in long_settings if width > 128 for bits in nears(width))
longest_of_128 = runs_of[128, 216_432_640][0]
shortest = runs_of[512, 5_341_184]
at_chance = mean(recall_bits(run, FAR) for run in shortest.values())
of_192 = {seed: recall_bits(run, FAR) for seed, run in runs_of[192, 113_033_216].items()}
far_of_128 = {seed: recall_bits(run, FAR) for seed, run in runs_of[128, TWICE].items()}
lowest_far = min(far_of_128, key=lambda seed: far_of_128[seed])
assert sorted(of_192, key=lambda seed: of_192[seed])[:2] == [1, 4]
assert lowest_far == 1
recalls = {
    width: [excess_of(run)["recall"] for run in runs_of[width, TWICE].values()] for width in (128, LARGEST)
}
assert min(recalls[128]) < min(recalls[LARGEST])


LEFT_OUT = ((), ("recall",), ("mention",), ("recall", "mention"))


def left_out_rows():
    yield (
        "D, millions", "left out", "difference of means", "pooled deviation", "in pooled deviations",
        "95 % interval", "validation documents", "documents that fit",
    )  # fmt: skip
    for tokens in (EQUAL_TOKENS, TWICE):
        for kinds in LEFT_OUT:
            found = excess_without(tokens, *kinds)
            others = (excess_without(tokens, *kinds, name=name) for name in ("validation", "fitting"))
            yield (
                f"{tokens / MILLION:.1f}",
                " and ".join(kinds) or "nothing",
                f"{apart(found, 128):.5f}",
                f"{pooled_deviation(found[128], found[LARGEST]):.5f}",
                f"{in_deviations(found, 128):.1f}",
                deviations_interval(found),
                *(f"{in_deviations(each, 128):.1f}" for each in others),
            )


assert all(
    int(deviations_interval(excess_without(tokens, *kinds)).split()[0]) < 20
    for tokens in (EQUAL_TOKENS, TWICE)
    for kinds in LEFT_OUT
), "all lower limits are below 20"


def highest_without_one_kind(tokens: int) -> float:
    """Return the highest `in_deviations` of width 128 if one kind other than recall is left out."""
    kinds = [kind for kind in excess_of(longest_of_128) if kind != "recall"]
    return max(in_deviations(excess_without(tokens, kind), 128) for kind in kinds)


at_other_rate = [
    run for run in measured["runs"] if run["sweep"] == "isotoken" and run["lr"] != measured["lr"]
]

# The run that was made again with later code

(repeat,) = (run for run in measured["runs"] if run["sweep"] == "repeat")
(original,) = (run for run in measured["runs"] if f"repeat-{run['name']}" == repeat["name"])
repeat_shift = abs(repeat["test_bits_per_byte"] - original["test_bits_per_byte"])
repeat_deviation = stdev(losses(settings[repeat["parameters"], repeat["tokens"]]))
by_sweep = Counter(run["sweep"] for run in measured["runs"])
num_isotoken = by_sweep["isotoken"]
num_long = by_sweep["isotoken_long"]
num_rates = len(measured["runs"]) - len(measured["points"]) - num_isotoken - num_long - by_sweep["repeat"]

lowest_run = min(measured["runs"], key=lambda run: run["test_bits_per_byte"])
assert (lowest_run["width"], lowest_run["tokens"]) == (256, 278_691_840)
lowest_of_largest = min(run["test_bits_per_byte"] for run in measured["runs"] if run["width"] == LARGEST)
assert lowest_of_largest == min(twice[LARGEST].values())
share_of = recovered("test"), recovered("fitting")
best_point = min(measured["points"], key=lambda point: point["loss"])
assert widths[best_point["parameters"]] == 256
recall = best_point["excess"]["recall"]
num_seeds = Counter(len(group) for group in settings.values())
seeds_of_highest = {widths[group[0]["parameters"]]: len(group) for group in levels["8e15"]}
assert seeds_of_highest == {192: 5, 256: 5, 384: 5, 512: 1, 768: 1, 1024: 1, 1280: 1}
assert most_seeds == 5
assert all(max(map(len, groups)) == most_seeds for groups in levels.values())
assert sum(len(few) > 1 and len(many) > 1 for _, few, many in steps) == 4
with_five = {
    level: [widths[group[0]["parameters"]] for group in groups if len(group) == 5]
    for level, groups in levels.items()
}
assert with_five == {"5e14": [128, 192], "2e15": [192, 256], "8e15": [192, 256, 384]}
for level, groups in levels.items():
    in_order = sorted(groups, key=lambda group: mean(losses(group)))
    lowest_of_level = {widths[group[0]["parameters"]] for group in in_order[: len(with_five[level])]}
    assert lowest_of_level == set(with_five[level]), "the sizes with five seeds have the lowest losses"
assert [widths[group[0]["parameters"]] for group in levels["2e15"] if len(group) == 1] == [128, 384, 512, 768]

# The highest level: its runs come from two texts and from three versions of the code

AT_256, AT_384, AT_192 = (256, 278_691_840), (384, 141_279_232), (192, 452_100_096)
of_256, of_384, of_192_long = (runs_of[setting] for setting in (AT_256, AT_384, AT_192))
loss_of = {
    setting: mean(run["test_bits_per_byte"] for run in runs_of[setting].values())
    for setting in (AT_256, AT_384, AT_192)
}
FOURTH, FIFTH = "8c14f1a2", "ccc382d5"
"""The commits of the last two versions of the code."""
of_commit = Counter(run.get("commit") for run in measured["runs"])
for found in (of_256, of_384):
    assert [run.get("commit") for run in found.values()] == [None, FOURTH, FOURTH, FIFTH, FIFTH]
assert [run.get("commit") for run in of_192_long.values()] == [FOURTH, FIFTH, FIFTH, FIFTH, FIFTH]
num_last = of_commit[FOURTH] + of_commit[FIFTH]
assert sum(map(len, (of_256, of_384, of_192_long))) - 2 == num_last
NEW_TEXT, OLD_TEXT = (
    recipe("isoflop_high")["corpus"]["worldbook"],
    recipe("isoflop_low")["corpus"]["worldbook"],
)
"""The bytes of the text of the last runs, and of all others."""
assert AT_192[1] * bytes_per_token < NEW_TEXT, "the longest run reads no text twice"
assert AT_256[1] * bytes_per_token < OLD_TEXT
without_recall = {
    setting: mean(without(run, "recall") for run in runs_of[setting].values())
    for setting in (AT_256, AT_384, AT_192)
}
far_of_highest = {
    width: {seed: recall_bits(run, FAR) for seed, run in found.items()}
    for width, found in ((192, of_192_long), (256, of_256), (384, of_384))
}
LOWER = 1.0
"""A number of bits between the two groups of runs at the longer distance."""


def spread(bits_of: dict[int, float], *seeds: int) -> str:
    """Write the lowest and the highest bits of some seeds."""
    found = [bits_of[seed] for seed in seeds]
    return f"{min(found):.2f} to {max(found):.2f}"


def in_lower_group(bits_of: dict[int, float]) -> list[int]:
    """Return the seeds that need few bits at the longer distance."""
    return [seed for seed, bits in bits_of.items() if bits < LOWER]


assert {width: in_lower_group(bits_of) for width, bits_of in far_of_highest.items()} == {
    192: [1, 3, 4],
    256: [1, 2, 3],
    384: [3],
}
assert in_lower_group(of_192) == [1, 4]
assert percent(share_of_recall(192, 113_033_216)) == percent(share_of_recall(*AT_192))
assert all(stdev(losses(group)) > abs(loss_of[AT_192] - loss_of[AT_256]) for group in levels["8e15"][:3])

# The three smallest sizes of the highest level, in pairs of equal seeds

MEASURES = {
    "loss": lambda run: run["test_bits_per_byte"],
    "without recall": lambda run: without(run, "recall"),
    "documents that fit": lambda run: run["fitting_bits_per_byte"],
}
PAIRS = {"256 − 192": (AT_256, AT_192), "384 − 192": (AT_384, AT_192), "384 − 256": (AT_384, AT_256)}


def paired_at_highest(measure: str, seeds: range = range(5)) -> list[Difference]:
    """Return the paired differences of the three sizes, for some of the seeds."""
    values = {
        setting: {seed: MEASURES[measure](runs_of[setting][seed]) for seed in seeds}
        for setting in (AT_256, AT_384, AT_192)
    }
    found = [compare_means(values[ours], values[theirs]) for ours, theirs in PAIRS.values()]
    assert all(each is not None and each.is_paired for each in found)
    return [each for each in found if each is not None]


def corrected(measure: str, seeds: range = range(5)) -> list[float]:
    """Return the p-values of the three comparisons of a measure with Holm's correction."""
    return holm([each.p_value for each in paired_at_highest(measure, seeds)])


def signed(value: float, digits: int = 5) -> str:
    """Write a number that can be negative; without a sign if it is 0 after rounding."""
    return minus(f"{round(value, digits) + 0.0:.{digits}f}")


def small(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def paired_rows():
    yield "widths", *(cell for measure in MEASURES for cell in (measure, "p, Holm"))
    columns = [zip(paired_at_highest(measure), corrected(measure), strict=True) for measure in MEASURES]
    for words, *cells in zip(PAIRS, *columns, strict=True):
        yield (
            words,
            *(
                cell
                for found, p in cells
                for cell in (f"{signed(found.value)} ± {found.half_width():.5f}", small(p))
            ),
        )


LATER, SAME_TEXT = range(3, 5), range(1, 5)
"""The last seeds of widths 256 and 384, and the seeds with the same text."""
assert loss_of[AT_256] < loss_of[AT_192] < loss_of[AT_384]
assert min(corrected("loss")) > 0.05
uncorrected = [found.p_value for found in paired_at_highest("loss")]
assert [p < 0.05 for p in uncorrected] == [False, True, False]
assert [p < 0.001 for p in corrected("without recall")] == [False, True, True]
assert [p < 0.05 for p in corrected("documents that fit")] == [False, True, True]
for measure, are_significant in (("without recall", True), ("documents that fit", False), ("loss", False)):
    assert [p < 0.05 for p in corrected(measure, SAME_TEXT)[1:]] == [are_significant] * 2
    assert all(each.value > 0 for each in paired_at_highest(measure, SAME_TEXT)[1:])
for seed in LATER:
    rest = {setting: without(runs_of[setting][seed], "recall") for setting in (AT_192, AT_256, AT_384)}
    assert max(rest, key=lambda setting: rest[setting]) == AT_384
worse_without_recall = [each.value for each in paired_at_highest("without recall")[1:]]
assert len({f"{value:.5f}" for value in worse_without_recall}) == 1
shares = [share_of_recall(*setting) for setting in (AT_192, AT_256, AT_384)]

# Whether smaller sizes have higher losses

(at_64, at_128) = (
    {point["seed"]: point["loss"] for point in group}
    for group in levels["5e14"]
    if widths[group[0]["parameters"]] <= 128
)
small_side = compare_means(at_64, at_128)
assert small_side is not None
assert small_side.is_paired
assert small_side.degrees == 2
assert small_side.p_value > 0.05
assert best_sizes[2]["interval"][0] < parameters[192] < parameters[256] < best_sizes[2]["interval"][1]
assert best_sizes[2]["interval"][1] < parameters[384]

# The growth of the best size, by the law and by the parabolas

growth = {
    each["known_limit"]: each["values"]["best_size_exponent"]
    for each in fits["test"]["fits"]
    if each["objective"] == "log"
}
(known_law,) = (
    {name: value["value"] for name, value in each["values"].items()}
    for each in fits["test"]["fits"]
    if each["objective"] == "log" and each["known_limit"]
)
best_of_law = Law(
    limit=known_law["E"],
    size_scale=known_law["A"],
    size_exponent=known_law["a"],
    data_scale=known_law["B"],
    data_exponent=known_law["b"],
).best_size(fits["test"]["levels"][2]["flops"])
assert abs(best_of_law / parameters[384] - 1) < 0.05, "about the size of width 384"

share_of_levels = [each["value"] / best_sizes[0]["value"] for each in best_sizes[1:]]
assert best_sizes[0]["interval"][1] < 2e6, "the expectation of the lowest level was missed"

best_size_exponent = fits["test"]["optima"]["best_size_exponent"]
assert best_size_exponent["interval"][0] > 0, "the best size grows with compute"
assert best_size_exponent["interval"][0] < 0.5 < best_size_exponent["interval"][1]
assert best_size_exponent["interval"][1] < growth[True]["interval"][0], "the law contradicts the parabolas"
assert best_size_exponent["interval"][1] > growth[False]["interval"][0]
of_fitting = fits["fitting"]["optima"]["best_size_exponent"]
(growth_of_fitting,) = (
    each["values"]["best_size_exponent"]
    for each in fits["fitting"]["fits"]
    if each["objective"] == "log" and each["known_limit"]
)
assert of_fitting["interval"][1] < growth_of_fitting["interval"][0]

# Statements about rates, the lowest level and the record


def best_rate(width: int) -> float:
    """Return the rate with the lowest validation loss at a width."""
    runs = [run for run in measured["runs"] if run["sweep"] == "isoflop_rate" and run["width"] == width]
    return min(runs, key=lambda run: (run["seed"], run["validation_loss"]))["lr"]


best_rates = {width: spell(best_rate(width)) for width in (128, 256, 512)}
assert best_rates[256] == spell(measured["lr"])
parabola = fits["test"]["levels"][0]["estimates"]["lowest"]
lowest_mean = min(mean(losses(group)) for group in levels["5e14"])
assert parabola["interval"][1] < lowest_mean
sizes_of_levels = [each["estimates"]["best_size"] for each in fits["test"]["levels"]]
for times, size in zip((2, 4), sizes_of_levels[1:], strict=True):
    assert size["interval"][0] < times * sizes_of_levels[0]["value"] < size["interval"][1]
lower_at_usual_rate = [
    run["test_bits_per_byte"] > runs_of[run["width"], run["tokens"]][run["seed"]]["test_bits_per_byte"]
    for run in at_other_rate
]
assert len(lower_at_usual_rate) - sum(lower_at_usual_rate) == 1
without_commit = sum("commit" not in run for run in measured["runs"])
FIGURES = [
    f"best rates are {best_rates[128]} at width\n128, {best_rates[256]} at width 256 and {best_rates[512]} at"
    " width 512",
    f"minimum is {lowest_mean - parabola['value']:.4f} below the mean loss at width 128",
    f"{without_commit} runs, those of the first version",
    f"{len(measured['runs'])} runs on one H200",
    f"{len(measured['points'])} runs are points of",
    f"{num_isotoken} runs compare sizes at {EQUAL_TOKENS / MILLION:.1f} million tokens. Of these,"
    f" {len(at_other_rate)} had a wrong rate",
    f"{num_long} runs, of 2026-11-19, compare two sizes at {TWICE / MILLION:.1f} million tokens",
    f"differences are less than the goal of 20 standard deviations, at {EQUAL_TOKENS / MILLION:.1f} and at"
    f" {TWICE / MILLION:.1f} million tokens",
    f"{num_rates} runs served to choose",
    f"the entropy E is {entropy:.5f} bits per byte",
    f"There are {num_seeds.total()} settings of width and tokens, of which {num_seeds[5]} have five seeds",
    f"{num_seeds[1]} settings have one seed",
    list(point_rows()),
    f"at least {at_least(above_bound, 2)} times the bound",
    f"of every run at least {at_least(above_bound_of_runs, 2)} times",
    f"All but that of width {above_many[0]} are below",
    list(exponent_rows()),
    list(step_rows()),
    f"from {min(early):.2f} to {max(early):.2f}",
    f"they are {min(late):.2f} to {max(late):.2f}, below the prediction of"
    f" {facts_of_data_alone[0]:.2f} to {facts_of_data_alone[1]:.2f}",
    f"falls with an exponent of {min(late):.2f} to {max(late):.2f}",
    f"the prediction was {facts_of_data_alone[0]:.2f} to {facts_of_data_alone[1]:.2f}",
    f"limit of this curve, {capacity_limit:.3f}, is outside",
    list(law_rows()),
    list(recovery_rows()),
    f"that is {100 * min(share_of[0].values()):.1f} to {100 * max(share_of[0].values()):.1f} % too high",
    f"Half an interval is {100 * min(half_widths):.1f} to {100 * max(half_widths):.1f} % of E",
    f"A few of the {NUM_RESAMPLES:,} resamples",
    f"lowest one is {lowest_limit:.3f}",
    f"fall by {falls[0]:.4f} and then by {falls[1]:.4f}",
    f"by {100 * min(share_of[1].values()):.1f} to {100 * max(share_of[1].values()):.1f} %",
    f"recall alone costs {recall:.4f} bits per byte",
    list(kind_rows()),
    list(level_rows()),
    list(rate_rows()),
    f"{spell(measured['lr'])} for all sizes",
    f"costs {at_rate(512, 0.002) - at_rate(512, 0.008):.4f} bits per byte",
    f"exponent of compute is {interval(best_size_exponent, 2)}",
    f"parabolas give an exponent of {interval(best_size_exponent, 2)}",
    f"Width 256 has the lowest mean loss, {loss_of[AT_256]:.5f}. Width 192 has {loss_of[AT_192]:.5f},"
    f" and width 384 {loss_of[AT_384]:.5f}",
    list(paired_rows()),
    f"the smallest p is {min(corrected('loss')):.3f}, and {min(uncorrected):.3f} without",
    f"is then {worse_without_recall[0]:.5f} above those of widths 192 and 256, which are equal:"
    f" {without_recall[AT_192]:.5f} and {without_recall[AT_256]:.5f}",
    f"at least {at_least(100 * min(shares), 1)} % of the variance of each size",
    f"(p is at most {at_most(max(corrected('without recall', SAME_TEXT)[1:]), 3)})",
    f"(p is {corrected('documents that fit', SAME_TEXT)[1]:.3f})",
    f"width 64 is worse than width 128 by {small_side.value:.4f} ± {small_side.half_width():.4f} (three"
    " pairs)",
    f"below the smallest size, {parameters[192] / MILLION:.1f} million",
    f"b / (a + b): {interval(growth[True], 2)} with the known E, and {interval(growth[False], 2)} with a"
    " fitted E",
    f"the parabolas give {interval(of_fitting, 2)}, and the law with the known E gives"
    f" {interval(growth_of_fitting, 2)}",
    f"the best N of this law is {best_of_law / MILLION:.1f} million, about that of width 384",
    f"The law with the known E gives {growth[True]['value']:.2f}",
    f"are {share_of_levels[0]:.1f} and {share_of_levels[1]:.1f} times",
    f"read a text of {NEW_TEXT / 1e9:.1f} GB",
    f"earlier ones of this level {OLD_TEXT / 1e9:.1f} GB",
    f"({OLD_TEXT / 1e9:.1f} GB instead of {NEW_TEXT / 1e9:.1f} GB)",
    f"seeds 0 and 2 need {far_of_highest[192][0]:.2f} and {far_of_highest[192][2]:.2f} bits, and the other"
    f" three {spread(far_of_highest[192], 1, 3, 4)}",
    f"seeds 0 and 4 need {far_of_highest[256][0]:.2f} and {far_of_highest[256][4]:.2f} bits, and the other"
    f" three {spread(far_of_highest[256], 1, 2, 3)}",
    f"seed 3 needs {far_of_highest[384][3]:.2f} bits, seed 4 {far_of_highest[384][4]:.2f}, and the other"
    f" three {spread(far_of_highest[384], 0, 1, 2)}",
    f"at least {at_least(100 * share_of_recall(*AT_256), 1)} % lower at width 256 and"
    f" {AT_256[1] / MILLION:.1f} million",
    f"all sizes read {EQUAL_TOKENS / MILLION:.1f} million tokens",
    list(size_rows(equal)),
    list(apart_rows(equal)),
    f"{in_deviations(equal, 64):.1f} pooled deviations",
    f"by {in_deviations(equal, 128):.1f}",
    f"comes from {runs_of_128} runs",
    f"this figure is wide: {deviations_interval(equal)}",
    f"the largest p is {highest_p:.3f}",
    f"widths 128 and 1,280 read {TWICE / MILLION:.1f} million tokens",
    list(size_rows(twice)),
    list(apart_rows(twice)),
    f"four of five p are {p_of_all[0]:.3f}",
    f"its p is {p_values[1][0]:.3f}, and {p_of_all[-1]:.3f} with Holm's correction",
    f"differ by {in_deviations(twice, 128):.1f} pooled deviations (95 % interval"
    f" {deviations_interval(twice)})",
    f"The medians differ by {median_apart(twice, 128):.4f}, the means by {apart(twice, 128):.4f}",
    f"{apart(twice, 128):.4f} instead of {apart(equal, 128):.4f}",
    f"{stdev(twice[128].values()):.5f} instead of {stdev(equal[128].values()):.5f}",
    f"an F test of the two variances has p = {more_variance_p(equal[128], twice[128]):.2f}",
    list(variation_rows()),
    f"Without recall, the variance is {percent(share_of_recall(128, TWICE))} lower at width 128 and"
    f" {TWICE / MILLION:.1f} million tokens",
    f"{percent(share_of_recall(192, 113_033_216))} lower at width 192 (113.0 and 452.1 million tokens)",
    f"{percent(share_of_recall(*AT_384))} lower at width 384",
    f"and {percent(share_of_recall(LARGEST, TWICE))} lower at width 1,280 and {TWICE / MILLION:.1f} million",
    list(recall_rows()),
    f"after {shortest[0]['tokens'] / MILLION:.1f} million tokens has not learned to recall: it needs"
    f" {at_chance:.1f} bits",
    f"at least {CONTEXT // 2} preceding tokens",
    f"about {round(CONTEXT / 2 * bytes_per_token, -1):,.0f} characters",
    f"{len(lower)} of the {len(near_of_128)} runs need {min(lower):.2f} to {max(lower):.2f} bits",
    f"the other {len(upper)} need {min(upper):.2f} to {max(upper):.2f}",
    f"contains {num_lower[0]}, {num_lower[1]} and {num_lower[2]} of five seeds at 40.4, 54.1 and"
    " 80.7 million tokens",
    f"with {longest_of_128['tokens'] / MILLION:.1f} million tokens, which has one seed, needs"
    f" {recall_bits(longest_of_128, NEAR):.2f}",
    f"need at most {at_most(highest_of_wide, 2)}",
    f"seeds 1 and 4 need {of_192[1]:.2f} and {of_192[4]:.2f} bits",
    f"the other three {min(of_192[0], of_192[2], of_192[3]):.2f} to"
    f" {max(of_192[0], of_192[2], of_192[3]):.2f}",
    f"seed {lowest_far} needs {far_of_128[lowest_far]:.2f} bits",
    f"the other four {min(bits for seed, bits in far_of_128.items() if seed != lowest_far):.2f} to"
    f" {max(far_of_128.values()):.2f}",
    f"the lowest excess of recall at width 128 is {min(recalls[128]):.5f}",
    f"the lowest at width 1,280 is {min(recalls[LARGEST]):.5f}",
    list(left_out_rows()),
    f"by {in_deviations(excess_without(TWICE, 'recall'), 128):.1f} pooled deviations without recall",
    f"differ by {in_deviations(excess_without(EQUAL_TOKENS, 'recall'), 128):.1f} without recall",
    f"is at most {at_most(highest_without_one_kind(EQUAL_TOKENS), 1)} at {EQUAL_TOKENS / MILLION:.1f} million"
    f" tokens and {at_most(highest_without_one_kind(TWICE), 1)} at {TWICE / MILLION:.1f} million tokens",
    f"{len(at_other_rate)} earlier runs",
    f"which made {of_commit[FOURTH]} runs of the highest level",
    f"which made {of_commit[FIFTH]} more runs of this level",
    f"The last {num_last} of them",
    f"The last {num_last} runs",
    f"width {repeat['width']}, {repeat['tokens'] / MILLION:.1f} million tokens",
    f"ended at {repeat['test_bits_per_byte']:.5f} instead of {original['test_bits_per_byte']:.5f}",
    f"difference of {repeat_shift:.5f} is {percent(repeat_shift / repeat_deviation)} of the deviation",
    f"is {lowest_of_largest - entropy:.4f} bits per byte above E, which is"
    f" {percent((lowest_of_largest - entropy) / entropy)}",
    f"is {lowest_run['test_bits_per_byte'] - entropy:.4f} above E, which is"
    f" {percent((lowest_run['test_bits_per_byte'] - entropy) / entropy)}",
]
GIVEN = {
    "expected 4e-3 at all": "isoflop_rate.toml",
    "At width 512, the chosen rate": "the recipe",
    "had a rate of 1e-3": "2026-11-19-sizes.md",
    "run at 2e-3\n  with": "the record of the runs",
    "predictions at 06:07, recipes at 06:09, results at 06:47": "git log",
    "after 100 readings": "the predictions",
    '"100 readings" are': "the predictions",
    "context of 512 tokens": "the recipes",
    "20 standard deviations": "the goal that the sweep states",
    "width 192 at the highest level": "the recipe",
    "Widths 192, 256 and 384 have five": "the recipe",
    "Without recall, width 384 is worse": "the table",
    "context, width 384 is worse": "the table",
    "widths 192 and 256 [hardly": "the table",
    "width 384 is still worse": "the assertions about seeds 1 to 4",
    "width 384 has the highest": "the assertion about seeds 3 and 4",
    "half of the 95 % t interval": "the usual level",
    "exponent of 0.5": "twice the size at four times the compute",
    "middle level, width 128 has": "the recipe",
    "Seed 0 of widths 256 and 384": "the recipe",
    "seeds 0 to 2 of widths 256 and 384": "the recipe",
    "mean loss of width 384": "the recipe",
    "seeds of widths 192 and 256": "the recipe",
    "at width 192 and in the upper group at width 256": "the recipe",
    "At width 384": "the recipe",
    "At width 192 and 113.0 million": "the recipe",
    "after 113.0 million tokens": "the recipe",
    "after 452.1 million tokens": "the recipe",
    "among them width 128": "the recipe",
    "seeds of width 192 have": "the recipe",
    "widths 256 and 384 differ": "the recipe",
    "significant at 5 %": "the usual level",
    "has width 256 and read 278.7 million": "the recipe",
    "256 and 278.7 million": "the recipe",
    "width 1,280": "the recipe",
    "width 768": "the recipe",
    "width 512": "the recipe",
    "rate of 4e-3": "the record of the runs",
    "same rate of 2e-3": "the record of the runs",
    "its 95 % t interval": "the usual level",
    "95 % interval of this figure": "the usual level",
    "width 64 varies": "the recipe",
    "Width 128 differs": "the recipe",
    "8e-3": "the table of rates",
    "95 % t intervals": "the usual level",
    "fewer than 20 million tokens": "the bound of `early`",
    "Above 50 million": "the bound of `late`",
    "80.7 million tokens": "the recipe",
    "40.4 million tokens": "the recipe",
    "at 40.4 and 54.1 million tokens": "the recipes",
    "69.7 million tokens": "the table of variation",
    "more than 20 deviations": "the goal",
    "more than 20 without": "the goal",
    "below 20": "the goal",
    "at least 40 million tokens": "the condition of `long_settings`",
    "rate of 2e-3:": "the record of the runs",
    "deviation of width 128": "the recipe",
    "At width 128": "the recipe",
    "at width 128": "the recipe",
    "at width 64 and": "the recipe",
    "At width 256": "the recipe",
    "At width 192": "the recipe",
    "distance of 10 to 99, width 128": "the cells of the record",
    "distance of 100 to 999": "the cells of the record",
    "compares widths 128 and 1,280": "the recipe",
    "widths 128 and 1,280 have been run, but not widths 256 and 512": "the recipe",
    "seeds of width 128": "the recipe",
}

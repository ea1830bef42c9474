"""Compute the figures of experiments.md, the log of experiments."""

from __future__ import annotations

from itertools import islice, pairwise
from math import exp, log, log2, sqrt
from re import escape, finditer
from statistics import mean, median, stdev

from records import (
    by_label,
    bytes_per_token,
    curve,
    difference,
    final,
    finals,
    gap,
    million_tokens_per_second,
    percent,
    recipe,
    result,
    seconds,
    signed,
    spell,
    spread,
    steady_seconds,
    sweep,
)

from bytewright.corpus.storybook import Storybook
from bytewright.laws.inference import compare_means, holm, student_quantile

SWEEPS = (
    "base_experiment", "learning_rate", "learning_rate_edge", "batch_size", "context_length", "adamw",
    "no_norm", "post_norm", "no_position", "silu_ffn", "other_corpus", "tokenizers", "speedrun_search",
    "half_time", "speedrun", "generate",
)  # fmt: skip
first_info = sweep("first_speedrun")["about"]
QUOTED = [recipe(name)[key] for name in SWEEPS for key in ("question", "expectation")]
QUOTED += [first_info[key] for key in ("question", "expectation")]
GUESSING = f"{log(10_000):.2f}"


def single(name):
    """Return the runs of a sweep with one seed by label."""
    return {label: run for label, (run,) in by_label(name).items()}


def commit_of(it):
    return it["environment"]["commit"]


def speed(run):
    return f"{million_tokens_per_second(run):.2f}"


def loss_of(run):
    return f"{final(run):.4f}"


def at(run, step):
    """Return the validation loss after an update."""
    return dict(curve(run))[step]


def above(name, label, base):
    return signed(*difference(name, label, base))


def ablation_rows(name, base):
    rows = [("", "seed 0", "seed 1", "seed 2", "mean", "± sd", f"to {base}")]
    for label in by_label(name):
        losses = finals(name, label)
        to_base = "" if label == base else above(name, label, base)
        cells = [f"{loss:.4f}" for loss in (*losses, mean(losses), stdev(losses))]
        rows.append((label, *cells, to_base))
    return rows


# The base experiment

(base,) = sweep("base_experiment")["runs"]
loss, bits, floor = final(base), final(base, "bits_per_byte"), base["floor"]
base_seconds, base_steps = base["measured"]["seconds"], base["metrics"]["step"]
elapsed = dict(curve(base, "seconds"))
between = {after: elapsed[after] - elapsed[before] for before, after in pairwise(base_steps)}
validated = {step for step, _ in curve(base)}
pace = median(between[step] for step in between if step not in validated)
pace_with_validation = median(between[step] for step in between if step in validated)
earlier = {
    run["settings"]["batch_size"]: run
    for run in result("2026-11-15-lab/base_experiment/earlier-runs.json")["runs"]
}
earlier_end = {size: run["validations"][-1] for size, run in earlier.items()}
before = earlier[512]
places = [it["seconds"] for it in before["validations"]]
before_steady = median(after - now for now, after in pairwise(places)) * len(places)
same_again = loss - earlier_end[512]["validation_loss"]
of_step = result("2026-11-15-h200-step.json")
busy = [it for it in of_step["card"] if it["watts"] > 600]
slower_card = median(of_step["turns"])
head_ms = of_step["head"]["ms_by_rows"]
base_tokens = base["metrics"]["tokens"][-1]
on_slower_card = base_seconds + base_tokens * (1 / slower_card - 1 / base["measured"]["tokens_per_second"])
(column,) = [it for it in result("2026-11-15-h200-training.json")["columns"] if it["batch_size"] == 256]
(ours,) = [row for row in column["results"] if row["name"] == "bytewright"]
benchmark = median(ours["tokens_per_second"]) / 1e6


def first_step_seconds(how):
    return of_step["start"][how]["first_step"] - of_step["start"][how]["engine"]


def base_rows():
    rows = [
        ("commit", "windows", "peak rate", "warm-up", "updates", "validation loss", "bits per byte",
         "million tokens/s", "seconds in total"),
    ]  # fmt: skip
    settings = sweep("base_experiment")["settings"]
    last = {"step": base_steps[-1], "validation_loss": loss, "bits_per_byte": bits}
    runs = [
        (run["commit"], run["settings"], run["validations"][-1], run["measured"]) for run in earlier.values()
    ]
    for commit, chosen, end, took in [
        *runs,
        (commit_of(sweep("base_experiment")), settings, last, base["measured"]),
    ]:
        sizes = chosen["batch_size"], spell(chosen["optimizer.lr"]), chosen["schedule.warmup"]
        losses = f"{end['validation_loss']:.4f}", f"{end['bits_per_byte']:.4f}"
        costs = f"{took['tokens_per_second'] / 1e6:.2f}", f"{took['seconds']:.1f}"
        rows.append((f"`{commit}`", *sizes, f"{end['step']:,}", *losses, *costs))
    return rows


def cost_rows():
    p, m = base["predicted"], base["measured"]
    mfu = p["tokens_per_second"] / m["tokens_per_second"] * m["mfu"]
    return [
        ("", "predicted", "measured"),
        ("parameters", f"{p['parameters']:,.0f}", f"{m['parameters']:,.0f}"),
        ("FLOPs per token", f"{p['flops_per_token']:,.0f}", f"{m['flops_per_token']:,.0f}"),
        ("memory, GB", f"{p['memory_bytes'] / 1e9:.2f}", f"{m['memory_bytes'] / 1e9:.2f}"),
        ("tokens/s while training", f"{p['tokens_per_second']:,.0f}", f"{m['tokens_per_second']:,.0f}"),
        ("utilisation (MFU)", percent(mfu, 1), percent(m["mfu"], 1)),
        ("seconds in total", f"{p['seconds']:.1f}", f"{m['seconds']:.1f}"),
    ]


with_norms = by_label("no_norm")["with norms"]
gigabytes = [run["measured"]["memory_bytes"] / 1e9 for run in with_norms]
memory_growth, highest_memory = gigabytes[2] - gigabytes[1], max(gigabytes)

# The floor

of_256 = result("2026-11-15-lab/base_experiment/whole-stories.json")
whole = of_256["whole_stories"]
on_windows = of_256["validation_bits_per_byte"]
price = on_windows - whole["bits_per_byte"]
book = Storybook.load()
plot = {variable.name: variable for variable in book.grammar.variables}
FACTS = {
    "name": "name", "thing": "thing", "dream": "creature", "chore": "wares", "helper": "helper",
    "thief": "thief", "pal": "pal", "place": "place",
}  # fmt: skip
sample = list(islice(book.stories(seed=1), 2000))


def bits_said_again():
    """Return the bits of the plot that occur on both sides of a cut, averaged over all cuts of the sample."""
    area = length = 0
    for story in sample:
        values = {name: plot[name].values.index(value) for name, value in story.plot.items()}
        cost = {name: plot[name].costs(list(values.values()))[values[name]] for name in plot}
        cost["name"] += cost["sex"]
        cost["place"] += cost["setting"]
        length += len(story.text)
        for fact, form in FACTS.items():
            mentions = list(finditer(rf"\b{escape(plot[fact].forms[form][values[fact]])}\b", story.text))
            if len(mentions) > 1:
                area += cost[fact] * (mentions[-1].start() - mentions[0].end())
    return area / length


again_bits = bits_said_again()
least_price = again_bits / 256 / bytes_per_token(base)
story_tokens = mean(len(story.text.encode()) for story in sample) / bytes_per_token(base)


def floor_rows():
    return [
        ("bits per byte", "model", "above the floor"),
        ("the floor", f"{whole['floor']:.4f}", ""),
        (
            "whole stories, 256 windows per step",
            f"{whole['bits_per_byte']:.4f}",
            f"{whole['above_floor']:.4f}",
        ),
        ("windows, 256 windows per step", f"{on_windows:.4f}", f"{on_windows - whole['floor']:.4f}"),
        ("windows, 512 windows per step (the model above)", f"{bits:.4f}", f"{bits - floor:.4f}"),
        ("lower bound of the cost of windows", "", f"{least_price:.4f}"),
    ]


# Learning rate and its edge

WARM_UP = sweep("learning_rate")["settings"]["schedule.warmup"]
rate = {float(label): run for label, run in single("learning_rate").items()}
best = min(rate.values(), key=final)
edge = {float(label): runs for label, runs in by_label("learning_rate_edge").items()}
seeds_at_4e3 = finals("no_norm", "with norms")


def peak(run):
    """Return the highest validation loss after the warm-up."""
    return max(value for _, value in curve(run, start=WARM_UP))


def over_best(run, digits=4):
    return f"{final(run) - final(best):.{digits}f}"


def rate_rows():
    rows = [("peak rate", "validation loss", "above the best", "highest after warm-up", "")]
    for lr, run in rate.items():
        mark = "**" if run is best else ""
        status = "diverged" if run["status"] == "diverged" else ""
        rows.append((spell(lr), f"{mark}{loss_of(run)}{mark}", over_best(run), f"{peak(run):.4g}", status))
    return rows


def edge_rows():
    rows = [("peak rate", "seed 0", "seed 1", "difference", "highest after warm-up, seed 0", "seed 1 ")]
    for lr, runs in edge.items():
        difference_of_seeds = f"{spread([final(run) for run in runs]):.4f}"
        peaks = [f"{peak(run):.3f}" for run in runs]
        rows.append((spell(lr), *map(loss_of, runs), difference_of_seeds, *peaks))
    return rows


# Differences to the speedrun

of_speedrun = dict(enumerate(finals("half_time", "speedrun")))
half_time_p_values = holm(
    [
        compare_means(dict(enumerate(finals("half_time", label))), of_speedrun).p_value
        for label in by_label("half_time")
        if label != "speedrun"
    ]
)

# Batch size and context

batch = {int(label.split(",")[0]): run for label, run in single("batch_size").items()}
equal_batches = spread([final(batch[size]) for size in (64, 128, 256, 512)])
memory_errors = [
    abs(run["predicted"]["memory_bytes"] / run["measured"]["memory_bytes"] - 1)
    for size, run in batch.items()
    if size >= 64
]
share_at_128 = million_tokens_per_second(batch[128]) / million_tokens_per_second(batch[1024])


def batch_rows():
    rows = [
        ("windows", "peak rate", "million tokens", "updates", "validation loss", "tokens/s", "memory, GB",
         "predicted"),
    ]  # fmt: skip
    for size, run in batch.items():
        metrics, measured = run["metrics"], run["measured"]
        diverged = " (diverged)" if run["status"] == "diverged" else ""
        memory = [f"{it['memory_bytes'] / 1e9:.2f}" for it in (measured, run["predicted"])]
        counts = f"{metrics['tokens'][-1] / 1e6:.0f}", f"{metrics['step'][-1]:,}"
        tokens_per_second = f"{measured['tokens_per_second']:,.0f}"
        lr = spell(run["settings"]["optimizer.lr"])
        rows.append((f"{size:,}", lr, *counts, loss_of(run) + diverged, tokens_per_second, *memory))
    return rows


def equal_token_rows():
    places = (2, 8, 20, 40)
    rows = [("windows", *(f"{place} million" for place in places))]
    for size, run in batch.items():
        tokens = dict(zip(run["metrics"]["step"], run["metrics"]["tokens"], strict=True))
        near = [
            [value for step, value in curve(run) if abs(tokens[step] / 1e6 / place - 1) < 0.05]
            for place in places
        ]
        rows.append((f"{size:,}", *(f"{found[-1]:.4f}" if found else "" for found in near)))
    return rows


def warm_up_tokens(size):
    settings = sweep("batch_size")["settings"] | batch[size]["settings"]
    return settings["schedule.warmup"] * size * 256 / 1e6


def megabytes_per_window(small, large):
    taken = {size: run["measured"]["memory_bytes"] / 1e6 for size, run in batch.items()}
    return f"{(taken[large] - taken[small]) / (large - small):.0f}"


def updates(size):
    return batch[size]["metrics"]["step"][-1]


context = {int(label): run for label, run in single("context_length").items()}
milliseconds = {length: 32.768 / million_tokens_per_second(run) for length, run in context.items()}


def context_rows():
    rows = [
        ("context", "windows", "validation loss", "perplexity", "bits per byte", "gain over half the context",
         "ms per update", "predicted"),
    ]  # fmt: skip
    for length, run in context.items():
        gain = f"{final(context[length // 2]) - final(run):.4f}" if length // 2 in context else ""
        losses = loss_of(run), f"{exp(final(run)):.3f}", f"{final(run, 'bits_per_byte'):.4f}"
        times = f"{milliseconds[length]:.1f}", f"{32_768_000 / run['predicted']['tokens_per_second']:.1f}"
        rows.append((f"{length:,}", f"{run['settings']['batch_size']:,}", *losses, gain, *times))
    return rows


halving_price = final(context[256]) - (2 * final(context[2048]) - final(context[1024]))
"""Nats that windows of 256 cost, if each doubling beyond 2,048 saves half as much as the previous one."""

# AdamW

adamw = {run["name"]: run for run in sweep("adamw")["runs"]}
AXES = {
    "optimizer.beta1": "β1",
    "optimizer.beta2": "β2",
    "optimizer.eps": "ε",
    "optimizer.weight_decay": "weight decay",
    "schedule.warmup": "warm-up",
}
adamw_memory = max(run["measured"]["memory_bytes"] for name, run in adamw.items() if name != "baseline") / 1e9


def to_baseline(name):
    return signed(final(adamw[name]) - final(adamw["baseline"]))


def setting(key, value):
    return f"{AXES[key]} {spell(value) if 0 < value < 0.01 else f'{value:g}'}"


def adamw_rows():
    centre = adamw["baseline"]["labels"]
    settings = ", ".join(setting(key, centre[key]) for key in AXES)
    rows = [("", "validation loss", "to the baseline"), (settings, loss_of(adamw["baseline"]), "")]
    for name, run in adamw.items():
        if name != "baseline":
            (changed,) = [key for key in AXES if run["labels"][key] != centre[key]]
            rows.append((setting(changed, run["labels"][changed]), loss_of(run), to_baseline(name)))
    return rows


# Ablations

NO_NORM, LOWER, LOWEST = "without norms", "without norms, lr 1.3e-3", "without norms, lr 4e-4"
broken = by_label("no_norm")[LOWER]
not_finite = [int(run["reason"].split("step ")[1].split()[0]) for run in by_label("no_norm")[NO_NORM]]
share_of_way = log(4e-4 / 3e-4) / log(1e-3 / 3e-4)
with_norms_at_4e4 = (1 - share_of_way) * final(rate[3e-4]) + share_of_way * final(rate[1e-3])


def norm_rows():
    rows = [("", "seed", "validation loss", "highest after warm-up", "validations not finite")]
    for label, runs in by_label("no_norm").items():
        for run in runs:
            seed = run["labels"]["seed"]
            if label == NO_NORM:
                rows.append((label, seed, "–", run["reason"].replace("the loss or gradient was ", ""), "–"))
                continue
            steps = zip(run["metrics"]["step"], run["metrics"]["validation_loss"], strict=True)
            lost = sum(step % 100 == 0 and value is None for step, value in steps)
            highest = f"{peak(run):,.4f}" if peak(run) < 10 else f"{peak(run):,.0f}"
            rows.append((label, seed, loss_of(run), highest, lost))
    return rows


def without_positions(step):
    none, rope = (mean(at(run, step) for run in by_label("no_position")[label]) for label in ("none", "rope"))
    return none - rope


assert abs(difference("silu_ffn", "silu", "swiglu")[0]) < difference("silu_ffn", "silu", "swiglu")[1]
# Corpus and vocabulary

corpus = single("other_corpus")
vocabulary = {int(label.split(",")[0]): run for label, run in single("tokenizers").items()}
vocabulary_bits = {size: final(run, "bits_per_byte") for size, run in vocabulary.items()}
fewer_parameters = (
    vocabulary[10_000]["measured"]["parameters"] - vocabulary[4096]["measured"]["parameters"]
) / 1e6


def corpus_rows():
    rows = [
        ("", "nats per token", "perplexity", "bytes per token", "bits per byte", "training loss at the end")
    ]
    for name, run in corpus.items():
        losses = f"{exp(final(run)):.2f}", f"{bytes_per_token(run):.3f}", f"{final(run, 'bits_per_byte'):.4f}"
        rows.append((name, loss_of(run), *losses, f"{final(run, 'loss'):.4f}"))
    return rows


def overfit(name):
    return final(corpus[name]) - final(corpus[name], "loss")


def vocabulary_rows():
    rows = [
        ("vocabulary", "bytes per token", "million tokens", "updates", "million parameters", "bits per byte",
         "bytes per window", "seconds"),
    ]  # fmt: skip
    for size, run in vocabulary.items():
        counts = f"{run['metrics']['tokens'][-1] / 1e6:.1f}", f"{run['metrics']['step'][-1]:,}"
        parameters = f"{run['measured']['parameters'] / 1e6:.1f}"
        last = (
            f"{vocabulary_bits[size]:.4f}",
            f"{256 * bytes_per_token(run):,.0f}",
            f"{steady_seconds(run):.1f}",
        )
        rows.append((f"{size:,}", f"{bytes_per_token(run):.3f}", *counts, parameters, *last))
    return rows


def growth_of_tokens(small, large):
    return percent(bytes_per_token(vocabulary[large]) / bytes_per_token(vocabulary[small]) - 1)


def window_share(size):
    """Return the share of a vocabulary's disadvantage that its shorter windows explain, by the bound."""
    shorter = 1 / bytes_per_token(vocabulary[size]) - 1 / bytes_per_token(vocabulary[10_000])
    return percent(again_bits / 256 * shorter / (vocabulary_bits[size] - vocabulary_bits[10_000]))


# Speedruns

first, half = by_label("first_speedrun"), by_label("half_time")
search = single("speedrun_search")
SIMILAR = (
    "AdamW at 4e-3",
    "beta2 of 0.999",
    "eps of 1e-6, weight decay of 0.03",
    "8 heads",
    "tied embeddings",
)
similar = max(abs(final(search[name]) - final(search["AdamW at 2e-3"])) for name in SIMILAR)
races = [result(f"2026-11-15-lab/speedrun/{name}.json") for name in ("first-race", "results", "seed-1")]
raced = {
    label: [(race, run) for race in races for run in race["runs"] if run["labels"]["variant"] == label]
    for label in ("plain", "speedrun")
}
race_losses = {label: [final(run) for _, run in runs] for label, runs in raced.items()}
(_, first_speedrun), (_, speedrun), _ = raced["speedrun"]
_, (_, plain) = raced["plain"]
best_on_novels = {
    name: min(
        run["loss"] for run in result("2026-11-15-h200-learning.json")["runs"] if run["contestant"] == name
    )
    for name in ("adamw", "muon")
}
muon_on_novels = best_on_novels["adamw"] - best_on_novels["muon"]
other_spreads = [
    spread(finals("half_time", label)) for label in half if label not in ("speedrun", "with 3 layers")
]
compiling = seconds(first["with 16 heads"]) - steady_seconds(first["with 16 heads"][0])


def steady(runs):
    return mean(map(steady_seconds, runs))


def of_plain(label):
    return f"{steady(half[label]) / steady(half['plain']):.2f}"


def variant_rows(name):
    rows = [
        ("", "million tokens", "seed 0", "seed 1", "seed 2", "mean", "± sd", "to speedrun", "seconds",
         "with one-time costs"),
    ]  # fmt: skip
    for label, runs in by_label(name).items():
        losses = finals(name, label)
        tokens = f"{runs[0]['metrics']['tokens'][-1] / 1e6:.0f}"
        cells = ([f"{it:.4f}" for it in losses] + ["–"] * 2)[:3]
        deviation = f"{stdev(losses):.4f}" if len(losses) > 1 else "–"
        to_speedrun = signed(mean(losses) - mean(finals(name, "speedrun")))
        if label == "speedrun":
            to_speedrun = ""
        elif len(losses) > 1:
            to_speedrun = above(name, label, "speedrun")
        times = f"{steady(runs):.1f}", f"{seconds(runs):.1f}"
        rows.append((label, tokens, *cells, f"{mean(losses):.4f}", deviation, to_speedrun, *times))
    return rows


def search_rows():
    rows = [("", "validation loss", "to AdamW at 2e-3", "million parameters", "million tokens/s", "seconds")]
    for label, run in search.items():
        to_adamw = "" if label == "AdamW at 2e-3" else signed(final(run) - final(search["AdamW at 2e-3"]))
        parameters = f"{run['measured']['parameters'] / 1e6:.1f}"
        rows.append((label, loss_of(run), to_adamw, parameters, speed(run), f"{steady_seconds(run):.1f}"))
    return rows


def race_rows():
    rows = [
        ("", "commit", "seed", "windows", "updates", "million tokens", "validation loss", "bits per byte",
         "million tokens/s", "seconds"),
    ]  # fmt: skip
    for label, runs in raced.items():
        for race, run in runs:
            settings = race["settings"] | run["settings"]
            counts = f"{run['metrics']['step'][-1]:,}", f"{run['metrics']['tokens'][-1] / 1e6:,.0f}"
            losses = loss_of(run), f"{final(run, 'bits_per_byte'):.4f}", speed(run)
            names = label, f"`{commit_of(race)}`", settings["seed"], settings["batch_size"]
            rows.append((*names, *counts, *losses, f"{seconds([run]):.1f}"))
    return rows


def after(run, limit):
    """Return the last validation loss of a run before a time in seconds."""
    columns = run["metrics"]["seconds"], run["metrics"]["validation_loss"]
    found = [value for second, value in zip(*columns, strict=True) if value is not None and second < limit]
    return f"{found[-1]:.4f}"


# Generated texts

texts = result("2026-11-15-lab/texts.json")
sampling = texts["sampling"]
text_of = {(it["run"], it["prompt"]): it["text"] for it in texts["texts"]}
story = text_of["base_experiment with 256 windows", "Once upon a time"]
last = base["samples"]["2500"].strip()
prose = text_of["other_corpus/prose", "It was"]
checked = {name: book.check_stories([text]).stories[0] for name, text in (("story", story), ("last", last))}
all_sound = all(it.num_sound_sentences == it.num_sentences for it in checked.values())
QUOTED += [story, last, prose]


def written(temperature, top_p, what="consistent"):
    (run,) = by_label("generate")[f"{temperature}, {top_p}"]
    return run["metrics"][what][0]


def sampling_rows():
    cuts = (0.8, 0.95, 1.0)
    names = {"consistent": "consistent", "distinct_words": "distinct words"}
    rows = [("temperature", *(f"{name}, top-p {p:g}" for name in names.values() for p in cuts))]
    for t in (0.2, 0.4, 0.6, 0.8, 1.0, 1.2):
        rows.append((t, *(percent(written(t, p, what), 1) for what in names for p in cuts)))
    return rows


FIGURES = [
    # The log of experiments
    f"a time, torch {sweep('learning_rate')['environment']['torch'].partition('+')[0]}",
    f"first hour | `{commit_of(sweep('learning_rate'))}` | the",
    f"hours later | `{commit_of(first['speedrun'][0])}`, `{before['commit']}` | later",
    f"before midnight | `{commit_of(sweep('speedrun_search'))}` | the",
    f"after midnight | `{commit_of(half['plain'][0])}` | the",
    f"hours later | `{commit_of(sweep('speedrun'))}` | the",
    (
        f"at `1.6e-2` made {speed(edge[0.016][0])} million tokens/s in the first hour and "
        f"{speed(edge[0.016][1])} three hours"
    ),
    (
        f"base model ({base['measured']['parameters'] / 1e6:.1f} million parameters, context 256, "
        f"vocabulary {sweep('base_experiment')['settings']['model.vocab_size']:,}"
    ),
    (
        f"million tokens ({best['metrics']['step'][-1]:,} updates). The base experiment has "
        f"{base_tokens / 1e6:.2f} million tokens"
    ),
    f"tokens, spread over {whole['num_stories']:,} validation stories",
    f"{len(adamw)} runs, where a grid would have {4 * 4 * 4 * 5 * 4:,}",
    f"a [search](#the-search-for-a-speedrun) over {len(search)} candidates with",
    (
        f"`short.toml` end within {spread(seeds_at_4e3):.4f} of each other (standard deviation "
        f"{stdev(seeds_at_4e3):.4f}"
    ),
    (
        f"the speedrun over {spread(finals('half_time', 'speedrun')):.4f}, post-norm over "
        f"{spread(finals('post_norm', 'post-norm')):.4f}"
    ),
    f"seed, differed by {same_again:.4f}",
    f"ended at {earlier_end[128]['validation_loss']:.4f} instead of {loss_of(rate[4e-3])}",
    f"lower rate ended at {loss:.4f}",
    f"[five minutes](#the-race-by-the-clock) was {min(race_losses['speedrun']):.4f}",
    # The base experiment
    (
        f"validation loss is {loss:.4f}, the perplexity {exp(loss):.2f}, and the bits per byte "
        f"{bits:.4f}, which is {bits - floor:.4f} above the floor of {floor:.4f}"
    ),
    f"loss ends at {final(base, 'loss'):.4f}",
    base_rows(),
    cost_rows(),
    (
        f"updates and end {same_again:.4f} apart, and {final(base, 'loss') - before['training_loss']:.4f} "
        "apart in"
    ),
    (
        f"over the second, {earlier_end[256]['validation_loss'] - loss:.4f} or "
        f"{earlier_end[256]['validation_loss'] - earlier_end[512]['validation_loss']:.4f}"
    ),
    f"The run took {base_seconds:.1f} s including",
    (
        f"95 s was {'met' if base_seconds <= 95 else 'missed'} by {95 - base_seconds:.1f} s. One-time "
        f"costs are {elapsed[50] - pace:.1f} s before update 50 and "
        f"{between[250] - pace_with_validation:.1f} s in"
    ),
    f"next, times ten) {steady_seconds(base):.1f} s remain",
    f"previous run took {before['measured']['seconds']:.1f} s and",
    (
        f"first step took {first_step_seconds('kept'):.1f} s instead of "
        f"{first_step_seconds('traced_anew'):.1f} s"
    ),
    (
        f"{head_ms['32768']:.2f} ms instead of {head_ms['16384']:.2f} ms per batch, or about "
        f"{(head_ms['16384'] - head_ms['32768']) * base_steps[-1] / 1000:.1f} s in {base_steps[-1]:,} "
        "updates"
    ),
    (
        f"costs fell from {before['measured']['seconds'] - before_steady:.1f} to "
        f"{base_seconds - steady_seconds(base):.1f} s, and the rest from {before_steady:.1f} to "
        f"{steady_seconds(base):.1f} s"
    ),
    (
        f"It [started](2026-11-15-h200.md#what-bounds-a-long-run) at {of_step['turns'][0] / 1e6:.2f} "
        f"million tokens/s and sustained {slower_card / 1e6:.2f}, at "
        f"{median(it['watts'] for it in busy):.0f} of 700 W and with a clock of "
        f"{median(it['mhz'] for it in busy):,.0f} instead of "
        f"{max(it['mhz'] for it in of_step['card']):,.0f} MHz"
    ),
    f"steps ran at {of_step['after_rest'] / 1e6:.2f}",
    f"have taken about {on_slower_card:.0f} s",
    f"the run processed {speed(base)} million tokens/s",
    f"the step [measured](2026-11-15-h200.md#training) {benchmark:.2f} in turns",
    (
        f"batch, and the {updates(512)} updates with 512 windows [below](#the-batch-size) made "
        f"{speed(batch[512])}"
    ),
    f"of 1 made {speed(rate[1.0])} million tokens/s and the model at `4e-3` {speed(rate[4e-3])}",
    (
        "was predicted within "
        f"{percent(abs(base['predicted']['memory_bytes'] / base['measured']['memory_bytes'] - 1), 1)}, "
        f"and the time within {percent(abs(base['predicted']['seconds'] / base_seconds - 1))}"
    ),
    f"same model took {memory_growth:.1f} GB more",
    f"one, up to {highest_memory:.2f} GB",
    (
        f"took at most {adamw_memory:.2f} GB each, or "
        f"{half['plain'][0]['measured']['memory_bytes'] / 1e9:.2f} GB with"
    ),
    # How near to the floor
    f"[The hash would save](../handbook/storybook.md#the-floor) {log2(10):.2f} bits per",
    f"computed over {len(sample):,} stories",
    f"Together they make {again_bits:.1f} bits per window, or {least_price:.4f} bits per",
    floor_rows(),
    f"standard error over {whole['num_stories']:,} stories is {whole['standard_error']:.4f}",
    (
        f"story thus cost {price:.4f} bits per byte, which is "
        f"{percent(price / (on_windows - whole['floor']))} of the"
    ),
    (
        f"model could gain {whole['above_floor']:.4f} bits per byte, which is "
        f"{percent(whole['above_floor'] / whole['floor'])} of the"
    ),
    f"above as much, {bits - floor - price:.4f} of its",
    (f"256 cost {halving_price:.3f} nats, or {halving_price / bytes_per_token(base) / log(2):.4f} bits per"),
    f"the loss is {curve(base)[0][1]:.4f}, only {curve(base)[0][1] - loss:.2f} above the",
    # The learning rate
    rate_rows(),
    (
        f"changes by only {final(rate[4e-3]) - final(rate[1e-3]):.4f} nats. At `8e-3` it is "
        f"{over_best(rate[8e-3])} above the best, and at `1.6e-2` {over_best(rate[1.6e-2], 2)}"
    ),
    f"from {at(rate[1.6e-2], 200):.2f} at update 200 to {at(rate[1.6e-2], 400):.2f} at update",
    (
        f"loss rose to {peak(rate[1.0]):.0f}, where guessing is {GUESSING}, and came down to "
        f"{final(rate[1.0]):.2f} only as"
    ),
    f"best rate costs {over_best(rate[1e-4], 2)} nats",
    (
        f"times the best rate costs {min(map(final, edge[0.0113])) - final(best):.2f} to "
        f"{max(map(final, edge[0.0113])) - final(best):.2f}"
    ),
    f"100 updates ({at(rate[4e-3], 100):.2f} compared with {at(rate[1e-3], 100):.2f}) and is",
    # The edge of divergence
    edge_rows(),
    f"and guessing has {GUESSING} nats",
    f"a jump from {mean(map(final, edge[0.0113])):.2f} to {mean(map(final, edge[0.064])):.2f} over the",
    f"by {spread(list(map(final, edge[0.0113]))):.3f} at `1.13e-2`",
    (
        f"`4e-3` agree within {spread(seeds_at_4e3):.4f}, and by "
        f"{spread(list(map(final, edge[0.032]))):.2f} at `3.2e-2`"
    ),
    f"at `3.2e-2` ({loss_of(edge[0.032][0])}) than at `2.26e-2` ({loss_of(edge[0.0226][0])}",
    # The batch size
    batch_rows(),
    f"Validation uses about {sweep('batch_size')['settings']['eval_tokens']:,} tokens",
    equal_token_rows(),
    (
        f"warm-up earlier, after {warm_up_tokens(1):.1f} million tokens with one window and "
        f"{warm_up_tokens(16):.0f} million with 16, compared with about {warm_up_tokens(64):.0f} million "
        "with"
    ),
    f"windows end within {equal_batches:.3f} nats",
    f"windows have only {updates(1024)} and {updates(2048)} updates and",
    (
        f"{max(value for _, value in curve(batch[4096])):.1f} at update 8, worse than guessing, and "
        f"{final(batch[4096]):.1f} after all {updates(4096)} updates. One window per step reaches "
        f"{loss_of(batch[1])} with 2"
    ),
    f"Speed rises from {speed(batch[1])} to {speed(batch[1024])} million tokens/s",
    f"and 128 windows {percent(share_at_128)}",
    f"Memory grows by {megabytes_per_window(128, 4096)} MB per",
    f"windows and by {megabytes_per_window(1, 128)} MB below",
    f"was predicted within {percent(max(memory_errors))} from 64",
    (
        f"{batch[4096]['predicted']['memory_bytes'] / 1e9:.2f} and "
        f"{batch[4096]['measured']['memory_bytes'] / 1e9:.2f} GB) and"
    ),
    (
        f"only {batch[1]['metrics']['tokens'][-1] / batch[1]['measured']['tokens_per_second']:.1f} of the "
        f"{batch[1]['measured']['seconds']:.1f} s were"
    ),
    # The context length
    context_rows(),
    f"{context[256]['settings']['batch_size'] * 256:,} tokens per",
    f"A story has {story_tokens:.0f} tokens on",
    f"still falls from {exp(final(context[256])):.2f} to {exp(final(context[2048])):.2f}",
    f"An update takes {milliseconds[256]:.1f} ms at 256 and {milliseconds[2048]:.1f} ms at",
    f"{milliseconds[32]:.1f} ms at",
    f"the loss is {at(context[2048], 100):.2f} at 2,048 tokens and {at(context[256], 100):.2f} at 256",
    # AdamW, one setting at a time
    adamw_rows(),
    f"baseline end within {spread(seeds_at_4e3):.4f} of each",
    f"and end within {spread(list(map(final, adamw.values()))):.4f} nats",
    (
        f"of 0.98 ({to_baseline('beta1-0.98')}), a decay of 1 ({to_baseline('weight-decay-1')}) and a β2 "
        f"of 0.9 ({to_baseline('beta2-0.9')}"
    ),
    f"0.98 ({to_baseline('beta2-0.98')}) and 0.999 ({to_baseline('beta2-0.999')}",
    f"of 1e-4 costs {to_baseline('eps-1e-4')}",
    f"without warm-up costs {to_baseline('warmup-0')}",
    (
        f"is visible early, {at(adamw['warmup-0'], 100):.2f} compared with "
        f"{at(adamw['baseline'], 100):.2f} at update"
    ),
    f"{at(adamw['beta1-0'], 100):.2f} at update 100, and {to_baseline('beta1-0')} at the",
    # Without norms
    norm_rows(),
    f"diverged between updates {min(not_finite)} and {max(not_finite)}",
    f"repeatedly, up to {max(map(peak, broken)):,.0f}",
    f"two to {min(map(final, broken)):.4f}, one to {max(map(final, broken)):.4f}",
    (
        f"and ends at {mean(finals('no_norm', LOWEST)):.4f} (standard deviation "
        f"{stdev(finals('no_norm', LOWEST)):.4f}), which is {above('no_norm', LOWEST, 'with norms')[1:]} "
        "above norms"
    ),
    (
        f"`3e-4` norms reach {loss_of(rate[3e-4])} (one seed), "
        f"{mean(finals('no_norm', LOWEST)) - final(rate[3e-4]):.4f} below the"
    ),
    (
        f"they would reach {with_norms_at_4e4:.4f}, which is "
        f"{mean(finals('no_norm', LOWEST)) - with_norms_at_4e4:.4f} below"
    ),
    f"`1e-3`, which reaches {loss_of(best)}",
    f"can end only {min(map(final, broken)) - mean(seeds_at_4e3):.3f} above one",
    # Post-norm
    ablation_rows("post_norm", "pre-norm"),
    f"the same loss, {loss_of(rate[1e-3])} (one seed",
    (
        f"rate (standard deviation {stdev(finals('post_norm', 'post-norm')):.4f} compared with "
        f"{stdev(finals('post_norm', 'pre-norm')):.4f}"
    ),
    # Without positions
    ablation_rows("no_position", "rope"),
    f"{without_positions(100):.2f} nats at update 100, and {without_positions(300):.3f} at update",
    # Without the gate
    ablation_rows("silu_ffn", "swiglu"),
    f"is lower by {above('silu_ffn', 'silu', 'swiglu')[1:]}, so the interval contains zero",
    f"at most {sum(difference('silu_ffn', 'silu', 'swiglu')):.4f} nats by the interval",
    # Another corpus
    corpus_rows(),
    (
        "of prose takes "
        f"{final(corpus['prose'], 'bits_per_byte') / final(corpus['stories'], 'bits_per_byte'):.1f} times "
        "as"
    ),
    f"in nats is {final(corpus['prose']) / final(corpus['stories']):.1f} times as",
    f"training loss is {overfit('prose'):.2f} below the",
    f"two differ by {overfit('stories'):.3f}",
    # The size of the vocabulary
    vocabulary_rows(),
    (
        f"{growth_of_tokens(512, 1024)} from 512 to 1,024 tokens, and {growth_of_tokens(4096, 8192)} from "
        "4,096"
    ),
    (
        f"byte fall from {vocabulary_bits[512]:.4f} to {vocabulary_bits[4096]:.4f} at 4,096 and then stay "
        f"within {spread([vocabulary_bits[size] for size in (4096, 8192, 10_000)]):.4f}"
    ),
    (
        f"*tokens*. They hold {256 * bytes_per_token(vocabulary[512]):,.0f} bytes with the smallest "
        f"vocabulary and {256 * bytes_per_token(vocabulary[10_000]):,.0f} with the"
    ),
    f"this explains about {window_share(512)} of the",
    f"512 tokens, and {window_share(1024)} at 1,024",
    (
        f"{steady_seconds(vocabulary[10_000]):.1f} s compared with {steady_seconds(vocabulary[512]):.1f} "
        f"s. The fastest is 4,096 with {steady_seconds(vocabulary[4096]):.1f} s"
    ),
    f"as one of 10,000, with {fewer_parameters:.1f} million fewer",
    # What was tried first
    f"that of commit `{commit_of(first['speedrun'][0])}`",
    variant_rows("first_speedrun"),
    f"The speedrun took {steady(first['speedrun']) / steady(first['plain']):.2f} of the",
    f"one-time costs, and {seconds(first['speedrun']) / seconds(first['plain']):.2f} with them",
    f"same step was {percent(steady_seconds(edge[0.016][1]) / steady_seconds(edge[0.016][0]) - 1)} faster",
    f"The decay contributes {above('first_speedrun', 'with cosine to a tenth', 'speedrun')[1:]}",
    f"contribute the most, contributes {above('first_speedrun', 'without Muon', 'speedrun')[1:]}",
    # Ten candidates
    f"and a β2 of {next(iter(search.values()))['settings']['optimizer.beta2']}",
    search_rows(),
    f"by at most {similar:.4f}",
    (
        f"four end within {abs(final(search['3 layers']) - final(search['AdamW at 2e-3'])):.4f} and make "
        f"{speed(search['3 layers'])} million tokens/s instead of {speed(search['AdamW at 2e-3'])}"
    ),
    f"ends lowest, at {loss_of(search['Muon'])}",
    (
        f"base experiment after {base_tokens / 1e6:.2f} million "
        f"({earlier_end[512]['validation_loss']:.4f} and {loss:.4f}), at {speed(search['Muon'])} million "
        "tokens/s"
    ),
    (
        "at `4e-3` by "
        f"{mean(finals('first_speedrun', 'without Muon')) - final(search['AdamW at 4e-3']):.4f}, and Muon "
        f"by {mean(finals('first_speedrun', 'speedrun')) - final(search['Muon']):.4f}"
    ),
    f"was worth {final(adamw['baseline']) - final(adamw['beta2-0.98']):.4f} in [the",
    (
        f"Muon gains {final(search['AdamW at 4e-3']) - final(search['Muon']):.4f} here, and "
        f"{difference('first_speedrun', 'without Muon', 'speedrun')[0]:.4f} in the"
    ),
    # The same loss in half the time
    variant_rows("half_time"),
    (
        f"The run with 0.95 takes {steady(half['with beta2 of 0.95']):.1f} s there, and the speedrun with "
        f"0.98 takes {steady(half['speedrun']):.1f} s here"
    ),
    (
        f"plain recipe, by {above('half_time', 'plain', 'speedrun')[1:]}, after "
        f"{steady(half['speedrun']):.1f} s of training compared with {steady(half['plain']):.1f} s: "
        f"{of_plain('speedrun')} of the"
    ),
    (
        f"the ratio is {seconds(half['speedrun']) / seconds(half['plain']):.2f} on average, and "
        f"{seconds(half['speedrun'][:1]) / seconds(half['plain'][:1]):.2f} in seed"
    ),
    f"to compile, took {compiling:.0f} s longer",
    (
        f"makes fewer tokens/s, {mean(map(million_tokens_per_second, half['speedrun'])):.2f} million "
        f"compared with {mean(map(million_tokens_per_second, half['plain'])):.2f} million"
    ),
    f"after Holm's correction: the smallest p is {min(half_time_p_values):.2f}",
    f"better than plain (by {-difference('half_time', 'without Muon', 'plain')[0]:.4f}, see",
    f"With three seeds it is {student_quantile(0.95, 2):.1f} standard errors wide",
    f"the loss is {above('half_time', 'with cosine to a tenth', 'speedrun')[1:]} higher",
    f"of 0.95 it is {above('half_time', 'with beta2 of 0.95', 'speedrun')[1:]} higher",
    f"the expected amount, {above('half_time', 'without Muon', 'speedrun')[1:]}",
    (
        f"every seed, by {above('half_time', 'without Muon', 'plain').lstrip('−')}, in "
        f"{of_plain('without Muon')} of the"
    ),
    (
        f"does not lower the loss ({above('half_time', 'with QK-norm', 'speedrun')}) and takes "
        f"{steady(half['with QK-norm']):.1f} s instead of {steady(half['speedrun']):.1f} s"
    ),
    (
        f"the same ({above('half_time', 'with 3 layers', 'speedrun')}) after "
        f"{steady(half['with 3 layers']):.1f} s, {of_plain('with 3 layers')} of the"
    ),
    f"take AdamW from {mean(seeds_at_4e3):.4f} to {mean(finals('half_time', 'without Muon')):.4f}",
    f"it only to {mean(finals('half_time', 'plain')):.4f}",
    f"[first recipe](#what-was-tried-first) ({above('first_speedrun', 'without Muon', 'speedrun')}",
    (
        "exhausted. There Muon [ended](2026-11-15-h200.md#learning-80-million-tokens-of-novels) "
        f"{muon_on_novels:.2f} nats below"
    ),
    (
        "That is about "
        f"{round(muon_on_novels / difference('half_time', 'without Muon', 'speedrun')[0], -1):.0f} times "
        "its"
    ),
    (
        f"over {spread(finals('half_time', 'speedrun')):.4f} for the speedrun and "
        f"{spread(finals('half_time', 'with 3 layers')):.4f} with 3"
    ),
    f"over at most {max(other_spreads):.4f} in all",
    # The race by the clock
    race_rows(),
    f"{300 - seconds([plain]):.0f} of the",
    f"not used, and {300 - seconds([first_speedrun]):.0f} in the",
    f"plain runs, by {signed(*gap(race_losses['plain'], race_losses['speedrun']))[1:]} nats",
    f"One speedrun ends at {min(race_losses['speedrun']):.4f}",
    f"by up to {final(first_speedrun) - final(speedrun):.4f} (the second",
    (
        f"the second is {speedrun['metrics']['step'][-1] - first_speedrun['metrics']['step'][-1]} updates "
        "longer"
    ),
    f"plain recipe ends after {seconds([plain]):.0f} s at",
    f"base experiment after {base_seconds:.0f} s: {loss_of(plain)} and {loss:.4f}.",
    f"the values are {final(plain, 'bits_per_byte'):.4f} and {bits:.4f}.",
    (
        "The speedruns, with "
        f"{speedrun['metrics']['tokens'][-1] / half['speedrun'][0]['metrics']['tokens'][-1]:.0f} times "
        "the tokens of `half_time`, are "
        f"{mean(finals('half_time', 'speedrun')) - mean(race_losses['speedrun']):.4f} below it"
    ),
    (
        f"it is at {after(speedrun, 100)} and plain at {after(plain, 100)}; after 250 s they are at "
        f"{after(speedrun, 250)} and {after(plain, 250)}"
    ),
    # Temperature and top-p
    sampling_rows(),
    f"standard error is {100 * sqrt(0.25 / 200):.1f} percentage points",
    (
        f"1 without top-p, {percent(written(1.0, 1.0))} of the stories have no mistake, although "
        f"{percent(written(1.0, 1.0, 'sound_sentences'), 1)} of the"
    ),
    f"In {percent(written(1.0, 1.0, 'well_formed') - written(1.0, 1.0))} every sentence",
    f"consistent stories to {percent(written(1.0, 0.8))}",
    (
        f"0.6 alone to {percent(written(0.6, 1.0), 1)}. Both at 0.8 give {percent(written(0.8, 0.8))} and "
        f"{percent(written(0.8, 0.8, 'distinct_words'), 1)} distinct words, compared with "
        f"{percent(written(1.0, 1.0, 'distinct_words'), 1)} without either and "
        f"{percent(written(0.2, 0.8, 'distinct_words'), 1)} at the"
    ),
    # What the models write
    f"new tokens, temperature {sampling['temperature']}, top-p {sampling['top_p']}",
    (
        f"first text has {checked['story'].num_sentences} sentences and the second "
        f"{checked['last'].num_sentences}, {'all' if all_sound else 'not all'} of them correct, and the "
        f"second text is {'consistent' if checked['last'].is_consistent else 'not consistent'}"
    ),
    f"first story is {'consistent' if checked['story'].is_consistent else 'not consistent'}",
    f"itself in its {' and '.join(checked['story'].contradictions)}",
    # Not run yet
    f"three seeds | {seconds([speedrun]):.0f} seconds",
]
FIGURES += QUOTED
SETTINGS = "the settings of the sweep"
NOTED = "noted when it was measured; in no file"
GIVEN = {
    # Settings, which occur in many places
    "batches of 128 windows": SETTINGS,
    "batches of 512": SETTINGS,
    "batches of 256 windows": SETTINGS,
    "Batches of 64": SETTINGS,
    "windows of 256": SETTINGS,
    "window of 256 tokens": SETTINGS,
    "256 windows": SETTINGS,
    "512 windows": SETTINGS,
    "runs with 512": SETTINGS,
    "128 windows are unstable": SETTINGS,
    "64 to 512 windows": SETTINGS,
    "between 64 and 512 windows": SETTINGS,
    "with 256 lowest": SETTINGS,
    "1,024 and 2,048 windows": SETTINGS,
    "2,048 and 4,096 windows": SETTINGS,
    "4,096 windows": SETTINGS,
    "(at 4,096:": SETTINGS,
    "from 128 to 4,096 windows": SETTINGS,
    "16 windows": SETTINGS,
    "16 to 128 windows": SETTINGS,
    "million with 16, compared": SETTINGS,
    "from 64 windows on": SETTINGS,
    "warm-up of 15, 8 and 4 updates": SETTINGS,
    "context of 256": SETTINGS,
    "context of 512": SETTINGS,
    "run at 256": SETTINGS,
    "from 256 to 2,048 tokens": SETTINGS,
    "Beyond 256": SETTINGS,
    "ms at 256": SETTINGS,
    "at 256.": SETTINGS,
    "2,048 tokens": SETTINGS,
    "32 tokens": SETTINGS,
    "40 million": SETTINGS,
    "50 million": SETTINGS,
    "120 million": SETTINGS,
    "400 MB": SETTINGS,
    "update 50": SETTINGS,
    "update 100": SETTINGS,
    "update 200": SETTINGS,
    "update 300": SETTINGS,
    "update 400": SETTINGS,
    "first 50 updates": SETTINGS,
    "first 100 updates": SETTINGS,
    "β1 of 0.98": SETTINGS,
    "β2 of 0.95": SETTINGS,
    "β2 of 0.98": SETTINGS,
    "A β2 of 0.95 or 0.98 does": SETTINGS,
    "ε of 1e-12": SETTINGS,
    "ε up to 1e-4": SETTINGS,
    "16 heads": SETTINGS,
    "4 heads instead of 16": SETTINGS,
    "4,096 to 8,192": SETTINGS,
    "The fastest is 4,096": SETTINGS,
    "vocabulary of 4,096 tokens": SETTINGS,
    "300 seconds": SETTINGS,
    "After 100 s": SETTINGS,
    "200 stories each": SETTINGS,
    "Both at 0.8": SETTINGS,
    "Top-p 0.8 alone": SETTINGS,
    "temperature of 0.2": SETTINGS,
    "256 new tokens": SETTINGS,
    '"It was", 256 tokens': SETTINGS,
    # Facts and limits
    "difference of 0.002": "a rule of thumb from the spreads in this paragraph",
    "below about 0.002": "a rule of thumb from the spreads above",
    "95 % interval": "the usual level",
    "goal of 95 s": "the goal that was set before the run",
    "700 W": "the data sheet",
    "turns of 20 steps": "the arguments of the benchmark",
    "Python 3.12": "the machine",
    "within 5 %": "the rule by which the table is made",
    "by more than 0.001": "the threshold",
    "less than 0.001": "an upper limit of the differences in the table",
    "costs only 0.001": "rounded from the table",
    "between 8 and 11 times": "8e-3 and 1.13e-2 by the best rate, 1e-3",
    "The course's 1.45": "the course",
    "loss of 1.45": "the course",
    "the same 327.68 million": "the course",
    "2.1 GB": "the size of that corpus",
    "1.5 million tokens": "the size of the sample",
    "57 MB": "the size of the corpus",
    "10,500 tokens": NOTED,
    "loss of 60,000": "rounded from the figure above",
    "about 37 s": NOTED,
    "took 100.0 s": NOTED,
}

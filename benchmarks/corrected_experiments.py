"""Repeat five experiments on the storybook: each variant at its own best rate, with paired seeds.

    python benchmarks/corrected_experiments.py --json corrected.json --limit 250              # an H200
    python benchmarks/corrected_experiments.py --json corrected.json --test --limit 900       # a CPU, minutes

    feed-forward   SwiGLU and SiLU at equal parameters, each at its best of several rates
    position       rotary embeddings and none, each at its best of several rates
    batch size     equal tokens, warm-up of 5 % of the steps, rates around the square-root rule
    vocabulary     equal bytes of text, contexts that hold a whole story
    context        equal tokens, on whole stories

All runs decay to zero. The rate of a variant is chosen on validation stories with one seed. The variants are
then compared on test stories, in bits per byte of whole stories, with five seeds each.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from harness import describe_machine, installed_versions, source_commit, write_report
from rich.console import Console
from rich.table import Table
from run_pool import Result, RunPool, Task, median_speed, read_earlier, select_new, shared_gpu

from bytewright.corpus import END_OF_TEXT
from bytewright.corpus.storybook import write_stories
from bytewright.experiments.evaluation.document_eval import DocumentTokens, evaluate_tokens
from bytewright.laws.inference import compare_means
from bytewright.system import usable_cores
from bytewright.tokenizer import Tokenizer
from bytewright.tokenizer.train import train_tokenizer
from bytewright.train.config import DataConfig, TrainConfig
from bytewright.train.recipe import read_recipe

RECIPE = Path(__file__).parents[1] / "recipes" / "short.toml"
WARM_UP = 0.05
SPEED = 3e6
"""Assumed tokens per second of a variant that has never been measured."""


@dataclass(frozen=True)
class Plan:
    """The size of the experiments."""

    tokens: int = 16_000_000
    text_bytes: int = 100_000_000
    bytes_per_run: int = 75_000_000
    """Text that each run of the vocabulary experiment reads."""
    stories: int = 1200
    """Stories for validation, and as many for the test."""
    vocab_size: int = 10_000
    vocabularies: tuple[int, ...] = (512, 1024, 4096, 10_000)
    batches: tuple[int, ...] = (32, 64, 128, 256, 512)
    more_rates: dict[int, tuple[float, ...]] = field(
        default_factory=lambda: {64: (1.6e-2,), 256: (5e-4, 1e-3), 512: (5e-4, 1e-3)}
    )
    """Further rates of the batches whose best rate was the lowest or the highest of `rates`."""
    contexts: tuple[int, ...] = (64, 128, 256, 512)
    rates: tuple[float, ...] = (2e-3, 4e-3, 8e-3)
    tokens_per_step: int = 32_768
    num_seeds: int = 5
    model: tuple[str, ...] = ("model.d_model=256", "model.num_heads=8")
    d_ff: int = 704
    further: tuple[str, ...] = ()


TEST = Plan(
    tokens=20_000,
    text_bytes=400_000,
    bytes_per_run=60_000,
    stories=20,
    vocab_size=600,
    vocabularies=(300, 600),
    batches=(4, 8),
    more_rates={4: (2e-3,)},
    contexts=(32, 64),
    rates=(4e-3, 8e-3),
    tokens_per_step=512,
    num_seeds=2,
    model=("model.d_model=32", "model.num_heads=2", "model.num_layers=1"),
    d_ff=64,
    further=("precision=fp32", "device=cpu"),
)


@dataclass(frozen=True)
class Variant:
    """One setting of an experiment, and the rates to choose from."""

    experiments: tuple[str, ...]
    name: str
    settings: tuple[str, ...]
    rates: tuple[float, ...]
    vocab_size: int
    num_tokens: int
    tokens_per_step: int = field(default=0)

    def config(self, plan: Plan, data: DataConfig, lr: float, seed: int) -> TrainConfig:
        """Return the config of one run."""
        num_steps = -(-self.num_tokens // self.tokens_per_step)
        return dataclasses.replace(
            read_recipe(
                RECIPE,
                [
                    *plan.model,
                    *plan.further,
                    f"model.d_ff={plan.d_ff}",
                    f"model.vocab_size={self.vocab_size}",
                    f"budget.tokens={num_steps * self.tokens_per_step}",
                    f"schedule.warmup={max(5, round(WARM_UP * num_steps))}",
                    "schedule.kind=linear",
                    "schedule.final=0.0",
                    f"optimizer.lr={lr}",
                    f"seed={seed}",
                    "log_every=100",
                    *self.settings,
                ],
            ),
            data=data,
        )


def make_variants(plan: Plan, bytes_per_token: dict[int, float]) -> list[Variant]:
    """Return the variants of the vocabularies that are ready; a variant can belong to several experiments."""
    size = plan.tokens_per_step
    middle = plan.contexts[-2]
    found = []

    def add(experiments: tuple[str, ...], name: str, context: int, *settings: str, **changes: Any) -> None:
        variant = Variant(
            experiments,
            name,
            (f"model.context_length={context}", f"batch_size={size // context}", *settings),
            rates=plan.rates,
            vocab_size=plan.vocab_size,
            num_tokens=plan.tokens,
            tokens_per_step=size,
        )
        found.append(dataclasses.replace(variant, **changes))

    add(("feed-forward", "position", "batch size", "context"), "baseline", middle)
    # Two matrices of 3/2 the width have as many parameters as three.
    add(("feed-forward",), "silu", middle, "model.ffn=silu", f"model.d_ff={3 * plan.d_ff // 2}")
    add(("position",), "no positions", middle, "model.position=none")
    best = plan.rates[len(plan.rates) // 2]
    for batch in plan.batches:
        if batch != size // middle:
            scale = math.sqrt(batch * middle / size)
            add(
                ("batch size",),
                f"batch {batch}",
                middle,
                f"batch_size={batch}",
                tokens_per_step=batch * middle,
                rates=tuple(
                    float(f"{rate * scale:.3g}")
                    for rate in sorted((*plan.rates, *plan.more_rates.get(batch, ())))
                ),
            )
    longest = plan.contexts[-1]
    for vocab_size in bytes_per_token:
        is_baseline = vocab_size == plan.vocab_size
        add(
            ("vocabulary", "context") if is_baseline else ("vocabulary",),
            f"context {longest}" if is_baseline else f"vocabulary {vocab_size}",
            longest,
            rates=(best,),
            vocab_size=vocab_size,
            num_tokens=round(plan.bytes_per_run / bytes_per_token[vocab_size]),
        )
    for context in plan.contexts[:-2]:
        add(("context",), f"context {context}", context, rates=(best,))
    return found


class Texts:
    """Stories for training, validation and test, and their tokens under each vocabulary."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder, self.plan = folder, plan
        folder.mkdir(parents=True, exist_ok=True)
        start = time.perf_counter()
        write_stories(folder / "train.txt", plan.text_bytes, seed=1, num_workers=usable_cores())
        self.floors = {}
        for name, seed in (("validation", 1), ("test", 2)):  # both of plots that are not in the training text
            written = write_stories(folder / f"{name}.txt", 850 * plan.stories, seed=seed, split="validation")
            self.floors[name] = written.bits_per_byte
        self.bytes_per_token: dict[int, float] = {}
        self.seconds = {"stories": time.perf_counter() - start}

    def add_vocabulary(self, vocab_size: int) -> None:
        """Train a tokenizer, and encode the text for training."""
        start, text = time.perf_counter(), self.folder / "train.txt"
        trained = train_tokenizer(text, vocab_size, [END_OF_TEXT])
        tokenizer = Tokenizer.from_vocabulary(trained.vocabulary)
        tokenizer.save(self.tokenizer(vocab_size))
        tokens = tokenizer.encode_file(text, self.tokens(vocab_size))
        self.bytes_per_token[vocab_size] = text.stat().st_size / len(tokens)
        self.seconds[f"vocabulary {vocab_size}"] = time.perf_counter() - start

    def tokenizer(self, vocab_size: int) -> Path:
        """Return the folder of a tokenizer."""
        return self.folder / f"tokenizer-{vocab_size}"

    def tokens(self, vocab_size: int) -> Path:
        """Return the token file for training."""
        return self.folder / f"train-{vocab_size}.npy"


@dataclass(frozen=True)
class StoryMeasure:
    """Measures a model on whole validation and test stories, in bits per byte."""

    folder: Path

    def __call__(self, model: Any) -> dict[str, Any]:
        """Return the bits per byte of each split, computed in float32 (TF32 on a GPU)."""
        tokenizer = Tokenizer.load(self.folder / f"tokenizer-{model.config.vocab_size}")
        torch.backends.cuda.matmul.allow_tf32 = True
        compute_dtype, model.compute_dtype = model.compute_dtype, None
        found = {}
        try:
            for split in ("validation", "test"):
                text = DocumentTokens.read(self.folder / f"{split}.txt", tokenizer)
                bits = evaluate_tokens(model, text.documents, text.end, batch_size=64)
                found[f"{split}_bits_per_byte"] = text.summarise(bits).bits_per_byte
        finally:
            model.compute_dtype = compute_dtype
            torch.backends.cuda.matmul.allow_tf32 = False
        return found


def make_task(variant: Variant, plan: Plan, texts: Texts, lr: float, seed: int) -> Task:
    """Return one run of a variant."""
    config = variant.config(plan, DataConfig(train=texts.tokens(variant.vocab_size)), lr, seed)
    name = f"{variant.name.replace(' ', '-')}-{lr:g}-{seed}"
    about = {
        "experiments": list(variant.experiments),
        "variant": variant.name,
        "lr": lr,
        "seed": seed,
        "tokens": (config.num_steps or 0) * config.tokens_per_step,
        "steps": config.num_steps,
        "warmup": config.schedule.warmup,
        "bytes_per_token": texts.bytes_per_token[variant.vocab_size],
        "settings": list(variant.settings),
    }
    return Task(name, variant.name.replace(" ", "-"), config, about)


def repeat_task(task: Task) -> Task:
    """Return a run again, under another name: it shows whether later code gives the same result."""
    about = {**task.about, "variant": f"repeat of {task.about['variant']}", "experiments": []}
    return dataclasses.replace(task, name=f"repeat-{task.name}", about=about)


def best_rate(variant: Variant, runs: list[Result]) -> float:
    """Return the rate with the lowest validation loss of the first seed."""
    found = {
        run["lr"]: run["validation_bits_per_byte"]
        for run in runs
        if run.get("variant") == variant.name and "error" not in run and run["seed"] == 0
    }
    finite = {lr: loss for lr, loss in found.items() if math.isfinite(loss)}
    return min(finite, key=lambda lr: finite[lr], default=variant.rates[len(variant.rates) // 2])


def print_tables(variants: list[Variant], runs: list[Result], floor: float) -> None:
    """Print, for each experiment, the variants at their best rates and t intervals of paired differences."""
    console = Console(width=130)
    for experiment in ("feed-forward", "position", "batch size", "vocabulary", "context"):
        members = [variant for variant in variants if experiment in variant.experiments]
        table = Table(title=f"{experiment}: test stories, bits per byte; floor {floor:.5f}")
        for heading in ("variant", "rates tried", "best rate", "seeds", "above the floor", "against first"):
            table.add_column(heading, justify="left" if heading == "variant" else "right")
        first: dict[int, float] = {}
        for variant in members:
            lr = best_rate(variant, runs)
            found = {
                run["seed"]: run["test_bits_per_byte"] - floor
                for run in runs
                if run.get("variant") == variant.name and "error" not in run and run["lr"] == lr
            }
            first = first or found
            pairs = [found[seed] - first[seed] for seed in sorted(found.keys() & first.keys())]
            shown = f"{statistics.mean(pairs):+.5f}" if pairs else ""
            if len(pairs) > 1 and (difference := compare_means(found, first)) is not None:
                shown += f" ± {difference.half_width():.5f}"
            table.add_row(
                variant.name,
                " ".join(f"{rate:g}" for rate in variant.rates),
                f"{lr:g}",
                str(len(found)),
                f"{statistics.mean(found.values()):.5f}" if found else "",
                shown,
            )
        console.print(table)
    for run in runs:
        if "error" in run:
            print(f"failed: {run['name']}: {run['error']}")


def main() -> None:
    """Run everything and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=250.0, help="seconds after which everything ends")
    parser.add_argument("--slots", type=int, help="runs at a time; by default 6 with MPS, and otherwise 2")
    parser.add_argument(
        "--mps", action="store_true", help="run kernels of several runs on the GPU at the same time"
    )
    parser.add_argument("--earlier", type=Path, nargs="*", default=[], help="earlier results; not repeated")
    parser.add_argument("--test", action="store_true", help="a small size, for a CPU")
    options, start = parser.parse_args(), time.monotonic()
    with shared_gpu(options.mps) as is_shared:
        run_all(options, start, is_shared)


def run_all(options: argparse.Namespace, start: float, is_shared: bool) -> None:
    """Run everything that no earlier call has run, and print the tables."""
    plan = TEST if options.test else Plan()
    runs = read_earlier(options.earlier)
    num_slots = options.slots or (6 if is_shared else 2)
    on_gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    about = {
        "machine": describe_machine() | {"cuda": on_gpu},
        "commit": source_commit(),
        "versions": installed_versions(["torch"]),
        "slots": num_slots,
        "mps": is_shared,
        "plan": dataclasses.asdict(plan),
    }
    with tempfile.TemporaryDirectory(prefix="corrected") as temporary:
        texts = Texts(Path(temporary, "texts"), plan)
        pool = RunPool(Path(temporary, "runs"), num_slots=num_slots, deadline=start + options.limit - 8)
        measure = StoryMeasure(texts.folder)

        def add(task: Task, result: Result) -> None:
            runs.append({**result, "commit": about["commit"]})
            shown = result.get("error") or f"{result['test_bits_per_byte'] - texts.floors['test']:.5f}"
            print(f"{time.monotonic() - start:4.0f} s: {task.name}: {shown}", flush=True)
            write_report(
                options.json, {**about, "seconds": texts.seconds, "floors": texts.floors, "runs": runs}
            )

        def speed(task: Task) -> float:
            return median_speed(runs, variant=task.about["variant"]) or SPEED

        largest = f"batch {plan.batches[-1]}"  # much worse than the others, so its further seeds come last
        try:
            for vocab_size in (plan.vocab_size, *plan.vocabularies[:-1]):
                texts.add_vocabulary(vocab_size)
                variants = make_variants(plan, texts.bytes_per_token)
                pool.warm_up(make_task(each, plan, texts, each.rates[0], 0) for each in variants)
            print(f"{time.monotonic() - start:.0f} s: the data is ready; {texts.seconds}", flush=True)
            rates = [(variant, lr) for variant in variants for lr in variant.rates]
            first = select_new([make_task(variant, plan, texts, lr, 0) for variant, lr in rates], runs)
            if options.earlier:
                first.append(
                    repeat_task(make_task(variants[0], plan, texts, best_rate(variants[0], runs), 0))
                )
            pool.run(first, measure, add, speed)
            seeds = [(v, seed) for seed in range(1, plan.num_seeds) for v in variants]
            seeds.sort(key=lambda each: each[0].name == largest)
            further = [make_task(v, plan, texts, best_rate(v, runs), seed) for v, seed in seeds]
            pool.run(select_new(further, runs), measure, add, speed)
        finally:
            pool.close()
    print(f"{time.monotonic() - start:.0f} s in all")
    print_tables(variants, runs, texts.floors["test"])


if __name__ == "__main__":
    main()

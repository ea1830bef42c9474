"""How well recipes learn at equal tokens, data and parameters: ours beside the plain baseline's best.

    python benchmarks/learning_data.py novels.txt --out benchmarks/data/novels
    python benchmarks/learning.py --data benchmarks/data/novels --json benchmarks/out/learning.json

The baseline (`plain`: library layers, autocast, fused library AdamW, cosine to a tenth) gets a sweep of its
own over five learning rates; ours get a few settings each of AdamW and Muon. All start from the same weights
and see the same batches (`learning.toml`). All are measured by the same code, the readable twin in
fp32: over the whole validation file at the end, and over a fixed part of it on the way. Then the best of each
learns again from other seeds. Every finished run is in the JSON at once, and a run that is there already is
not repeated: a session that was cut off is continued by the same command.
"""

from __future__ import annotations

import math
import re
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from harness import commit, machine, versions, wide_console
from learning_contestants import Learner, make_learner, what_is_compiled
from rich.console import Console
from rich.table import Table

from bytewright.account import count_parameters
from bytewright.data.sampler import TokenStore
from bytewright.model import ModelConfig, TransformerLM, language_model_loss
from bytewright.storage import atomic
from bytewright.train.config import Device, TrainConfig
from bytewright.train.evaluate import Evaluation, EvaluationSet
from bytewright.train.inputs import Inputs, make_sampler, open_inputs
from bytewright.train.metrics import finite
from bytewright.train.recipe import read_recipe
from bytewright.train.setup import find_device

RECIPE = Path(__file__).with_name("learning.toml")
NUM_LOOKS = 8
"""Evaluations on the way, the last one not counted."""
NUM_POINTS = 48
"""Points of the curve of the training loss, each the mean since the one before; a multiple of the looks."""
TOKENS_ON_THE_WAY = 2**17
EVALUATION_BATCH = 64

COSINE = "schedule.kind=cosine schedule.final=0.1"
MUON = "optimizer.name=muon"
RUNS = (
    *(f"plain {COSINE} optimizer.lr={lr}" for lr in ("4e-3", "2e-3", "8e-3", "1e-3", "16e-3")),
    *(f"adamw optimizer.lr={lr}" for lr in ("4e-3", "8e-3")),
    *(
        f"muon {MUON} optimizer.muon_lr={muon} optimizer.lr={lr}"
        for muon, lr in (("0.02", "4e-3"), ("0.02", "8e-3"), ("0.01", "4e-3"))
    ),
    *(
        f"muon {MUON} optimizer.weight_decay=0.03 optimizer.muon_lr={muon} optimizer.lr={lr}"
        for muon, lr in (("0.02", "4e-3"), ("0.03", "8e-3"))
    ),
    *(f"adamw optimizer.weight_decay=0.3 optimizer.lr={lr}" for lr in ("3e-3", "6e-3")),
    # More decay helped: where does it stop, and how much would it help the baseline?
    *(
        f"muon {MUON} optimizer.weight_decay=0.3 optimizer.muon_lr={muon} optimizer.lr=4e-3"
        for muon in ("0.02", "0.01")
    ),
    "adamw optimizer.weight_decay=1.0 optimizer.lr=2e-3",
    f"plain {COSINE} optimizer.weight_decay=0.3 optimizer.lr=3e-3",
)
"""A contestant's name, then what it sets in the recipe."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to compare, and on what."""

    data: Path
    """The folder that learning_data.py made."""
    json: Path
    """Where the results are kept; runs that it holds already are not repeated."""
    device: Device = "auto"
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Replace a value of the recipe for everybody, such as batch_size=64."""
    run: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Run this setting too, such as 'muon optimizer.name=muon optimizer.muon_lr=0.03'."""
    only: tuple[str, ...] = ("plain", "adamw", "muon")
    """Contestants."""
    seeds: int = 2
    """With how many seeds the best of each contestant is to have learnt in the end."""
    limit_seconds: float = math.inf
    """Begin no run that would probably end later than this."""


class SweepContext:
    """Data, device and judge, and the learner that is built at the moment."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.device = find_device(options.device)
        config = self.config_of(RUNS[0])
        self.inputs: Inputs = open_inputs(config)
        self.store = TokenStore(self.inputs.train, self.device)
        self.judge = Judge(self.inputs, config.model, self.device)
        self._learner: Learner | None = None
        self._built_for: object = None

    def config_of(self, run: str) -> TrainConfig:
        """Resolve a run's settings."""
        data = self.options.data
        own = [f"data.train={data / 'train.npy'}", f"data.validation={data / 'validation.npy'}"]
        own += [f"data.tokenizer={data / 'tokenizer'}", f"device={self.device.type}"]
        return read_recipe(RECIPE, [*own, *self.options.set, *run.split()[1:]])

    def learn(self, run: str) -> dict[str, Any]:
        """Do one run from its first batch to its last; say what came of it."""
        began = time.perf_counter()
        config, name = self.config_of(run), run.split()[0]
        learner = self._learner_for(name, config)
        learner.start(config)
        sampler = make_sampler(config, self.inputs)
        num_steps = config.num_steps or 0
        marks = sorted({round(num_steps * i / NUM_POINTS) for i in range(1, NUM_POINTS + 1)} - {0})
        looks = {marks[len(marks) * i // (NUM_LOOKS + 1) - 1] for i in range(1, NUM_LOOKS + 1)} - {num_steps}
        training, validation, losses, seconds = [], [], [], 0.0
        build_seconds, segment = 0.0, time.perf_counter()
        for step in range(num_steps):
            batch = self.store.batch(sampler.starts(step), config.model.context_length)
            losses.append(learner.step(batch, config.schedule.factor(step + 1, num_steps)))
            if step == 0:
                losses[0].item()  # all that is compiled is compiled by now
                build_seconds, segment = time.perf_counter() - began, time.perf_counter()
            if step + 1 in marks:
                loss = torch.stack(losses).mean().item()
                losses.clear()
                seconds += time.perf_counter() - segment
                tokens = (step + 1) * config.tokens_per_step
                training.append((tokens, loss))
                if not math.isfinite(loss):
                    break
                if step + 1 in looks:
                    validation.append((tokens, self.judge.glance(learner).loss))
                segment = time.perf_counter()
        final = self.judge.measure(learner) if math.isfinite(loss) else None
        result: dict[str, Any] = finite(
            {
                "run": run,
                "contestant": name,
                "seed": config.seed,
                "loss": final and final.loss,
                "perplexity": final and final.perplexity,
                "bits_per_byte": final and final.bits_per_byte,
                "num_parameters": sum(weight.numel() for weight in learner.weights().values()),
                "tokens": tokens,
                "tokens_per_second": (tokens - config.tokens_per_step) / seconds,
                "seconds": time.perf_counter() - began,
                "build_seconds": build_seconds,
                "training_curve": training,
                "validation_curve": validation,
            }
        )
        return result

    def _learner_for(self, name: str, config: TrainConfig) -> Learner:
        wanted = what_is_compiled(name, config)
        if self._learner is None or self._built_for != wanted:
            self._learner, self._built_for = None, wanted  # room for the next
            self._learner = make_learner(name, config, self.device)
        return self._learner


class Judge:
    """Measures weights, whoever learnt them: the readable twin in fp32, not compiled."""

    def __init__(self, inputs: Inputs, model: ModelConfig, device: torch.device) -> None:
        fields = model.to_dict() | {"implementation": "reference"}
        self.model = TransformerLM(ModelConfig(**fields), device)
        assert inputs.validation is not None

        def choose(max_tokens: int | None) -> EvaluationSet:
            assert inputs.validation is not None
            return EvaluationSet(
                inputs.validation,
                device,
                context_length=model.context_length,
                batch_size=EVALUATION_BATCH,
                max_tokens=max_tokens,
                token_bytes=inputs.token_bytes,
            )

        self.part, self.whole = choose(TOKENS_ON_THE_WAY), choose(None)

    def glance(self, learner: Learner) -> Evaluation:
        """Measure on a part of the validation file."""
        return self._evaluate(learner, self.part)

    def measure(self, learner: Learner) -> Evaluation:
        """Measure on all of the validation file."""
        return self._evaluate(learner, self.whole)

    @torch.no_grad()
    def _evaluate(self, learner: Learner, windows: EvaluationSet) -> Evaluation:
        self.model.load_state_dict(learner.weights())
        return windows.evaluate(lambda ids, targets: language_model_loss(self.model, ids, targets))


def main(options: Options) -> None:
    """Run what is not in the JSON yet, and show all that is."""
    began, console = time.perf_counter(), wide_console()
    bench = SweepContext(options)
    record = open_record(options, bench)
    done: list[dict[str, Any]] = record["runs"]
    sweep = [run for run in (*RUNS, *options.run) if run.split()[0] in options.only]
    slowest: dict[str, float] = {}
    while run := next_run(sweep, done, options.seeds):
        needed = slowest.get(run.split()[0], max(slowest.values(), default=0.0))
        if time.perf_counter() - began + needed > options.limit_seconds:
            console.print(f"no time left for {run!r}; the same command goes on from here", style="bold")
            break
        result = bench.learn(run)
        done.append(result)
        atomic.write_json(options.json, record)
        slowest[result["contestant"]] = max(slowest.get(result["contestant"], 0.0), result["seconds"])
        console.print(
            f"{run}: loss {show(result['loss'])}, {result['tokens_per_second']:,.0f} tokens/s, "
            f"{result['seconds']:.0f} s ({result['build_seconds']:.0f} s of them to the first step)"
        )
    print_table(console, done)
    print_verdict(console, done)


def open_record(options: Options, bench: SweepContext) -> dict[str, Any]:
    """Read the results so far, or begin; results of other data or another recipe are refused."""
    config = bench.config_of(RUNS[0])
    conditions = {
        "recipe": tomllib.loads(RECIPE.read_text()),
        "set": list(options.set),
        "data": dict(bench.inputs.identity),
        "parameters": count_parameters(config.model).total,
    }
    if options.json.exists():
        record: dict[str, Any] = atomic.read_json(options.json)  # type: ignore[assignment]
        found = dict(record["conditions"])
        if isinstance(found["recipe"], str):  # the first results kept its text
            found["recipe"] = tomllib.loads(found["recipe"])
        if found != conditions:
            raise SystemExit(f"{options.json} holds results under other conditions; choose another file")
        return record
    on_gpu = torch.cuda.get_device_name() if bench.device.type == "cuda" else None
    about = {"machine": machine() | {"cuda": on_gpu}, "commit": commit(), "versions": versions(["torch"])}
    return about | {"conditions": conditions, "runs": []}


def next_run(sweep: list[str], done: list[dict[str, Any]], num_seeds: int) -> str | None:
    """Choose what to run next: the sweep in its order, then the best of each contestant from other seeds."""
    names = {result["run"] for result in done}
    for run in sweep:
        if run not in names:
            return run
    for seed in range(1, num_seeds):
        for contestant in dict.fromkeys(run.split()[0] for run in sweep):
            best = best_of(done, contestant)
            if best and f"{best['run']} seed={seed}" not in names:
                return f"{best['run']} seed={seed}"
    return None


def best_of(done: list[dict[str, Any]], contestant: str) -> dict[str, Any] | None:
    """Find the best setting of a contestant by its loss from the first seed."""
    results = [r for r in done if r["contestant"] == contestant and r["seed"] == 0 and r["loss"] is not None]
    return min(results, key=lambda result: float(result["loss"]), default=None)


def print_table(console: Console, done: list[dict[str, Any]]) -> None:
    """Print every run, the best first."""
    table = Table(title="validation loss after the last token", title_justify="left")
    for heading in ("contestant", "settings", "loss", "perplexity", "bits per byte", "tokens/s", "seconds"):
        is_text = heading in ("contestant", "settings")
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=not is_text)
    for result in sorted(done, key=lambda result: result["loss"] or math.inf):
        contestant, *settings = result["run"].split()
        table.add_row(
            contestant,
            " ".join(re.sub(r"^\w+\.", "", setting) for setting in settings),
            show(result["loss"]),
            show(result["perplexity"]),
            show(result["bits_per_byte"]),
            f"{result['tokens_per_second']:,.0f}",
            f"{result['seconds']:.0f}",
        )
    console.print(table)


def print_verdict(console: Console, done: list[dict[str, Any]]) -> None:
    """Print how far the best of ours is from the best of the baseline, seed by seed."""
    baseline = best_of(done, "plain")
    for contestant in ("adamw", "muon"):
        best = best_of(done, contestant)
        if not (baseline and best):
            continue
        theirs, ours = losses_by_seed(done, baseline), losses_by_seed(done, best)
        gains = [theirs[seed] - ours[seed] for seed in sorted(theirs.keys() & ours.keys())]
        figures = ", ".join(f"{-gain:+.4f}" for gain in gains)
        console.print(
            f"best {contestant} against the best of the baseline: {figures} nats (one figure per seed)",
            style="bold green" if min(gains) > 0 else "bold red",
        )


def losses_by_seed(done: list[dict[str, Any]], best: dict[str, Any]) -> dict[int, float]:
    """Collect the losses of a setting from all seeds."""
    same = [r for r in done if r["run"].split(" seed=")[0] == best["run"] and r["loss"] is not None]
    return {result["seed"]: result["loss"] for result in same}


def show(value: float | None) -> str:
    """Write a loss, or say that there is none."""
    return "diverged" if value is None else f"{value:.4f}"


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))

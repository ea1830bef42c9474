"""Compare the validation loss of recipes at equal tokens, data and parameters: ours and a plain baseline.

    python benchmarks/learning_data.py novels.txt --out benchmarks/data/novels
    python benchmarks/learning.py --data benchmarks/data/novels --json benchmarks/out/learning.json

The baseline (`plain`: torch's layers, autocast, fused AdamW, cosine schedule to a tenth) has its own sweep
over five learning rates. Ours are a few settings each of AdamW and Muon. All start from the same weights and
read the same batches (`learning.toml`). The reference model in fp32 evaluates the weights of all: on the
whole validation file at the end, and on a fixed part of it during training. Then the best setting of each
contestant is trained again from other seeds. The JSON is written after every run. Runs that it already
contains are not repeated, so the same command continues an interrupted session.
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
from harness import describe_machine, installed_versions, source_commit, wide_console
from model_peers import Learner, compiled_settings, make_learner
from rich.console import Console
from rich.table import Table

from bytewright.account import count_parameters
from bytewright.data.sampler import TokenStore
from bytewright.model import ModelConfig, TransformerLM, language_model_loss
from bytewright.storage import atomic
from bytewright.train.config import DeviceName, TrainConfig
from bytewright.train.evaluate import Evaluation, EvaluationSet
from bytewright.train.metrics import finite
from bytewright.train.recipe import read_recipe
from bytewright.train.setup import Inputs, make_window_sampler, open_inputs, select_device

RECIPE = Path(__file__).with_name("learning.toml")
NUM_EVALUATIONS = 8
"""Evaluations during training, without the one at the end."""
NUM_POINTS = 48
"""Points of the training loss curve, each the mean since the previous one; a multiple of the evaluations."""
EVALUATION_TOKENS = 2**17
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
    # More weight decay helped: find the best value, and test it with the baseline.
    *(
        f"muon {MUON} optimizer.weight_decay=0.3 optimizer.muon_lr={muon} optimizer.lr=4e-3"
        for muon in ("0.02", "0.01")
    ),
    "adamw optimizer.weight_decay=1.0 optimizer.lr=2e-3",
    f"plain {COSINE} optimizer.weight_decay=0.3 optimizer.lr=3e-3",
)
"""Each run is a contestant's name followed by its changes of the recipe."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The contestants, their data and the device."""

    data: Path
    """The folder that learning_data.py created."""
    json: Path
    """The results file; runs that it contains are not repeated."""
    device: DeviceName = "auto"
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Replace a value of the recipe for all contestants, such as batch_size=64."""
    run: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Add a run, such as 'muon optimizer.name=muon optimizer.muon_lr=0.03'."""
    only: tuple[str, ...] = ("plain", "adamw", "muon")
    """Contestants to run."""
    seeds: int = 2
    """Number of seeds for the best setting of each contestant."""
    limit_seconds: float = math.inf
    """Do not start a run that would probably end later than this."""


class Comparison:
    """The data, device and evaluator of all runs, and the current learner."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.device = select_device(options.device)
        config = self.config_of(RUNS[0])
        self.inputs: Inputs = open_inputs(config)
        self.store = TokenStore(self.inputs.train, self.device)
        self.evaluator = Evaluator(self.inputs, config.model, self.device)
        self._learner: Learner | None = None
        self._built_for: object = None

    def config_of(self, run: str) -> TrainConfig:
        """Return the config of a run."""
        data = self.options.data
        own = [f"data.train={data / 'train.npy'}", f"data.validation={data / 'validation.npy'}"]
        own += [f"data.tokenizer={data / 'tokenizer'}", f"device={self.device.type}"]
        return read_recipe(RECIPE, [*own, *self.options.set, *run.split()[1:]])

    def learn(self, run: str) -> dict[str, Any]:
        """Train one run from its first batch to its last; return its results."""
        began = time.perf_counter()
        config, name = self.config_of(run), run.split()[0]
        learner = self._learner_for(name, config)
        learner.start(config)
        sampler = make_window_sampler(config, self.inputs)
        num_steps = config.num_steps or 0
        marks = sorted({round(num_steps * i / NUM_POINTS) for i in range(1, NUM_POINTS + 1)} - {0})
        eval_steps = {
            marks[len(marks) * i // (NUM_EVALUATIONS + 1) - 1] for i in range(1, NUM_EVALUATIONS + 1)
        } - {num_steps}
        training, validation, losses, seconds = [], [], [], 0.0
        build_seconds, segment = 0.0, time.perf_counter()
        for step in range(num_steps):
            batch = self.store.batch(sampler.starts(step), config.model.context_length)
            losses.append(learner.step(batch, config.schedule.factor(step + 1, num_steps)))
            if step == 0:
                losses[0].item()  # wait for the compilation to finish
                build_seconds, segment = time.perf_counter() - began, time.perf_counter()
            if step + 1 in marks:
                loss = torch.stack(losses).mean().item()
                losses.clear()
                seconds += time.perf_counter() - segment
                tokens = (step + 1) * config.tokens_per_step
                training.append((tokens, loss))
                if not math.isfinite(loss):
                    break
                if step + 1 in eval_steps:
                    validation.append((tokens, self.evaluator.measure_part(learner).loss))
                segment = time.perf_counter()
        final = self.evaluator.measure_all(learner) if math.isfinite(loss) else None
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
        settings = compiled_settings(name, config)
        if self._learner is None or self._built_for != settings:
            self._learner, self._built_for = None, settings  # release the old learner's memory first
            self._learner = make_learner(name, config, self.device)
        return self._learner


class Evaluator:
    """Evaluate the weights of any learner with the reference model in fp32, not compiled."""

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

        self.part, self.whole = choose(EVALUATION_TOKENS), choose(None)

    def measure_part(self, learner: Learner) -> Evaluation:
        """Evaluate on a fixed part of the validation file."""
        return self._evaluate(learner, self.part)

    def measure_all(self, learner: Learner) -> Evaluation:
        """Evaluate on the whole validation file."""
        return self._evaluate(learner, self.whole)

    @torch.no_grad()
    def _evaluate(self, learner: Learner, windows: EvaluationSet) -> Evaluation:
        self.model.load_state_dict(learner.weights())
        return windows.evaluate(lambda ids, targets: language_model_loss(self.model, ids, targets))


def main(options: Options) -> None:
    """Run everything that the JSON does not contain yet, and print all results."""
    began, console = time.perf_counter(), wide_console()
    comparison = Comparison(options)
    record = open_record(options, comparison)
    done: list[dict[str, Any]] = record["runs"]
    sweep = [run for run in (*RUNS, *options.run) if run.split()[0] in options.only]
    slowest: dict[str, float] = {}
    while run := next_run(sweep, done, options.seeds):
        needed = slowest.get(run.split()[0], max(slowest.values(), default=0.0))
        if time.perf_counter() - began + needed > options.limit_seconds:
            console.print(f"no time left for {run!r}; the same command continues from here", style="bold")
            break
        result = comparison.learn(run)
        done.append(result)
        atomic.write_json(options.json, record)
        slowest[result["contestant"]] = max(slowest.get(result["contestant"], 0.0), result["seconds"])
        console.print(
            f"{run}: loss {format_loss(result['loss'])}, {result['tokens_per_second']:,.0f} tokens/s, "
            f"{result['seconds']:.0f} s (of which {result['build_seconds']:.0f} s until the first step)"
        )
    print_table(console, done)
    print_verdict(console, done)


def open_record(options: Options, comparison: Comparison) -> dict[str, Any]:
    """Return the results so far, or an empty record; reject results of other data or another recipe."""
    config = comparison.config_of(RUNS[0])
    conditions = {
        "recipe": tomllib.loads(RECIPE.read_text()),
        "set": list(options.set),
        "data": dict(comparison.inputs.identity),
        "parameters": count_parameters(config.model).total,
    }
    if options.json.exists():
        record: dict[str, Any] = atomic.read_json(options.json)  # type: ignore[assignment]
        found = dict(record["conditions"])
        if isinstance(found["recipe"], str):  # the oldest results contain the recipe as text
            found["recipe"] = tomllib.loads(found["recipe"])
        if found != conditions:
            raise SystemExit(f"{options.json} has results under other conditions; choose another file")
        return record
    on_gpu = torch.cuda.get_device_name() if comparison.device.type == "cuda" else None
    about = {
        "machine": describe_machine() | {"cuda": on_gpu},
        "commit": source_commit(),
        "versions": installed_versions(["torch"]),
    }
    return about | {"conditions": conditions, "runs": []}


def next_run(sweep: list[str], done: list[dict[str, Any]], num_seeds: int) -> str | None:
    """Return the next run: first the sweep in order, then the best of each contestant from other seeds."""
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
    """Return a contestant's setting with the lowest loss from the first seed."""
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
            format_loss(result["loss"]),
            format_loss(result["perplexity"]),
            format_loss(result["bits_per_byte"]),
            f"{result['tokens_per_second']:,.0f}",
            f"{result['seconds']:.0f}",
        )
    console.print(table)


def print_verdict(console: Console, done: list[dict[str, Any]]) -> None:
    """Print the difference between our best setting and the baseline's best, seed by seed."""
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
    """Return the losses of a setting by seed."""
    same = [r for r in done if r["run"].split(" seed=")[0] == best["run"] and r["loss"] is not None]
    return {result["seed"]: result["loss"] for result in same}


def format_loss(value: float | None) -> str:
    """Format a loss, or "diverged" for None."""
    return "diverged" if value is None else f"{value:.4f}"


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))

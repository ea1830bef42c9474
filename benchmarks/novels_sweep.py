"""Find a recipe for a small corpus: passes, rate, tied embeddings and weight decay, tested on other authors.

    python benchmarks/author_split.py novels.txt --out benchmarks/data/authors
    python benchmarks/novels_sweep.py --data benchmarks/data/authors --json novels.json     # an H200

All runs have the base experiment's shape. Settings are chosen by the loss on validation authors with one
seed. The best one, the former recipe and a GPT-2 of transformers at its best rate are then compared on test
authors, with three seeds each. The loss is the mean over adjacent windows of the context length, in nats.
The GPT-2 has the architecture and the settings of nanoGPT: LayerNorm, learned positions, GELU, tied
embeddings, AdamW with weight decay 0.1, cosine schedule to a tenth.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import multiprocessing
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from harness import describe_machine, installed_versions, source_commit, write_report
from rich.console import Console
from rich.table import Table
from run_pool import Result, RunPool, Task, read_earlier, select_new
from torch import Tensor
from torch.nn.functional import cross_entropy

from bytewright.data.sampler import TokenStore, WindowSampler, side_by_side_starts
from bytewright.data.tokenfile import TokenFile
from bytewright.optim.schedules import cosine_schedule
from bytewright.train.config import DataConfig, TrainConfig
from bytewright.train.recipe import read_recipe

RECIPE = Path(__file__).with_name("learning.toml")
SPEED = 2e6
FIRST_STAGE = 0.62
"""The share of the time in which settings are searched; then seeds are added."""


@dataclass(frozen=True)
class Setting:
    """The varied settings of a run."""

    tied: bool
    lr: float
    weight_decay: float
    million_tokens: float

    @property
    def name(self) -> str:
        """The name of the runs."""
        tied = "tied" if self.tied else "untied"
        return f"{tied} lr {self.lr:g} decay {self.weight_decay:g} tokens {self.million_tokens:g}M"

    @property
    def shape(self) -> str:
        """Runs of equal shape share compiled code."""
        return f"{'tied' if self.tied else 'untied'}-{self.weight_decay:g}"


FORMER = Setting(False, 3e-3, 0.3, 80)
"""recipes/novels.toml before this sweep."""
SETTINGS = (
    FORMER,
    Setting(True, 1e-3, 1.0, 80),
    Setting(True, 1e-3, 1.0, 40),
    Setting(True, 2e-3, 1.0, 40),
    Setting(True, 1e-3, 0.3, 40),
    Setting(True, 1e-3, 2.0, 40),
    Setting(False, 1e-3, 1.0, 40),
    Setting(True, 2e-3, 1.0, 80),
    Setting(True, 1e-3, 2.0, 80),
    Setting(True, 5e-4, 1.0, 80),
)
PEER_RATES = (5e-4, 1e-3)
NUM_SEEDS = 3
PARTS = ("train", "validation", "test")


def measure_loss(
    logits_of: Callable[[Tensor], Tensor], tokens: Any, context_length: int, device: torch.device
) -> float:
    """Return the mean loss in nats over adjacent windows of a token file."""
    store = TokenStore(tokens, device)
    starts = side_by_side_starts(len(tokens), context_length)
    total, count = 0.0, 0
    with torch.no_grad():
        for first in range(0, len(starts), 64):
            ids, targets = store.batch(starts[first : first + 64], context_length)
            logits = logits_of(ids).float().flatten(0, 1)
            total += cross_entropy(logits, targets.flatten(), reduction="sum").item()
            count += targets.numel()
    return total / count


@dataclass(frozen=True)
class AuthorMeasure:
    """Measures a model on the authors of each part, in float32 (TF32 on a GPU)."""

    data: Path

    def __call__(self, model: Any) -> Mapping[str, Any]:
        """Return the losses."""
        compute_dtype, model.compute_dtype = model.compute_dtype, None
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            return self.losses(model, model.config.context_length, model.output_weight.device)
        finally:
            model.compute_dtype = compute_dtype
            torch.backends.cuda.matmul.allow_tf32 = False

    def losses(self, logits_of: Any, context_length: int, device: torch.device) -> dict[str, float]:
        """Return the losses of a function from ids to logits."""
        found = {}
        for part in PARTS:
            tokens = TokenFile.open(self.data / f"{part}.npy").tokens
            if part == "train":  # as much as is measured of the others
                tokens = tokens[: 2**20]
            found[f"{part}_loss"] = measure_loss(logits_of, tokens, context_length, device)
        return found


def make_task(setting: Setting, data: Path, changes: list[str], seed: int = 0) -> Task:
    """Return one of our runs."""
    config = read_recipe(
        RECIPE,
        [
            f"model.tie_embeddings={str(setting.tied).lower()}",
            f"optimizer.lr={setting.lr}",
            f"optimizer.weight_decay={setting.weight_decay}",
            f"budget.tokens={round(1e6 * setting.million_tokens)}",
            f"seed={seed}",
            *changes,
        ],
    )
    config = dataclasses.replace(config, data=DataConfig(train=data / "train.npy"))
    about = dataclasses.asdict(setting) | {"setting": setting.name, "seed": seed, "contestant": "ours"}
    return Task(f"{setting.name.replace(' ', '-')}-{seed}", setting.shape, config, about)


def train_peer(config: TrainConfig, data: Path, lr: float, seed: int) -> Result:
    """Train a GPT-2 of transformers with the tokens, batches and steps of `config`; return its losses."""
    from transformers import GPT2Config, GPT2LMHeadModel

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    shape = config.model
    sizes = GPT2Config(
        vocab_size=shape.vocab_size,
        n_positions=shape.context_length,
        n_embd=shape.d_model,
        n_layer=shape.num_layers,
        n_head=shape.num_heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    make_model: Any = GPT2LMHeadModel
    model = make_model(sizes).to(device)
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=device.type == "cuda")
    tokens = TokenFile.open(data / "train.npy").tokens
    store = TokenStore(tokens, device)
    sampler = WindowSampler(
        num_tokens=len(tokens),
        context_length=shape.context_length,
        batch_size=config.batch_size,
        seed=seed,
    )

    def loss_of(ids: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = model(input_ids=ids).logits
        return cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    compiled: Any = torch.compile(loss_of, dynamic=False) if device.type == "cuda" else loss_of
    num_steps, warmup = config.num_steps or 0, config.schedule.warmup
    start = time.perf_counter()
    loss = torch.zeros(())
    for step in range(num_steps):
        for group in optimizer.param_groups:
            group["lr"] = cosine_schedule(step + 1, lr, lr / 10, warmup, num_steps)
        loss = compiled(*store.batch(sampler.starts(step), shape.context_length))
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    measured: Result = {"training_loss": loss.item(), "training_seconds": time.perf_counter() - start}
    model.eval()
    torch.backends.cuda.matmul.allow_tf32 = True
    losses = AuthorMeasure(data).losses(lambda ids: model(input_ids=ids).logits, shape.context_length, device)
    num_parameters = sum(p.numel() for p in {id(p): p for p in parameters}.values())
    return measured | losses | {"parameters": num_parameters}


def work_as_peer(pipe: Connection, config: TrainConfig, data: Path, deadline: float) -> None:
    """Train the peer at each rate, then further seeds at its best rate; send each result."""
    found: dict[float, float] = {}
    plan = [(lr, 0) for lr in PEER_RATES]
    longest = 0.0
    while plan:
        lr, seed = plan.pop(0)
        began = time.monotonic()
        if began + longest > deadline:
            break
        about = {"contestant": "GPT-2", "setting": f"GPT-2 lr {lr:g}", "lr": lr, "seed": seed}
        try:
            result = train_peer(config, data, lr, seed)
            found[lr] = min(found.get(lr, math.inf), result["validation_loss"])
        except Exception as error:
            traceback.print_exc()
            result = {"error": f"{type(error).__name__}: {error}"[:500]}
        longest = max(longest, time.monotonic() - began)
        pipe.send({**about, "name": f"{about['setting']} seed {seed}", **result})
        if not plan and seed == 0 and found:
            best = min(found, key=lambda each: found[each])
            plan = [(best, seed) for seed in range(1, NUM_SEEDS)]
    pipe.send(None)


def best_setting(runs: list[Result], contestant: str) -> str | None:
    """Return the setting of a contestant with the lowest validation loss of the first seed."""
    found = {
        run["setting"]: run["validation_loss"]
        for run in runs
        if run.get("contestant") == contestant and "error" not in run and run["seed"] == 0
    }
    return min(found, key=lambda name: found[name], default=None)


def print_table(runs: list[Result]) -> None:
    """Print all settings, the best on validation authors first, and their losses on test authors."""
    console = Console(width=140)
    table = Table(title="loss in nats per token; settings are chosen on validation authors")
    for heading in ("setting", "seeds", "training authors", "validation authors", "test authors", "std"):
        table.add_column(heading, justify="left" if heading == "setting" else "right")
    complete = [run for run in runs if "error" not in run and "setting" in run]
    settings = dict.fromkeys(run["setting"] for run in complete)
    rows = []
    for setting in settings:
        members = [run for run in complete if run["setting"] == setting]
        means = [statistics.mean(run[f"{part}_loss"] for run in members) for part in PARTS]
        losses = [run["test_loss"] for run in members]
        spread = f"{statistics.stdev(losses):.4f}" if len(losses) > 1 else ""
        rows.append((means[1], [setting, str(len(members)), *(f"{mean:.4f}" for mean in means), spread]))
    for _, row in sorted(rows):
        table.add_row(*row)
    console.print(table)
    for run in runs:
        if "error" in run:
            print(f"failed: {run['name']}: {run['error']}")


def main() -> None:
    """Run everything and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="the folder that author_split.py created")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=290.0, help="seconds after which everything ends")
    parser.add_argument("--slots", type=int, default=2, help="runs that share the GPU")
    parser.add_argument("--earlier", type=Path, help="results of an earlier call; not repeated")
    parser.add_argument("--no-peer", action="store_true", help="without the GPT-2 of transformers")
    parser.add_argument("--set", action="append", default=[], help="replace a value of learning.toml")
    options = parser.parse_args()
    start, runs, data = time.monotonic(), read_earlier(options.earlier), options.data.absolute()
    on_gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    about = {
        "machine": describe_machine() | {"cuda": on_gpu},
        "commit": source_commit(),
        "versions": installed_versions(["torch", "transformers"]),
        "tokens": {part: len(TokenFile.open(data / f"{part}.npy")) for part in PARTS},
    }

    def add(result: Result) -> None:
        runs.append(result)
        shown = result.get("error") or " ".join(f"{part} {result[f'{part}_loss']:.4f}" for part in PARTS)
        print(f"{time.monotonic() - start:4.0f} s: {result['name']}: {shown}", flush=True)
        write_report(options.json, {**about, "runs": runs})

    def make(setting: Setting, seed: int = 0) -> Task:
        return make_task(setting, data, options.set, seed)

    deadline = start + options.limit - 5
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    peer = multiprocessing.get_context("spawn").Process(
        target=work_as_peer, args=(theirs, make(FORMER).config, data, deadline), daemon=True
    )
    with tempfile.TemporaryDirectory(prefix="novels") as temporary:
        pool = RunPool(Path(temporary), num_slots=options.slots, deadline=start + FIRST_STAGE * options.limit)

        def drain(timeout: float = 0.0) -> None:
            while peer.pid is not None and ours.poll(timeout):
                try:
                    result = ours.recv()
                except EOFError:
                    return
                if result is None:
                    return
                add(result)

        def add_ours(task: Task, result: Result) -> None:
            add(result)
            drain()

        try:
            pool.warm_up(map(make, SETTINGS))
            if not options.no_peer:
                peer.start()
            measure = AuthorMeasure(data)
            first = select_new(map(make, SETTINGS), runs)
            pool.run(first, measure, add_ours, lambda _: SPEED)
            pool.deadline = deadline
            chosen = {FORMER.name: FORMER}
            chosen |= {each.name: each for each in SETTINGS if each.name == best_setting(runs, "ours")}
            seeds = [(each, seed) for seed in range(1, NUM_SEEDS) for each in reversed(chosen.values())]
            further = select_new((make(each, seed) for each, seed in seeds), runs)
            pool.run(further, measure, add_ours, lambda _: SPEED)
            while peer.pid is not None and peer.is_alive() and time.monotonic() < deadline:
                drain(1.0)
            drain()
        finally:
            pool.close()
            if peer.pid is not None and peer.is_alive():
                peer.terminate()
    print(f"{time.monotonic() - start:.0f} s in all")
    print_table(runs)


if __name__ == "__main__":
    main()

"""Memory and communication of several ranks, measured next to the accountant's prediction.

    python benchmarks/sharding.py --json benchmarks/out/sharding.json

torchrun starts the ranks on this machine, on the CPU, one thread each. Every rank takes steps on random ids.
Memory is the growth of its peak resident memory since just before the model was built, after a few steps of a
tiny model: these load all code. malloc returns freed memory at once, so that resident memory is that of
tensors. Communication is the number of bytes that rank 0 passes to collectives in one step; it must equal the
prediction. The model is large compared with its activations, so that its rows dominate.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from harness import describe_machine, installed_versions, source_commit, wide_console, write_report
from rich.table import Table

from bytewright.account import Ranks, predict_rank_memory, sent_bytes
from bytewright.model import ModelConfig
from bytewright.model.costs import StepShape
from bytewright.parallel.rank_group import RankGroup
from bytewright.system import DevicePeakMemory
from bytewright.train.config import (
    BudgetConfig,
    DataConfig,
    OptimizerConfig,
    ParallelConfig,
    TrainConfig,
)
from bytewright.train.session.engine import CompiledStepCache

TINY = ModelConfig(vocab_size=64, context_length=64, d_model=64, num_layers=2, num_heads=1)
NUM_STEPS = 3
RETURN_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, kw_only=True)
class Options:
    """The model and the cases to measure."""

    d_model: int = 1024
    layers: int = 8
    vocab_size: int = 1024
    context: int = 64
    ranks: tuple[int, ...] = (2, 4)
    strategies: tuple[str, ...] = ("replicate", "shard")
    reductions: tuple[str, ...] = ("exact", "fast")
    optimizers: tuple[str, ...] = ("adamw",)
    parts_per_rank: int = 2
    json: Path | None = None
    """Write the results to this JSON file."""

    @property
    def model(self) -> ModelConfig:
        """The model of all cases."""
        return ModelConfig(
            vocab_size=self.vocab_size,
            context_length=self.context,
            d_model=self.d_model,
            num_layers=self.layers,
            num_heads=self.d_model // 64,
        )


@dataclass(frozen=True, kw_only=True)
class Case:
    """One measurement."""

    num_ranks: int
    strategy: str
    reduction: str
    optimizer: str
    num_parts: int

    def config(self, model: ModelConfig) -> TrainConfig:
        """Return the config of a run; its data is not opened."""
        return TrainConfig(
            model=model,
            data=DataConfig(train=Path("tokens.npy")),
            budget=BudgetConfig(steps=NUM_STEPS),
            optimizer=OptimizerConfig(name=self.optimizer),
            parallel=ParallelConfig(strategy=self.strategy, reduction=self.reduction),  # type: ignore[arg-type]
            batch_size=self.num_parts,
            accumulate=self.num_parts,
            device="cpu",
            compile="off",
        )

    def predict(self, model: ModelConfig) -> dict[str, Any]:
        """Return what the accountant predicts."""
        ranks = Ranks(
            num_ranks=self.num_ranks,
            strategy=self.strategy,  # type: ignore[arg-type]
            reduction=self.reduction,  # type: ignore[arg-type]
            accumulate=self.num_parts,
        )
        shape = StepShape(
            config=model,
            batch_size=1,
            num_tokens=model.context_length,
            precision="fp32",
            compiled=False,
            device="cpu",
        )
        memory = predict_rank_memory(shape, ranks, optimizer=self.optimizer)
        sent = sent_bytes(model, ranks, optimizer=self.optimizer, device="cpu")
        return {"memory_bytes": memory.peak, "moment": memory.peak_moment.name, "sent": sent}


def take_steps(ranks: RankGroup, config: TrainConfig) -> tuple[int, int | None]:
    """Return the bytes that rank 0 sends in a step, and the growth of the peak resident memory."""
    memory = DevicePeakMemory(torch.device("cpu"))
    engine = CompiledStepCache().engine_for(config, torch.device("cpu"), ranks=ranks)
    num_own = config.accumulate // ranks.num_ranks
    length, vocab_size = config.model.context_length, config.model.vocab_size
    batches = [
        (torch.randint(0, vocab_size, (1, length)), torch.randint(0, vocab_size, (1, length)))
        for _ in range(num_own)
    ]
    engine.step(batches)
    memory.begin()
    for _ in range(NUM_STEPS):
        before = ranks.num_bytes_sent
        engine.step(batches)
    return ranks.num_bytes_sent - before, memory.peak()


def measure_as_rank(case: Case, model: ModelConfig, out: Path) -> None:
    """Measure one case as one of its ranks, and write the result."""
    with RankGroup.open() as ranks:
        ranks.connect(torch.device("cpu"))
        take_steps(ranks, case.config(TINY))
        sent, peak = take_steps(ranks, case.config(model))
        peaks = ranks.gather(peak)
    if ranks.is_main:
        out.write_text(json.dumps({"sent_bytes": sent, "memory_bytes": peaks}))


def measure(case: Case, options: Options) -> dict[str, Any]:
    """Start the ranks of a case; return what rank 0 has written."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        task = {"case": dataclasses.asdict(case), "model": dataclasses.asdict(options.model), "out": str(out)}
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={case.num_ranks}", __file__, "--worker", json.dumps(task)]
        subprocess.run(command, env=os.environ | RETURN_MEMORY, check=True)
        result: dict[str, Any] = json.loads(out.read_text())
        return result


def main(options: Options) -> None:
    """Measure all cases; print and write the figures."""
    table = Table("ranks", "strategy", "optimizer", "sent", "predicted", "memory MB", "predicted MB", "ratio")
    rows = []
    for optimizer in options.optimizers:
        for num_ranks in options.ranks:
            for strategy in options.strategies:
                for reduction in options.reductions:
                    num_parts = options.parts_per_rank * num_ranks
                    case = Case(
                        num_ranks=num_ranks,
                        strategy=strategy,
                        reduction=reduction,
                        optimizer=optimizer,
                        num_parts=num_parts,
                    )
                    predicted, found = case.predict(options.model), measure(case, options)
                    rows.append(dataclasses.asdict(case) | {"predicted": predicted, "measured": found})
                    worst = max(found["memory_bytes"])
                    table.add_row(
                        str(num_ranks),
                        f"{strategy}, {reduction}",
                        optimizer,
                        f"{found['sent_bytes']:,}",
                        f"{sum(predicted['sent'].values()):,}",
                        f"{worst / 1e6:,.1f}",
                        f"{predicted['memory_bytes'] / 1e6:,.1f}",
                        f"{worst / predicted['memory_bytes']:.3f}",
                    )
    wide_console().print(table)
    if options.json is not None:
        report = {
            "machine": describe_machine(),
            "commit": source_commit(),
            "versions": installed_versions(["torch"]),
            "model": dataclasses.asdict(options.model),
            "cases": rows,
        }
        write_report(options.json, report)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        given = json.loads(sys.argv[2])
        measure_as_rank(Case(**given["case"]), ModelConfig(**given["model"]), Path(given["out"]))
    else:
        main(tyro.cli(Options, description=__doc__))

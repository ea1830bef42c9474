"""The cases of `accounting.py`: model shapes, and functions that measure peak memory, time and fit.

A `Case` is a model shape with batch size, precision and device. It builds the training step as a run does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from bytewright.account import PRESETS
from bytewright.model import ModelConfig, TransformerLM
from bytewright.optim.build import build_optimizer
from bytewright.train.config import OptimizerConfig
from bytewright.train.step import TrainStep

MIB = 2**20

BASE, SMALL, MEDIUM, XL = (PRESETS[name] for name in ("base", "gpt2-small", "gpt2-medium", "gpt2-xl"))
TINY = ModelConfig(vocab_size=1000, context_length=64, d_model=64, num_layers=2, num_heads=4)


def changed(config: ModelConfig, **changes: Any) -> ModelConfig:
    """Return the config with changed fields."""
    return dataclasses.replace(config, **changes)


Shapes = dict[str, tuple[ModelConfig, int]]

SHAPES: Shapes = {
    "tiny, batch 256": (TINY, 256),
    "base, batch 1": (BASE, 1),
    "base, batch 32": (BASE, 32),
    "base, batch 256": (BASE, 256),
    "base, tied, 4 of 16 kv heads, qk-norm, context 512, batch 16": (
        changed(BASE, tie_embeddings=True, num_kv_heads=4, qk_norm=True, context_length=512),
        16,
    ),
    "gpt2-small, batch 8": (SMALL, 8),
    "gpt2-small, post-norm, silu, no positions, context 256, batch 32": (
        changed(SMALL, norm="post", ffn="silu", position="none", context_length=256),
        32,
    ),
    "gpt2-medium, batch 4": (MEDIUM, 4),
    "gpt2-xl, 4 layers, batch 8": (changed(XL, num_layers=4), 8),
    "gpt2-xl, batch 1": (XL, 1),
}
"""Shapes of the eager steps: tiny to GPT-2 XL, batches 1 to 256, every model option at least once."""

COMPILED_SHAPES: Shapes = {
    "base, batch 256": (BASE, 256),
    "gpt2-small, 6 layers, batch 16": (changed(SMALL, num_layers=6), 16),
    "gpt2-medium, 6 layers, batch 16": (changed(MEDIUM, num_layers=6), 16),
    "gpt2-xl, 4 layers, batch 8": (changed(XL, num_layers=4), 8),
}
"""Models of few layers, because compilation takes most of the time."""

TIMED_SHAPES: Shapes = {
    "base, batch 256": (BASE, 256),
    "gpt2-small, batch 32": (SMALL, 32),
    "gpt2-medium, batch 16": (MEDIUM, 16),
    "gpt2-xl, 12 layers, batch 16": (changed(XL, num_layers=12), 16),
}
"""The efficiency of the first shape is measured and used to predict the others."""

FITTED_SHAPES: dict[str, ModelConfig] = {
    "base": BASE,
    "base, reference": changed(BASE, implementation="reference"),
    "gpt2-small": SMALL,
}

CPU_SHAPES: Shapes = {
    "tiny, batch 256": (TINY, 256),
    "base, batch 2": (BASE, 2),
    "base, batch 16": (BASE, 16),
    "base, tied, 4 of 16 kv heads, qk-norm, batch 4": (
        changed(BASE, tie_embeddings=True, num_kv_heads=4, qk_norm=True),
        4,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training step to measure."""

    name: str
    config: ModelConfig
    batch_size: int
    precision: Literal["fp32", "bf16"] = "fp32"
    compiled: bool = False
    device: Literal["cuda", "cpu"] = "cuda"

    def build(self) -> tuple[TrainStep, list[tuple[Tensor, Tensor]]]:
        """Return the training step as a run builds it, and one batch."""
        torch.manual_seed(0)
        compute_dtype = torch.bfloat16 if self.precision == "bf16" else None
        model = TransformerLM(self.config, device=self.device, compute_dtype=compute_dtype)
        optimizer = build_optimizer(model, OptimizerConfig(implementation=self.config.implementation))
        shape = (self.batch_size, self.config.context_length + 1)
        windows = torch.randint(self.config.vocab_size, shape, device=self.device)
        backend = "inductor" if self.compiled else None
        step = TrainStep(model, optimizer, max_grad_norm=1.0, backend=backend)
        return step, [(windows[:, :-1], windows[:, 1:])]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values for `from_json`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Case:
        """Build a case from the values of `to_json`."""
        return cls(**{**fields, "config": ModelConfig(**fields["config"])})


def measure_peak(case: Case) -> dict[str, Any]:
    """Return the peak of the GPU's allocator in a step after all buffers exist.

    A compiled step allocates its last buffers in its second call, an eager one in its first.
    """
    step, batches = case.build()
    step(batches)
    if not case.compiled:
        step(batches)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step(batches)
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    return {
        "measured": stats["allocated_bytes.all.peak"],
        "requested": stats["requested_bytes.all.peak"],
        "reserved": stats["reserved_bytes.all.peak"],
        "before": before,
    }


def measure_seconds(case: Case, at_least: float = 1.0) -> dict[str, Any]:
    """Return the median time of a step."""
    step, batches = case.build()
    for _ in range(3):
        step(batches)
    spent: list[float] = []
    while sum(spent) < at_least or len(spent) < 3:
        _wait(case.device)
        began = time.perf_counter()
        for _ in range(4):
            step(batches)
        _wait(case.device)
        spent.append((time.perf_counter() - began) / 4)
    return {"measured": sorted(spent)[len(spent) // 2], "spread": [min(spent), max(spent)]}


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def does_fit(case: Case, *, expandable: bool) -> bool:
    """Return whether three steps fit into memory, with or without expandable segments of the allocator."""
    torch.cuda.memory._set_allocator_settings(f"expandable_segments:{expandable}")
    try:
        step, batches = case.build()
        for _ in range(3):
            result = step(batches)
        result.loss.item()
    except torch.OutOfMemoryError:
        return False
    return True


@contextlib.contextmanager
def capped(num_bytes: float | None) -> Iterator[None]:
    """Limit the GPU's allocator to this number of bytes."""
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(1.0 if num_bytes is None else num_bytes / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def measure_resident(case: Case) -> dict[str, Any]:
    """Return the peak resident memory of a later step on the CPU, measured in new processes.

    malloc keeps freed blocks of up to 32 MiB, so resident memory also depends on earlier allocations. The
    prediction is compared with a process in which malloc returns blocks of 1 MiB and more at once;
    `measured_by_default` is the peak with malloc's default settings.
    """
    measured = _run_in_process(case, {"MALLOC_MMAP_THRESHOLD_": str(MIB)})
    return measured | {"measured_by_default": _run_in_process(case, {})["measured"]}


def _run_in_process(case: Case, environment: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, __file__, json.dumps(case.to_json())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=os.environ | environment)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def measure_own_memory(case: Case) -> dict[str, Any]:
    """Measure the resident memory of this process, which `measure_resident` started."""
    torch.set_num_threads(1)
    smallest = changed(TINY, context_length=2, implementation=case.config.implementation)
    step, batches = Case(name="", config=smallest, batch_size=1, device="cpu").build()
    step(batches)  # torch's own memory, allocated by its first operations
    del step, batches
    empty = _status("VmRSS")
    step, batches = case.build()
    step(batches)
    Path("/proc/self/clear_refs").write_text("5")  # reset VmHWM after building
    step(batches)
    step(batches)
    return {"measured": _status("VmHWM"), "empty": empty}


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


if __name__ == "__main__":
    print(json.dumps(measure_own_memory(Case.from_json(json.loads(sys.argv[1])))))

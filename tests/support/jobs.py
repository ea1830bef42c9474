"""An engine without a server: run jobs to their end and collect what it reports."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from bytewright.generate import SamplingConfig
from bytewright.model import ModelConfig, TransformerLM
from bytewright.serve.engine import Engine
from bytewright.serve.jobs import Job, TokenScore, Update

HANG_SECONDS = 300

CONFIG = ModelConfig(
    vocab_size=97, context_length=160, d_model=32, num_layers=2, num_heads=4, num_kv_heads=2, d_ff=48
)
"""A context of three chunks, so that prompts are read in parts and steps have several shapes."""


def make_model(dtype: torch.dtype = torch.float64, **changes: Any) -> TransformerLM:
    """Return a fixed model with large weights; in float64 rounding never changes a token."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = TransformerLM(dataclasses.replace(CONFIG, **changes))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 2:
                    parameter.mul_(3)
    return model.to(dtype).eval()


@dataclass
class Collected:
    """Everything that was reported about a job."""

    ids: list[int] = field(default_factory=list)
    scores: list[TokenScore] = field(default_factory=list)
    prompt_scores: list[TokenScore] = field(default_factory=list)
    last: Update | None = None


class RunningEngine:
    """An engine whose updates are collected."""

    def __init__(self, model: TransformerLM, **options: Any) -> None:
        self.collected: dict[Job, Collected] = {}
        self.ended = threading.Condition()
        self.engine = Engine(model, self.report, **{"num_slots": 4, **options})

    def report(self, updates: list[tuple[Job, Update]]) -> None:
        with self.ended:
            for job, update in updates:
                result = self.collected.setdefault(job, Collected())
                assert result.last is None, "an update after the last one"
                result.ids += update.ids
                result.scores += update.scores
                result.prompt_scores += update.prompt_scores
                if update.is_last:
                    result.last = update
            self.ended.notify_all()

    def wait(self, jobs: Sequence[Job]) -> list[Collected]:
        """Return what was reported about jobs when all of them have ended."""

        def have_ended() -> bool:
            return all(job in self.collected and self.collected[job].last is not None for job in jobs)

        with self.ended:
            assert self.ended.wait_for(have_ended, HANG_SECONDS)
            return [self.collected[job] for job in jobs]

    def run(self, jobs: Sequence[Job]) -> list[Collected]:
        """Check and submit jobs, and wait for them."""
        for job in jobs:
            self.engine.check(job)
        self.engine.submit(jobs)
        return self.wait(jobs)


@contextlib.contextmanager
def running_engine(model: TransformerLM, **options: Any) -> Iterator[RunningEngine]:
    """Start an engine, and stop it at the end."""
    running = RunningEngine(model, **options)
    running.engine.start()
    try:
        yield running
    finally:
        running.engine.stop()


def random_job(generator: random.Random, config: ModelConfig = CONFIG, **options: Any) -> Job:
    """Return a job with random prompt, length, sampling and seed."""
    length = generator.randint(1, config.context_length - 1)
    return Job(
        [generator.randrange(config.vocab_size) for _ in range(length)],
        SamplingConfig(
            max_new_tokens=generator.randint(1, 12),
            temperature=generator.choice([0.0, 0.5, 1.0, 1.5]),
            top_p=generator.choice([1.0, 0.9, 0.5]),
            top_k=generator.choice([None, 3, 40]),
            min_p=generator.choice([0.0, 0.0, 0.1]),
            seed=generator.randrange(2**64),
            stop_tokens=(1, 2),
        ),
        random_stream=generator.randrange(3),
        **options,
    )

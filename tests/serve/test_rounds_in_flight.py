"""The engine with rounds in flight, as on a GPU: every job ends once, whatever happens to others.

The batch computes on the CPU but behaves as on a GPU: rounds of several steps, tokens that are read late, and
logits that the next round overwrites.
"""

from __future__ import annotations

import dataclasses
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from jaxtyping import Int
from torch import Tensor

from bytewright.generate import Generator, SamplingConfig
from bytewright.generate.prompt_chunks import PromptChunk
from bytewright.generate.slots import ReadChunks, Round, SlotBatch
from bytewright.serve.jobs import EngineClosedError, Job, QueueFullError, Update
from jobs import HANG_SECONDS, Collected, RunningEngine, make_model, random_job, running_engine

POISON = 11
"""A token whose embedding is not finite in the models of some tests."""


def fetch_late(ids: Int[Tensor, "rows steps"]) -> Callable[[], list[list[int]]]:
    """Return what reads the ids of a round when they are needed, as `transfer.fetch` does on a GPU."""
    copy = ids.clone()
    return copy.tolist


@pytest.fixture(autouse=True)
def as_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every `SlotBatch` behave as on a GPU without CUDA graphs."""
    create, launch = SlotBatch.__init__, SlotBatch.launch
    logits_of: dict[SlotBatch, Tensor] = {}

    def create_on_gpu(self: SlotBatch, *given: object, **options: object) -> None:
        create(self, *given, **options)  # type: ignore[arg-type]
        self.is_on_gpu = True

    def overwrite_logits(
        self: SlotBatch, active: Sequence[int], num_tokens: int, num_steps: int = 1
    ) -> Round:
        if self in logits_of:
            logits_of[self].fill_(torch.nan)
        round = launch(self, active, num_tokens, num_steps)
        logits_of[self] = round.logits
        return round

    monkeypatch.setattr(SlotBatch, "__init__", create_on_gpu)
    monkeypatch.setattr(SlotBatch, "launch", overwrite_logits)
    monkeypatch.setattr("bytewright.generate.slots.fetch", fetch_late)


def random_jobs(generator: random.Random, count: int) -> list[Job]:
    """Return jobs of many lengths; a quarter requests scores, and some write nothing or up to the end."""
    jobs = []
    for _ in range(count):
        job = random_job(generator)
        if generator.random() < 0.25:
            job.num_top, job.scores_prompt = generator.randrange(4), generator.random() < 0.5
        limit = generator.choice([0, 1, 2, 7, 8, 9, 16, 17, 40, 1000])
        prompt = job.prompt[: generator.choice([1, 5, 63, 64, 65, 150])]
        jobs.append(
            dataclasses.replace(
                job, prompt=prompt, sampling=dataclasses.replace(job.sampling, max_new_tokens=limit)
            )
        )
    return jobs


def check_is_idle(running: RunningEngine) -> None:
    """Check that no job has left anything in the engine."""
    engine = running.engine
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_waiting_tokens) == (0, 0, 0)
    assert engine._num_scored == 0
    assert engine._free_slots() == list(range(engine.batch.num_slots))


def test_ids_and_scores_of_random_jobs_do_not_depend_on_rounds_in_flight() -> None:
    model, generator = make_model(), random.Random(5)
    jobs = random_jobs(generator, 24)
    alone = Generator(model)
    with running_engine(model, num_slots=5) as running:
        results = running.run(jobs)
    check_is_idle(running)
    for job, result in zip(jobs, results, strict=True):
        assert result.last is not None
        assert result.last.error is None
        if job.sampling.max_new_tokens:
            (expected,) = alone.generate([job.prompt], job.sampling, first_random_stream=job.random_stream)
            assert (result.ids, result.last.reason) == (expected.ids, expected.reason)
        if job.num_top is not None:
            assert len(result.scores) == len(result.ids)
            assert all(-1e6 < score.logprob <= 0 for score in result.scores)
        assert len(result.prompt_scores) == (len(job.prompt) - 1 if job.scores_prompt else 0)


def test_all_chunks_of_a_call_are_counted() -> None:
    jobs = [Job([5] * length, SamplingConfig(max_new_tokens=2)) for length in (1, 64, 65, 130)]
    with running_engine(make_model(), num_slots=4) as running:
        running.run(jobs)
        assert running.engine.stats().num_chunks == 1 + 1 + 2 + 3


def test_slots_in_use_are_at_most_the_slots() -> None:
    """The slot of a job whose last tokens are being computed is free, and the next job may have it."""
    found = list[tuple[int, int]]()
    with running_engine(make_model(), num_slots=2) as running:
        read = running.engine.batch.read

        def count_and_read(chunks: Sequence[PromptChunk]) -> ReadChunks:
            stats = running.engine.stats()
            found.append((stats.num_slots_in_use, stats.num_running))
            return read(chunks)

        running.engine.batch.read = count_and_read  # type: ignore[method-assign]
        running.run([Job([5], SamplingConfig(max_new_tokens=20, seed=seed)) for seed in range(6)])
    assert max(num_in_use for num_in_use, _ in found) == 2
    assert max(num_running for _, num_running in found) > 2


def fail_at_random(batch: SlotBatch, generator: random.Random, rate: float) -> None:
    """Let a share of the calls of a batch raise, half of them after the work is done."""

    def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: object, **options: object) -> object:
            fails = generator.random() < rate
            if fails and generator.random() < 0.5:
                raise RuntimeError("CUDA out of memory")
            result = call(*given, **options)
            if fails:
                raise RuntimeError("CUDA out of memory")
            return result

        return run

    for name in ("read", "launch"):
        setattr(batch, name, wrap(getattr(batch, name)))


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(n, marks=pytest.mark.slow) for n in range(6, 60))]
)
def test_every_job_ends_once_under_random_cancels_failures_and_a_stop(seed: int) -> None:
    """Cancels are made from the thread of the engine and from another one, at any stage of a job."""
    generator = random.Random(seed)
    model = make_model(torch.float32, num_layers=1)
    if seed % 2:
        with torch.no_grad():
            model.token_embeddings.weight[POISON] = torch.nan
    running = RunningEngine(model, num_slots=generator.choice([1, 2, 5]), max_waiting=20)
    engine, submitted, cancelled = running.engine, list[Job](), set[Job]()
    fail_at_random(engine.batch, random.Random(seed + 1000), rate=0.0 if seed % 3 else 0.02)
    on_engine, early = random.Random(seed + 2000), set[Job]()
    lock = threading.Lock()

    def cancel_some(generator: random.Random) -> None:
        with lock:
            chosen = [job for job in submitted if generator.random() < 0.02]
            cancelled.update(chosen)
        engine.cancel(chosen)

    def report(updates: list[tuple[Job, Update]]) -> None:
        for job, _ in updates:
            assert job not in early, "an update of a job that was cancelled before this turn"
        running.report(updates)
        cancel_some(on_engine)
        early.update(job for job in submitted if job.is_cancelled)

    engine.report = report
    engine.start()
    for _ in range(12):
        jobs = random_jobs(generator, generator.randint(1, 8))
        try:
            engine.submit(jobs)
        except QueueFullError:
            time.sleep(0.01)
            continue
        with lock:
            submitted.extend(jobs)
        cancel_some(generator)
    is_stopped = generator.random() < 0.5
    if not is_stopped:
        drain(running, submitted)
        check_is_idle(running)
    engine.stop()
    check_is_idle(running)
    for job in submitted:
        result = running.collected.get(job, Collected())
        assert result.last is not None or job.is_cancelled
    with pytest.raises(EngineClosedError):
        engine.submit(random_jobs(generator, 1))


def drain(running: RunningEngine, submitted: Sequence[Job]) -> None:
    """Wait until the engine has no jobs; jobs that are cancelled meanwhile are not waited for."""
    deadline = time.monotonic() + HANG_SECONDS
    while True:
        stats = running.engine.stats()
        if stats.num_running == stats.num_waiting == 0:
            return
        assert time.monotonic() < deadline
        time.sleep(0.005)

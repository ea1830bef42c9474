"""The time that a run is expected to take: the prediction by formula, corrected by a few timed steps.

The formula computes what the processor and the memory need at least. Small models on a CPU take two to three
times as long, because each operation has a fixed cost, and other processes slow down all of them.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping

import torch

from bytewright.plugins import plugin_digests
from bytewright.system import keep_freed_memory, pause_garbage_collection
from bytewright.train.config import TrainConfig
from bytewright.train.recipe import flatten, to_plain
from bytewright.train.session.engine import StepEngine
from bytewright.train.setup import choose_backend

TIMED_SECONDS = 1.0
"""The least time over which steps are timed."""
LEAST_STEPS = 3
LONGEST_STEP = 0.25
"""Steps with a longer predicted time, in seconds, are not timed: the formula is accurate for them."""


def measure_slowdown(config: TrainConfig, predicted: Mapping[str, float], device: torch.device) -> float:
    """Return how many times as long as predicted the steps of a run take now; 1 if they are not timed.

    Compiled steps are not timed, since compiling takes long. Runs with plugins are not timed either, since
    their parts can fail. `predicted` is the result of `predict_run`.
    """
    speed = predicted.get("tokens_per_second")
    if speed is None or device.type != "cpu" or choose_backend(config, device) is not None:
        return 1.0
    if config.parallel.strategy != "replicate" or plugin_digests(flatten(to_plain(config))):
        return 1.0
    expected = config.tokens_per_step / speed
    return _time_step(config, device) / expected if expected <= LONGEST_STEP else 1.0


def _time_step(config: TrainConfig, device: torch.device) -> float:
    """Return the median seconds of a step on random tokens, without the first one."""
    with torch.random.fork_rng(devices=[]), keep_freed_memory(), pause_garbage_collection():
        engine = StepEngine(config, device)
        shape = config.batch_size // config.accumulate, config.model.context_length
        ids = torch.randint(config.model.vocab_size, shape)
        taken: list[float] = []
        while len(taken) <= LEAST_STEPS or sum(taken) < TIMED_SECONDS:
            start = time.perf_counter()
            float(engine.step([(ids, ids)] * config.accumulate).loss)
            taken.append(time.perf_counter() - start)
        return statistics.median(taken[1:])


def expected_seconds(
    config: TrainConfig, predicted: Mapping[str, float], slowdown: float = 1.0
) -> float | None:
    """Return the expected time of a run with its evaluations; None if its speed is not predicted."""
    speed, seconds = predicted.get("tokens_per_second"), predicted.get("seconds")
    if seconds is None or speed is None:
        return seconds
    # An evaluation is a forward pass, which has a third of the FLOPs of a step.
    evaluating = count_evaluations(config) * config.eval_tokens / (3 * speed)
    seconds = slowdown * (seconds + evaluating)
    return seconds if config.budget.minutes is None else min(seconds, 60 * config.budget.minutes)


def count_evaluations(config: TrainConfig) -> int:
    """Return how often a run is evaluated: every `eval_every` steps, before checkpoints, and at its end."""
    if config.data.validation is None or config.num_steps is None:
        return 0
    length, intervals = config.num_steps, (config.eval_every, config.save_every)
    count = sum(length // every for every in intervals) - length // math.lcm(*intervals)
    return count if any(length % every == 0 for every in intervals) else count + 1

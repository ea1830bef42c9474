"""The engine returns the ids of `generate` for every job, whatever other jobs it runs."""

from __future__ import annotations

import dataclasses
import random
import threading
from typing import Any, Never

import pytest
import torch
from torch import Tensor

from bytewright.errors import UsageError
from bytewright.generate import Generator, SamplingConfig
from bytewright.generate.decoder import Decoder, KeyValueCache
from bytewright.generate.interpret import token_losses
from bytewright.generate.slots import SlotBatch
from bytewright.serve.job_queue import FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS, RETRY_SHARE, JobQueue
from bytewright.serve.jobs import NOT_FINITE, EngineClosedError, Job, QueueFullError, Update
from jobs import CONFIG, RunningEngine, make_model, random_job, running_engine
from rejection import rejects

GREEDY = SamplingConfig(max_new_tokens=8, temperature=0.0)
LONG = SamplingConfig(max_new_tokens=40, temperature=1.0, seed=3)


def test_ids_and_endings_of_200_random_jobs_are_those_of_generate() -> None:
    model, generator = make_model(), random.Random(0)
    alone = Generator(model)
    jobs = [random_job(generator) for _ in range(200)]
    with running_engine(model, num_slots=5, num_ids=90) as running:
        results = running.run(jobs)
    for job, result in zip(jobs, results, strict=True):
        sampling = dataclasses.replace(job.sampling, num_ids=90)
        (expected,) = alone.generate([job.prompt], sampling, first_random_stream=job.random_stream)
        assert result.last is not None
        assert (result.ids, result.last.reason) == (expected.ids, expected.reason)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bits_of_a_job_do_not_depend_on_other_jobs(dtype: torch.dtype) -> None:
    """The log-probabilities are compared exactly, so a change of the last bit is found."""
    model, generator = make_model(dtype), random.Random(1)
    jobs = [random_job(generator, num_top=3, scores_prompt=True) for _ in range(12)]
    with running_engine(model) as running:
        assert running.engine.has_equal_slots
        alone = [running.run([dataclasses.replace(job)])[0] for job in jobs]
        together = running.run(jobs)
    with running_engine(model) as running:
        others = [random_job(generator) for _ in range(20)]
        shuffled = random.Random(2).sample([*jobs, *others], len(jobs) + len(others))
        running.run(shuffled)
        under_load = running.wait(jobs)
    assert together == alone
    assert under_load == alone


def test_scores_are_log_probabilities_of_the_model() -> None:
    model = make_model()
    prompt = [5, 6, 7, *range(80)]
    with running_engine(model) as running:
        (result,) = running.run([Job(prompt, GREEDY, num_top=2, scores_prompt=True)])
    losses = token_losses(model, [*prompt, *result.ids])
    scores = [*result.prompt_scores, *result.scores]
    assert [-score.logprob for score in scores] == pytest.approx([float(it) for it in losses], abs=1e-5)
    for id, score in zip(result.ids, result.scores, strict=True):
        assert score.top[0] == (id, score.logprob)
        assert len(score.top) == 2


def test_a_prompt_can_be_scored_without_a_new_token() -> None:
    scoring = SamplingConfig(max_new_tokens=0)
    for length in (1, 64, 65, CONFIG.context_length):
        with running_engine(make_model()) as running:
            (result,) = running.run([Job([3] * length, scoring, num_top=1, scores_prompt=True)])
        assert len(result.prompt_scores) == length - 1
        assert (result.ids, result.last) == ([], Update(reason="length"))


def test_a_poisoned_job_fails_alone() -> None:
    model, generator = make_model(torch.float32), random.Random(4)
    with torch.no_grad():
        model.token_embeddings.weight[11] = torch.nan
    good = [
        dataclasses.replace(job, prompt=[id for id in job.prompt if id != 11] or [5])
        for job in (random_job(generator) for _ in range(16))
    ]
    poisoned = [Job([*[5] * length, 11, 6], GREEDY) for length in (1, 90, 3, 140)]
    with running_engine(model, num_ids=11) as running:
        expected = running.run([dataclasses.replace(job) for job in good])
        mixed = [job for pair in zip(good[:4], poisoned, strict=True) for job in pair]
        running.run(mixed)
        after = running.run(good[4:])
        assert [*running.wait(good[:4]), *after] == expected
        for result in running.wait(poisoned):
            assert result.ids == []
            assert result.last is not None
            assert result.last.error is not None


def test_a_poisoned_prompt_without_new_tokens_fails_and_leaves_nothing_in_its_slot() -> None:
    model = make_model(torch.float32)
    with torch.no_grad():
        model.token_embeddings.weight[11] = torch.nan
    scoring = SamplingConfig(max_new_tokens=0)
    poisoned = [Job([11] * 100, scoring), Job([11] * 100, scoring, num_top=1, scores_prompt=True)]
    with running_engine(model, num_ids=11, num_slots=1) as running:
        (expected,) = running.run([Job([5], GREEDY)])
        for job in poisoned:
            (result,) = running.run([job])
            assert result.last is not None
            assert result.last.error is not None
            assert result.prompt_scores == []
            assert running.run([Job([5], GREEDY)]) == [expected]


def test_scores_that_are_not_finite_end_a_job_with_an_error() -> None:
    """A model may have more ids than its tokenizer: they are never chosen, but count for scores."""
    model = make_model(torch.float32)
    with torch.no_grad():
        model.output_weight[90:] = torch.nan
    with running_engine(model, num_ids=90) as running:
        scored, plain = running.run([Job([5], GREEDY, num_top=1), Job([5], GREEDY)])
    assert (scored.ids, scored.last) == ([], Update(error=NOT_FINITE))
    assert len(plain.ids) == GREEDY.max_new_tokens


def test_a_shape_that_changes_few_results_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some operations round the last elements of a batch differently, which changes only some values."""
    step, num_steps = Decoder.step, 0

    def change_some(decoder: Decoder, cache: KeyValueCache, *given: Any) -> Tensor:
        nonlocal num_steps
        logits = step(decoder, cache, *given)
        if cache.batch_size == 2:
            num_steps += 1
            if num_steps % 8 == 0:
                logits = logits.clone()
                logits[-1, -1] += 1
        return logits

    monkeypatch.setattr(Decoder, "step", change_some)
    batch = SlotBatch(Decoder(make_model(), 4), 4, num_ids=97)
    assert not [shape for shape in batch._shapes if shape[0] == 2]
    assert batch._shape_for(2, 1)[0] == 4


@pytest.mark.parametrize("has_equal_shapes", [True, False])
@pytest.mark.parametrize("length", [5, 70])
def test_values_in_a_free_slot_never_reach_the_next_request(has_equal_shapes: bool, length: int) -> None:
    """Steps that a GPU had in flight when a job ended can leave NaN in its slot."""
    model = make_model(torch.float32)
    job = Job([5] * length, LONG, num_top=2, scores_prompt=True)
    with running_engine(model, num_slots=2) as running:
        batch = running.engine.batch
        if not has_equal_shapes:
            batch._shapes.clear()  # all steps have the full shape
        (expected,) = running.run([job])
        for buffer in batch.cache.keys + batch.cache.values:
            buffer.fill_(torch.nan)
        again = [dataclasses.replace(job) for _ in range(2)]
        assert running.run(again) == [expected, expected]


def test_a_cancelled_job_frees_its_slot_and_reports_nothing_more() -> None:
    model = make_model()
    jobs = [Job([5], dataclasses.replace(LONG, seed=seed)) for seed in range(6)]
    first_update = threading.Event()
    running = RunningEngine(model, num_slots=2)
    cancelled = jobs[:3]  # two that run, one that waits

    def report(updates: list[tuple[Job, Update]]) -> None:
        if not first_update.is_set():
            running.engine.cancel(cancelled)  # on the thread of the engine: before the next step
            first_update.set()
            return
        assert not any(job in cancelled for job, _ in updates)
        running.report(updates)

    running.engine.report = report
    running.engine.start()
    running.engine.submit(jobs)
    results = running.wait(jobs[3:])
    running.engine.stop()
    assert first_update.is_set()
    for job, result in zip(jobs[3:], results, strict=True):
        assert result.ids == Generator(model).generate([job.prompt], job.sampling)[0].ids
    assert running.engine.stats().num_running == 0


def test_a_full_queue_rejects_jobs_until_there_is_room() -> None:
    running = RunningEngine(make_model(), num_slots=1, max_waiting=1, max_waiting_tokens=1000)
    jobs = [Job([5], GREEDY) for _ in range(4)]
    running.engine.submit(jobs[:2])  # the thread has not started, so the slot stays free for the first
    with pytest.raises(QueueFullError) as caught:
        running.engine.submit(jobs[2:3])
    assert caught.value.key is None  # no option of the request is wrong
    assert caught.value.retry_seconds >= 1
    running.engine.start()
    running.wait(jobs[:2])
    running.run(jobs[2:])
    running.engine.stop()


def test_an_error_states_the_room_that_a_request_needs_and_the_room_there_is() -> None:
    """A large request may find no room in an empty queue, which is not full."""
    queue = JobQueue(max_jobs=3, max_tokens=1000, context_length=160)
    jobs = [Job([5] * 100, GREEDY) for _ in range(6)]
    assert queue.has_room(jobs[:5], num_free=2)
    assert not queue.has_room(jobs, num_free=2)
    assert str(queue.full_error(jobs, 2, 10.0)) == (
        "the queue has no room for this request: 4 texts with up to 432 tokens must wait, and there is room"
        " for 3 texts and 1,000 tokens; try again in 11 seconds"
    )
    queue.add(jobs[:2])
    error = queue.full_error(jobs[2:], 0, 1e-3)
    assert "4 texts with up to 432 tokens must wait" in str(error)
    assert "there is room for 1 text and 784 tokens" in str(error)
    assert error.retry_seconds == MAX_RETRY_SECONDS
    assert queue.full_error(jobs[2:], 0, 1e9).retry_seconds == 1
    assert queue.full_error(jobs[2:], 0, 0.0).retry_seconds == FIRST_RETRY_SECONDS  # the speed is unknown


def test_the_time_to_try_again_counts_tokens_of_prompts() -> None:
    """Requests for scores of prompts have no new tokens."""
    engine = RunningEngine(make_model(), num_slots=1, max_waiting=1).engine
    engine._stats.num_prompt_tokens, engine._stats.busy_seconds = 1000, 100.0
    jobs = [Job([5] * 100, SamplingConfig(max_new_tokens=0), num_top=0) for _ in range(3)]
    engine.submit(jobs[:2])
    with pytest.raises(QueueFullError) as caught:
        engine.submit(jobs[2:])
    assert caught.value.retry_seconds == round(RETRY_SHARE * 200 / 10)


@pytest.mark.parametrize("num_free", range(7))
def test_jobs_that_get_a_free_slot_do_not_count_for_the_bounds(num_free: int) -> None:
    """Some of the waiting jobs may get the free slots, and some of the new ones those that are left."""
    queue = JobQueue(max_jobs=2, max_tokens=20, context_length=160)
    queue.add([Job([5], GREEDY) for _ in range(2)])  # 9 tokens each
    for num_jobs in range(6):
        jobs = [Job([5], GREEDY)] * num_jobs
        assert queue.has_room(jobs, num_free) == (2 + num_jobs - num_free <= 2)
    long = [Job([5] * 13, GREEDY)]  # 21 tokens: it can never wait
    assert queue.has_room(long, num_free) == (num_free > 2)


def test_the_queue_is_bounded_by_tokens() -> None:
    running = RunningEngine(make_model(), num_slots=1, max_waiting=10, max_waiting_tokens=100)
    running.engine.submit([Job([5] * 40, GREEDY) for _ in range(3)])  # the first has a slot
    with pytest.raises(QueueFullError):
        running.engine.submit([Job([5], GREEDY)])


@pytest.mark.parametrize(
    ("num_jobs", "length", "key", "expected", "found"),
    [(7, 1, "n", 6, 7), (7, 90, "n", 6, 7), (5, 40, "max_tokens", 100, 3 * 48)],
)
def test_jobs_that_can_never_wait_are_wrong_and_not_early(
    num_jobs: int, length: int, key: str, expected: int, found: int
) -> None:
    """A client that tries again after a 429 would never succeed."""
    running = RunningEngine(make_model(), num_slots=2, max_waiting=4, max_waiting_tokens=100)
    with rejects(UsageError, key=key, expected=expected, found=found):
        running.engine.submit([Job([5] * length, GREEDY) for _ in range(num_jobs)])


@pytest.mark.parametrize(("num_jobs", "length"), [(6, 1), (2, 140), (4, 40)])
def test_jobs_that_fit_into_an_idle_engine_are_early_while_it_works(num_jobs: int, length: int) -> None:
    running = RunningEngine(make_model(), num_slots=2, max_waiting=4, max_waiting_tokens=100)
    jobs = [Job([5] * length, GREEDY) for _ in range(num_jobs)]
    first = Job([5], GREEDY)
    running.engine.submit([first])
    with pytest.raises(QueueFullError):
        running.engine.submit(jobs)
    running.engine.start()
    running.wait([first])
    running.run(jobs)
    running.engine.stop()


def test_a_limit_beyond_the_context_counts_as_the_context() -> None:
    """Clients often request more tokens than the context has."""
    limit = CONFIG.context_length
    running = RunningEngine(make_model(), num_slots=1, max_waiting=10, max_waiting_tokens=limit)
    jobs = [Job([5], SamplingConfig(max_new_tokens=10**6)) for _ in range(3)]
    running.engine.submit(jobs[:2])
    assert running.engine.stats().num_waiting_tokens == 2 * limit
    with pytest.raises(QueueFullError):
        running.engine.submit(jobs[2:])


def test_a_closed_engine_finishes_accepted_jobs_and_rejects_others() -> None:
    with running_engine(make_model(), num_slots=1) as running:
        jobs = [Job([5], GREEDY) for _ in range(3)]
        running.engine.submit(jobs)
        running.engine.close()
        with pytest.raises(EngineClosedError):
            running.engine.submit([Job([5], GREEDY)])
        assert [len(result.ids) for result in running.wait(jobs)] == [GREEDY.max_new_tokens] * 3


def test_stopping_ends_all_jobs_with_an_error() -> None:
    running = RunningEngine(make_model(), num_slots=1)
    jobs = [Job([5], LONG) for _ in range(3)]
    running.engine.submit(jobs)
    running.engine.start()
    running.engine.stop()
    for result in running.wait(jobs):
        assert result.last is not None
        assert result.last.is_last


def fail(*given: object) -> Never:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_an_error_fails_the_running_jobs_and_the_next_ones_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_engine(make_model()) as running:
        with monkeypatch.context() as patch:
            patch.setattr(running.engine.batch, "read", fail)
            (failed,) = running.run([Job([5], GREEDY)])
        assert failed.last is not None
        assert failed.last.error is not None
        (result,) = running.run([Job([5], GREEDY)])
        assert len(result.ids) == GREEDY.max_new_tokens


def test_an_engine_whose_device_is_lost_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """After some errors of CUDA, every later operation fails, also the release of slots."""
    with running_engine(make_model(), num_slots=1) as running:
        for name in ("read", "reset_released"):
            monkeypatch.setattr(running.engine.batch, name, fail)
        for result in running.run([Job([5], GREEDY), Job([6], GREEDY)]):
            assert result.last is not None
            assert result.last.error is not None
        assert running.engine.is_device_lost
        with pytest.raises(EngineClosedError):
            running.engine.submit([Job([5], GREEDY)])


def test_running_jobs_wait_for_at_most_one_chunk() -> None:
    """A job of one token per turn is not delayed by long prompts: each turn reads one chunk at most."""
    turns: list[int] = []
    running = RunningEngine(make_model(), num_slots=4)
    take_turn = running.engine._take_turn

    def count_chunks() -> None:
        before = running.engine.stats()
        take_turn()
        after = running.engine.stats()
        turns.append(after.num_chunks - before.num_chunks)
        if before.num_steps and before.num_running > 1:
            assert after.num_steps == before.num_steps + 1 or after.num_running <= 1

    running.engine._take_turn = count_chunks  # type: ignore[method-assign]
    running.engine.start()
    running.run([Job([5], LONG), *(Job([6] * 150, GREEDY) for _ in range(6))])
    running.engine.stop()
    assert max(turns) == 1


@pytest.mark.parametrize("prompt", [[], [97], [-1], [5] * 160])
def test_a_prompt_that_cannot_be_continued_is_rejected(prompt: list[int]) -> None:
    engine = RunningEngine(make_model()).engine
    with rejects(UsageError, key="prompts"):
        engine.check(Job(prompt, GREEDY))


def test_a_model_that_the_decoder_cannot_run_is_rejected() -> None:
    model = make_model()
    model.layers[0].register_forward_hook(lambda module, inputs, output: output)
    with rejects(UsageError, key="model"):
        RunningEngine(model)

"""Every reason why a run ends is recorded as a value, and the status of a run follows from its files."""

from __future__ import annotations

import errno
import itertools
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from bytewright.errors import DivergenceError
from bytewright.experiments.listing import make_row
from bytewright.experiments.records import read_run
from bytewright.experiments.results import read_results
from bytewright.model import TransformerLM, language_model_loss
from bytewright.storage import atomic
from bytewright.train import train
from bytewright.train.checkpoint_list import CheckpointList
from bytewright.train.metrics_log import read_metrics
from bytewright.train.outcome import Ending, RunStatus, find_status, status_from_outcome
from bytewright.train.run import Run
from bytewright.train.run_files import RunWriter
from bytewright.train.session.console import describe_event
from bytewright.train.session.recorder import Recorder
from runs import digest, make_config

SETTINGS = {
    "model.vocab_size": 40,
    "model.context_length": 8,
    "batch_size": 4,
    "budget.steps": 20,
    "max_refused": 3,
}


def lines(*losses: float, every: int = 5) -> list[dict[str, Any]]:
    return [{"step": (n + 1) * every, "loss": loss, "validation_loss": loss} for n, loss in enumerate(losses)]


def overfitting(*pairs: tuple[float | None, float]) -> list[dict[str, Any]]:
    return [
        {"step": (n + 1) * 5, "validation_loss": validation} | ({} if loss is None else {"loss": loss})
        for n, (loss, validation) in enumerate(pairs)
    ]


REFUSED = {"event": "refused_step"}


@pytest.mark.parametrize(
    ("found", "events", "status", "word"),
    [
        (lines(3, 2, 1, 1), [], "complete", ""),
        (lines(3, 2), [], "stopped", "step 10"),
        ([], [], "stopped", "killed before its first line"),
        (lines(3, 2), [REFUSED | {"step": step} for step in (11, 12, 13)], "diverged", "from step 11"),
        (lines(3, 2, 1, 1), [REFUSED | {"step": 7}], "complete", ""),
        (lines(3, 2), [REFUSED | {"step": step} for step in (2, 7, 11)], "stopped", "step 10"),
        (lines(3, 2), [REFUSED | {"step": step} for step in (2, 7, 9, 11, 12)], "stopped", "step 10"),
        (lines(3, 2), [REFUSED | {"step": step} for step in (2, 9, 11, 12, 13)], "diverged", "from step 11"),
        (lines(9, 8, 7, 4.75), [], "diverged", "worse than guessing (3.69)"),
        (lines(4, 3.9, 3.8, 3.75), [], "complete", ""),
        (lines(3, 2, 1, 2.5), [], "diverged", "after 1 at step 15"),
        (lines(3, 2, 1, 1.9), [], "complete", ""),
        (lines(3, 90, 40, 2), [], "diverged", "rose to 90 by step 10"),
        (lines(90, 40, 3, 2), [], "complete", ""),
        (overfitting((3, 3), (2, 2), (1, 3), (0.1, 3.5)), [], "complete", ""),
        (overfitting((3, 3), (2, 2), (0.1, 4), (0.1, 9)), [], "complete", ""),
        (overfitting((3, 3), (2, 2), (0.1, 9), (0.1, 2.1)), [], "complete", ""),
        (overfitting((3, 3), (2, 2), (3, 3), (3.1, 3.5)), [], "diverged", "after 2 at step 10"),
        (overfitting((3, 3), (2, 2), (None, 3), (None, 3.5)), [], "diverged", "after 2 at step 10"),
        (overfitting((9, 9), (8, 8), (7, 7), (6, 6)), [], "diverged", "worse than guessing (3.69)"),
    ],
)
def test_a_run_is_judged_by_its_lines(
    found: list[dict[str, Any]], events: list[dict[str, Any]], status: str, word: str
) -> None:
    judged = find_status(SETTINGS, [*found, *events])
    assert judged.state == status
    assert word in judged.detail


def test_a_budget_in_tokens_or_minutes_ends_a_run_too() -> None:
    tokens = {**SETTINGS, "budget.steps": None, "budget.tokens": 20 * 32 - 5}
    assert find_status(tokens, lines(3, 2, 1, 1)).state == "complete"
    minutes = {**SETTINGS, "budget.steps": None, "budget.minutes": 1.0}
    short = [line | {"seconds": 30.0} for line in lines(3, 2)]
    assert find_status(minutes, short).state == "stopped"
    assert find_status(minutes, [*short, {"step": 15, "loss": 1.0, "seconds": 59.5}]).state == "complete"


def test_a_run_of_minutes_is_over_when_its_planned_steps_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recorder, "seconds", lambda recorder: 0.05 * recorder.progress.step)
    run = tmp_path / "a"
    train(make_config(tmp_path, budget={"steps": None, "minutes": 0.05}), run, console=Console(quiet=True))
    assert read_run(run).status == "complete"
    *most, last, ended = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(most))
    assert read_run(run).status == "stopped"
    (run / "metrics.jsonl").write_text("".join([*most, last]))
    assert read_run(run).status == "complete"
    (run / "metrics.jsonl").write_text("".join([*most, last, ended]))
    config = atomic.read_document(run / "config.json")
    config["budget"]["minutes"] = 5.0
    (run / "config.json").write_text(json.dumps(config))
    assert read_run(run).status == "stopped"


def test_a_run_of_minutes_that_lost_its_last_line_is_not_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of which no checkpoint was kept that tells its length, and whose time was nearly over by then."""
    monkeypatch.setattr(Recorder, "seconds", lambda recorder: 0.05 * recorder.progress.step)
    run = tmp_path / "a"
    config = make_config(tmp_path, budget={"steps": None, "minutes": 0.05}, log_every=1)
    result = train(config, run, console=Console(quiet=True))
    shutil.rmtree(run / "checkpoints")
    (run / "outcome.json").write_text(json.dumps({"status": "complete", "step": result.step}))
    assert read_run(run).status == "complete"
    *most, _, _ = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(most))
    found = read_run(run)
    assert found.status == "failed"
    assert found.reason == f"its record ends at step {result.step - 1} of {result.step}"


def test_minutes_with_a_limit_of_steps_are_counted_exactly() -> None:
    both = {**SETTINGS, "budget.steps": 20, "budget.minutes": 1.0}
    assert find_status(both, [{"step": 15, "loss": 1.0, "seconds": 57.0}]).state == "stopped"
    assert find_status(both, [{"step": 15, "loss": 1.0, "seconds": 60.0}]).state == "complete"


def test_lines_up_to_the_end_override_the_ending_of_an_earlier_session(tmp_path: Path) -> None:
    run = tmp_path / "a"
    train(make_config(tmp_path), run, console=Console(quiet=True))
    (run / "outcome.json").write_text('{"status": "failed", "reason": "no memory", "labels": {"x": 1}}')
    record = read_run(run)
    assert (record.status, record.reason, record.labels) == ("complete", "", {"x": 1})


@pytest.mark.parametrize(
    ("outcome", "settings", "step", "expected"),
    [
        ({"step": 20}, {}, 5, ("failed", "its record ends at step 5 of 20")),
        ({"step": 20}, {}, 0, ("failed", "its record ends at step 0 of 20")),
        ({"step": 20}, {"log_every": 0}, 20, ("complete", "")),
        ({"step": 15}, {"log_every": 0}, 15, ("complete", "")),  # the last line that it ever had
        ({"step": 15}, {"budget.steps": 40}, 20, None),  # it has gone on since, and was stopped
        ({"step": 1500}, {"budget.minutes": 1.0}, 1000, ("failed", "its record ends at step 1,000 of 1,500")),
        ({"step": 15}, {"budget.minutes": 1.0}, 15, ("complete", "")),
        ({}, {}, 5, ("failed", "its record ends at step 5 of 20")),
        (
            {},
            {"budget.steps": None, "budget.tokens": 15 * 32 - 1},
            5,
            ("failed", "its record ends at step 5 of 15"),
        ),
        ({}, {"log_every": 0}, 15, ("complete", "")),
        ({}, {"budget.minutes": 1.0}, 15, ("complete", "")),
        ({}, {"budget.minutes": 1.0}, 0, None),
        ({"status": "failed", "reason": "no memory"}, {}, 5, ("failed", "no memory")),
        ({"status": "well"}, {}, 5, None),
    ],
)
def test_a_recorded_outcome_counts_unless_lines_were_lost(
    outcome: dict[str, Any], settings: dict[str, Any], step: int, expected: tuple[str, str] | None
) -> None:
    found = [{"step": step, "loss": 1.0}] if step else []
    status = status_from_outcome({"status": "complete", **outcome}, {**SETTINGS, **settings}, found)
    assert (status and (status.state, status.detail)) == expected


KEPT = sorted((Path(__file__).parents[2] / "docs/results").glob("*/*/results.json"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.parent.name)
def test_committed_statuses_equal_those_derived_from_their_lines(path: Path) -> None:
    _, records = read_results(path)
    trained = [
        record
        for record in records
        if record.column("loss") and record.ending is not Ending.DIVERGED  # refused steps are not kept
    ]
    assert trained or all(record.num_steps == 0 for record in records)
    for record in trained:
        status = find_status(record.settings, record.lines)
        assert (record.name, status.state, status.detail) == (record.name, record.status, record.reason)


def fail_at(step: int, error: BaseException) -> Callable[[TransformerLM, Tensor, Tensor], Tensor]:
    """Return a loss that raises `error` in the forward pass of a step, counted from 1."""
    calls = itertools.count(1)

    def loss(model: TransformerLM, ids: Tensor, targets: Tensor) -> Tensor:
        if torch.is_grad_enabled() and next(calls) == step:
            raise error
        return language_model_loss(model, ids, targets)

    return loss


@pytest.mark.parametrize(
    ("budget", "ending"),
    [
        ({"steps": 4}, Ending.STEPS),
        ({"steps": None, "tokens": 100}, Ending.TOKENS),
        ({"steps": None, "minutes": 1.0}, Ending.MINUTES),
        ({"steps": 1000, "minutes": 1.0}, Ending.MINUTES),
    ],
)
def test_the_limit_that_ended_a_run_is_recorded(
    tmp_path: Path, budget: dict[str, Any], ending: Ending
) -> None:
    ticks = itertools.count()
    result = train(
        make_config(tmp_path, budget=budget),
        tmp_path / "run",
        console=Console(quiet=True),
        clock=lambda: 0.5 * next(ticks),
    )
    run = Run.open(tmp_path / "run")
    assert result.ending is ending
    assert run.status == RunStatus("complete", ending, result.step)
    assert run.records[-1]["limit"] == getattr(run.config.budget, ending.value)


@pytest.mark.parametrize(
    ("error", "state", "ending"),
    [
        (MemoryError(), "failed", Ending.OUT_OF_MEMORY),
        (OSError(errno.ENOSPC, "No space left on device"), "failed", Ending.DISK_FULL),
        (ValueError("a bug"), "failed", Ending.FAILED),
        (KeyboardInterrupt(), "stopped", Ending.SIGNAL),
    ],
)
def test_the_error_that_ended_a_run_is_recorded_and_listed_until_it_is_resumed(
    tmp_path: Path, error: BaseException, state: str, ending: Ending
) -> None:
    quiet = Console(quiet=True)
    train(make_config(tmp_path), tmp_path / "whole", console=quiet)
    with pytest.raises(type(error)):
        train(make_config(tmp_path), tmp_path / "run", console=quiet, loss=fail_at(10, error))
    status = Run.open(tmp_path / "run").status
    assert (status.state, status.ending, status.step) == (state, ending, 9)
    row = make_row(tmp_path / "run")
    assert (row["status"], row["ending"]) == (state, ending.label)
    assert read_run(tmp_path / "run").ending is ending
    assert Run.open(tmp_path / "run").resume(console=quiet).ending is Ending.STEPS
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")


def test_a_run_that_gave_up_after_non_finite_steps_has_diverged(tmp_path: Path) -> None:
    def diverging(model: TransformerLM, ids: Tensor, targets: Tensor) -> Tensor:
        return language_model_loss(model, ids, targets) * float("inf")

    with pytest.raises(DivergenceError):
        train(
            make_config(tmp_path, max_refused=3),
            tmp_path / "run",
            console=Console(quiet=True),
            loss=diverging,
        )
    status = Run.open(tmp_path / "run").status
    assert (status.state, status.ending) == ("diverged", Ending.DIVERGED)


def test_a_run_without_a_recorded_ending_is_running_or_was_killed(tmp_path: Path) -> None:
    with RunWriter.create(tmp_path / "run", make_config(tmp_path)):
        assert Run(tmp_path / "run").status == RunStatus("running", None, 0)
    assert Run(tmp_path / "run").status == RunStatus(
        "stopped", Ending.KILLED, 0, "killed before its first line"
    )


def test_a_spent_budget_that_was_raised_does_not_complete_a_run() -> None:
    ended = {"step": 20, "event": "ended", "ending": "steps", "limit": 20}
    assert find_status(SETTINGS, [*lines(3, 2, 1, 1), ended]) == RunStatus("complete", Ending.STEPS, 20)
    longer = find_status(SETTINGS | {"budget.steps": 40}, [*lines(3, 2, 1, 1), ended])
    assert (longer.state, longer.ending) == ("stopped", Ending.STEPS)


def test_weights_that_are_not_finite_are_the_reason_also_after_refused_steps() -> None:
    ended = {"step": 20, "event": "ended", "ending": "diverged", "limit": 0}
    status = find_status(SETTINGS, [REFUSED | {"step": 3}, ended])
    assert status == RunStatus("diverged", Ending.DIVERGED, 20, "the weights were not finite after step 20")


def test_the_sentences_of_earlier_versions_are_read_as_typed_events(tmp_path: Path) -> None:
    sentences = {
        "refused: the gradient is not finite": "refused_step",
        "resumed with commit b (was a)": "environment_changed",
        "planned 29 steps for the time budget": "planned_steps",
        "time budget exhausted before the schedule finished": "budget_exhausted",
    }
    log = tmp_path / "metrics.jsonl"
    log.write_text("".join(json.dumps({"step": 3, "event": text}) + "\n" for text in sentences))
    records = list(read_metrics(log))
    assert [record["event"] for record in records] == list(sentences.values())
    assert [describe_event(record) for record in records] == list(sentences)


@pytest.mark.parametrize("num_good", [0, 2])
def test_a_run_of_fewer_steps_than_max_refused_that_ends_with_nan_weights_has_diverged(
    tmp_path: Path, quiet: Console, num_good: int
) -> None:
    calls = [0]

    def breaking(model: TransformerLM, ids: Tensor, targets: Tensor) -> Tensor:
        calls[0] += torch.is_grad_enabled()
        if calls[0] == num_good + 1:
            with torch.no_grad():
                model.output_weight[0, 0] = math.nan
        return language_model_loss(model, ids, targets)

    config = make_config(tmp_path, max_refused=50, budget={"steps": 5}, save_every=2)
    with pytest.raises(DivergenceError):
        train(config, tmp_path / "run", console=quiet, loss=breaking)
    status = Run.open(tmp_path / "run").status
    assert (status.state, status.ending) == ("diverged", Ending.DIVERGED)
    saved = CheckpointList(tmp_path / "run" / "checkpoints").steps()
    assert saved == ([2] if num_good else [])


def test_a_last_step_that_breaks_the_weights_makes_a_run_diverge(tmp_path: Path, quiet: Console) -> None:
    class Breaking(torch.optim.SGD):
        def step(self, closure: None = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for weights in group["params"]:
                    weights.data.fill_(math.nan)

    def breaking(model: torch.nn.Module, settings: object) -> torch.optim.Optimizer:
        return Breaking(model.parameters(), lr=0.1)

    config = make_config(tmp_path, budget={"steps": 1})
    with pytest.raises(DivergenceError):
        train(config, tmp_path / "run", console=quiet, optimizer=breaking)
    status = Run.open(tmp_path / "run").status
    assert (status.state, status.ending, status.step) == ("diverged", Ending.DIVERGED, 1)


def test_a_run_whose_last_validation_loss_is_not_finite_has_diverged() -> None:
    losses: list[dict[str, Any]] = [
        {"step": 10, "validation_loss": 3.0},
        {"step": 20, "loss": 3.0, "validation_loss": None},
    ]
    assert find_status(SETTINGS, losses).state == "diverged"
    assert find_status(SETTINGS, [losses[0], {"step": 20, "loss": 3.0}]).state == "complete"


def test_a_part_that_exits_the_process_makes_a_run_fail(tmp_path: Path, quiet: Console) -> None:
    def exiting(model: TransformerLM, ids: Tensor, targets: Tensor) -> Tensor:
        raise SystemExit("enough")

    with pytest.raises(SystemExit):
        train(make_config(tmp_path), tmp_path / "run", console=quiet, loss=exiting)
    status = Run(tmp_path / "run").status
    assert (status.state, status.ending) == ("failed", Ending.FAILED)

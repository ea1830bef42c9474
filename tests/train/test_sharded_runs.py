"""Runs with strategy "shard": the same files as on one rank, and as with "replicate"."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from bytewright.account.ranks import Ranks, sent_bytes
from bytewright.data.rng import mix_key
from bytewright.errors import LostRankError, ReportedError, UsageError
from bytewright.model import TransformerLM
from bytewright.model.initialisation import draw_weights
from bytewright.parallel.rank_group import RankGroup
from bytewright.train import resume, train
from bytewright.train.config import TrainConfig
from bytewright.train.metrics import RANK_SENT
from bytewright.train.metrics_log import read_metrics
from bytewright.train.outcome import Ending
from bytewright.train.session.console import PlainDisplay
from bytewright.train.session.engine import build_blank_model
from bytewright.train.setup import build_model
from forked_ranks import run_ranks
from model_choices import CHOICES, small_config
from runs import digest, make_config, rerun_unchecked

SHARDED: dict[str, Any] = {"parallel": {"strategy": "shard"}, "accumulate": 4, "norms_every": 8}
UNCLIPPED = {"lr": 0.01, "max_grad_norm": 0.0}
"""With clipping, the norms of both strategies can differ in their last digit."""


class StoppingDisplay(PlainDisplay):
    """Sends this process a signal to stop when it shows the record of a step."""

    def record(self, record: Mapping[str, Any], num_steps: int | None) -> None:
        if record["step"] == 12 and "loss" in record:
            os.kill(os.getpid(), signal.SIGTERM)


def train_on(ranks: RankGroup, config: TrainConfig, run: Path, *, stops: bool = False) -> Ending:
    """Train on all ranks; return why the run ended."""
    display = StoppingDisplay if stops else PlainDisplay
    return train(config, run, ranks=ranks, console=Console(quiet=True), display=display).ending


def resume_on(ranks: RankGroup, run: Path, changes: dict[str, Any]) -> Ending:
    return resume(run, ranks=ranks, changes=changes, console=Console(quiet=True)).ending


def test_the_number_of_ranks_does_not_change_one_bit_of_a_run(tmp_path: Path) -> None:
    config = make_config(tmp_path, **SHARDED)
    for num_ranks in (1, 2, 4):
        run_ranks(num_ranks, train_on, config, tmp_path / f"on-{num_ranks}")
        if num_ranks > 1:
            ranks = Ranks(num_ranks=num_ranks, strategy="shard", accumulate=4)
            predicted = sum(sent_bytes(config.model, ranks).values())
            records = read_metrics(tmp_path / f"on-{num_ranks}" / "metrics.jsonl")
            sent = {record[RANK_SENT] for record in records if RANK_SENT in record}
            assert sent == {predicted}
    alone = digest(tmp_path / "on-1")
    assert digest(tmp_path / "on-2") == alone
    assert digest(tmp_path / "on-4") == alone


def test_a_run_continues_with_other_ranks_and_strategies(tmp_path: Path) -> None:
    """Four sharded ranks are stopped; a single process continues with the whole model, and two finish."""
    whole = make_config(tmp_path, accumulate=4, optimizer=UNCLIPPED, parallel={"threads": 1})
    run_ranks(1, train_on, whole, tmp_path / "whole")
    expected = digest(tmp_path / "whole")
    config = make_config(
        tmp_path, accumulate=4, optimizer=UNCLIPPED, parallel={"strategy": "shard", "threads": 1}
    )
    run = tmp_path / "run"

    def train_until_stopped(ranks: RankGroup) -> Ending:
        return train_on(ranks, config, run, stops=True)

    assert set(run_ranks(4, train_until_stopped)) == {Ending.SIGNAL}
    changed = tmp_path / "copy"
    run.rename(changed)
    run_ranks(2, resume_on, changed, {})
    found = digest(changed)
    assert {**found, "metrics": ""} == {**expected, "metrics": ""}


@pytest.mark.slow
@pytest.mark.parametrize("compile", ["off", "on"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_two_hundred_steps_on_up_to_eight_ranks_have_the_same_bits(
    tmp_path: Path, request: pytest.FixtureRequest, optimizer: str, precision: str, compile: str
) -> None:
    if compile == "on" and rerun_unchecked(request):
        return
    config = make_config(
        tmp_path,
        parallel={"strategy": "shard"},
        accumulate=8,
        batch_size=8,
        budget={"steps": 200},
        optimizer={"name": optimizer, "lr": 0.01},
        precision=precision,
        compile=compile,
        save_every=100,
    )
    for num_ranks in (1, 2, 4, 8):
        run_ranks(num_ranks, train_on, config, tmp_path / f"on-{num_ranks}")
    digests = [digest(tmp_path / f"on-{num_ranks}") for num_ranks in (1, 2, 4, 8)]
    assert digests == [digests[0]] * 4


@pytest.mark.slow
@pytest.mark.fault
def test_kills_and_changes_of_ranks_and_strategies_change_no_bit(tmp_path: Path) -> None:
    """Each session is killed (SIGKILL) after a random number of records; the last one runs to the end."""
    fields: dict[str, Any] = {"accumulate": 8, "batch_size": 8, "optimizer": UNCLIPPED, "save_every": 3}
    whole = make_config(tmp_path, **fields, parallel={"threads": 1})
    run_ranks(1, train_on, whole, tmp_path / "whole")
    config = make_config(tmp_path, **fields, parallel={"strategy": "shard", "threads": 1})
    run = tmp_path / "run"
    sessions = [(4, "shard"), (1, "replicate"), (8, "shard"), (2, "replicate"), (1, "shard"), (2, "shard")]

    class KilledDisplay(PlainDisplay):
        def record(self, record: Mapping[str, Any], num_steps: int | None) -> None:
            if record["step"] >= self.last_step:
                os.kill(os.getpid(), signal.SIGKILL)

        last_step = 0

    def take_part(ranks: RankGroup, number: int) -> Ending | None:
        KilledDisplay.last_step = 4 * (number + 1) if number + 1 < len(sessions) else 10**6
        options: dict[str, Any] = {"ranks": ranks, "console": Console(quiet=True), "display": KilledDisplay}
        try:
            if number == 0:
                return train(config, run, **options).ending
            changes = {"parallel.strategy": sessions[number][1]}
            return resume(run, changes=changes, **options).ending
        except (LostRankError, ReportedError):
            return None

    for number, (num_ranks, _) in enumerate(sessions):
        run_ranks(num_ranks, take_part, number, may_die=number + 1 < len(sessions))
    assert {**digest(run), "metrics": ""} == {**digest(tmp_path / "whole"), "metrics": ""}


@pytest.mark.parametrize("choice", CHOICES)
def test_a_rank_draws_the_weights_of_the_whole_model_one_module_after_the_other(
    tmp_path: Path, choice: str
) -> None:
    config = dataclasses.replace(make_config(tmp_path, precision="bf16"), model=small_config(choice))
    whole = build_model(config, torch.device("cpu"))
    blank = build_blank_model(config)
    assert all(parameter.is_meta for parameter in blank.parameters())
    assert not any(buffer.is_meta for buffer in blank.buffers())
    assert blank.compute_dtype == whole.compute_dtype
    skeleton = TransformerLM(config.model, device="meta", dtype=torch.float32)
    drawn = dict(draw_weights(skeleton, mix_key(config.seed, 1)))
    assert drawn.keys() == dict(whole.named_parameters()).keys()
    for name, parameter in whole.named_parameters():
        assert torch.equal(drawn[name], parameter), name


def start_from(ranks: RankGroup, config: TrainConfig, run: Path, source: Path) -> Ending:
    return train(config, run, init=source, ranks=ranks, console=Console(quiet=True)).ending


def test_ranks_that_start_from_a_checkpoint_copy_their_rows(tmp_path: Path) -> None:
    config = make_config(tmp_path, accumulate=2, optimizer=UNCLIPPED, parallel={"threads": 1})
    run_ranks(1, train_on, config, tmp_path / "base")
    run_ranks(1, start_from, config, tmp_path / "alone", tmp_path / "base")
    sharded = make_config(
        tmp_path, accumulate=2, optimizer=UNCLIPPED, parallel={"strategy": "shard", "threads": 1}
    )
    run_ranks(2, start_from, sharded, tmp_path / "shared", tmp_path / "base")
    assert digest(tmp_path / "shared")["weights"] == digest(tmp_path / "alone")["weights"]


def test_an_optimizer_that_cannot_be_sharded_is_rejected_before_anything_is_written(tmp_path: Path) -> None:
    config = make_config(tmp_path, **SHARDED, optimizer={"implementation": "reference"})

    def train_rejected(ranks: RankGroup) -> str | None:
        with pytest.raises(UsageError) as caught:
            train_on(ranks, config, tmp_path / "run")
        return caught.value.key

    assert run_ranks(1, train_rejected) == ["optimizer.name"]
    assert not (tmp_path / "run").exists()

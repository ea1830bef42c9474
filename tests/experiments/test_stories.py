"""Sampling and evaluation use the precisions of the generation and evaluation commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from bytewright.errors import UsageError
from bytewright.experiments.evaluation import stories as writing
from bytewright.experiments.evaluation.document_eval import evaluate_text
from bytewright.experiments.evaluation.stories import SamplingPlan, generate_stories
from bytewright.storage import atomic
from bytewright.tokenizer import Tokenizer
from bytewright.train import Run, train
from rejection import rejects
from runs import make_config


class Loaded(Exception):  # noqa: N818  # it ends the test where no GPU is needed yet
    """The model would be loaded now."""


@pytest.fixture
def written(tmp_path: Path, stories: Path, tokenizer: Path) -> Path:
    """A run on stories whose config says that it was trained in bf16."""
    for name in ("train", "validation"):
        Tokenizer.load(tokenizer).encode_file(stories, tmp_path / f"{name}.npy")
    config = make_config(
        tmp_path, model={"vocab_size": 400}, data={"tokenizer": str(tokenizer)}, budget={"steps": 1}
    )
    train(config, tmp_path / "run", console=Console(quiet=True))
    path = tmp_path / "run/config.json"
    atomic.write_json(path, atomic.read_document(path) | {"precision": "bf16"})
    return tmp_path / "run"


def test_a_prompt_that_leaves_no_room_for_a_story_is_rejected(written: Path) -> None:
    context_length = Run.open(written).config.model.context_length
    for length in (context_length - 1, 2 * context_length):
        plan = SamplingPlan(num_stories=1, prompt="é" * length)
        with rejects(UsageError, key="sampling.prompt", expected=context_length - 2):
            generate_stories(written, plan, device="cpu")


def loading(chosen: list[torch.dtype | None]) -> Callable[..., Any]:
    def load(checkpoint: Path, *, device: torch.device, compute_dtype: torch.dtype | None = None) -> None:
        chosen.append(compute_dtype)
        raise Loaded

    return load


def test_a_model_is_sampled_in_its_training_precision_if_that_is_fast(
    written: Path, stories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[torch.dtype | None] = []
    monkeypatch.setattr("bytewright.train.run_model.load_model", loading(chosen))
    for device in ("cuda", "cpu"):
        monkeypatch.setattr(writing, "select_device", lambda name, device=device: torch.device(device))
        with pytest.raises(Loaded):
            generate_stories(written, SamplingPlan(num_stories=1))
    with pytest.raises(Loaded):  # evaluation always uses the training precision
        evaluate_text(written, stories, device="cpu")
    assert chosen == [torch.bfloat16, None, torch.bfloat16]

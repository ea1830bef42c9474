"""Measure the model of a run on a token file, and compare the loss with the one that training recorded."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bytewright.data.tokenfile import TokenFile
from bytewright.errors import FormatError, UsageError
from bytewright.formatting import Progress
from bytewright.model import language_model_loss
from bytewright.model.fused import masked_language_model_loss
from bytewright.storage import atomic
from bytewright.train.checkpoint_list import Which
from bytewright.train.config import DeviceName, TrainConfig, Windows
from bytewright.train.evaluate import Evaluation, EvaluationSet
from bytewright.train.run import SavedModel, open_model
from bytewright.train.saved_model import read_model_config
from bytewright.train.setup import count_token_bytes, open_tokens, select_device


@dataclass(frozen=True)
class RecordedLoss:
    """The validation figures that training recorded at the step of a checkpoint."""

    step: int
    validation_loss: float
    bits_per_byte: float | None
    eval_tokens: int
    """How many tokens of the validation data training measures at most."""
    windows: Windows
    """Where training's windows begin; those of `evaluate_run` are side by side."""


@dataclass(frozen=True)
class RunEvaluation:
    """The evaluation of one checkpoint on one token file."""

    checkpoint: Path
    file: Path
    evaluation: Evaluation
    recorded: RecordedLoss | None
    """None if training did not evaluate this checkpoint on this file."""


def evaluate_run(
    path: atomic.StrPath,
    file: Path | None = None,
    *,
    which: Which = "best",
    device: DeviceName = "auto",
    batch_size: int = 32,
    progress: Progress | None = None,
) -> RunEvaluation:
    """Evaluate a saved model on a token file, by default the validation data of its run.

    The windows are side by side from the start of the file; the tokens after the last whole window are left
    out. The precision is that of training. A file that another tokenizer encoded raises `FormatError`. If the
    file has a mask, only the tokens that it selects count.
    """
    saved = open_model(path, which=which)
    config = saved.config
    file = file or (config.data.validation if config else None)
    if file is None:
        raise UsageError(f"{path} has no validation data of its own; name a token file to evaluate on")
    model_config = read_model_config(saved.checkpoint)
    tokens = open_tokens(file, model_config)
    token_bytes = _find_token_bytes(saved, tokens)
    target = select_device(device)
    model = saved.load(device=target, precision=saved.training_precision)
    evaluation_set = EvaluationSet(
        tokens.tokens,
        target,
        context_length=model_config.context_length,
        batch_size=batch_size,
        token_bytes=token_bytes,
        mask=tokens.mask,
    )
    loss = language_model_loss if tokens.mask is None else masked_language_model_loss
    with torch.no_grad():
        evaluation = evaluation_set.evaluate(lambda ids, targets: loss(model, ids, targets), progress)
    is_own = config and config.data.validation and file.resolve() == config.data.validation.resolve()
    recorded = _find_recorded_loss(saved, config) if config and is_own else None
    return RunEvaluation(saved.checkpoint, file, evaluation, recorded)


def _find_token_bytes(saved: SavedModel, tokens: TokenFile) -> Any:
    """Return the bytes of each token if the run has its tokenizer; reject tokens of another tokenizer."""
    from bytewright.tokenizer.formats import read_vocabulary_of

    if saved.run.tokenizer_path is not None:
        return count_token_bytes(read_vocabulary_of(tokens, saved.run.tokenizer_path))
    if saved.config and saved.config.data.train.exists():
        tokens.require_tokenizer(type(tokens).open(saved.config.data.train).manifest.tokenizer_fingerprint)
    return None


def _find_recorded_loss(saved: SavedModel, config: TrainConfig) -> RecordedLoss | None:
    with contextlib.suppress(FormatError):  # damaged metrics do not change the evaluation
        for record in saved.run.records:
            step, loss = record["step"], record.get("validation_loss")
            if isinstance(loss, float) and saved.checkpoint.name == f"step-{step:06d}":
                bits = record.get("bits_per_byte")
                return RecordedLoss(step, loss, bits, config.eval_tokens, config.data.windows)
    return None

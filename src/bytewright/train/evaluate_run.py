"""Measure a checkpoint on a token file, in whole windows: what `bytewright evaluate` prints.

The tokenizer of the run, or of its training data, must have made the file; a file of another tokenizer is
rejected. The windows stand side by side from the beginning of the file, and each is measured once; the tokens
after the last window, fewer than a window, are left out. The precision is that of the run; an imported model
has no record of a run and is measured in fp32.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import torch

from bytewright.data.tokenfile import TokenFile
from bytewright.errors import FormatError, UsageError
from bytewright.model import language_model_loss
from bytewright.train.checkpoint import find_checkpoint, load_model, read_model_config
from bytewright.train.config import Device, TrainConfig, Windows
from bytewright.train.evaluate import Evaluation, EvaluationSet, Progress
from bytewright.train.inputs import count_token_bytes, open_tokens, read_vocabulary_of
from bytewright.train.metrics import read_metrics
from bytewright.train.run import METRICS, config_of_checkpoint, run_of_checkpoint
from bytewright.train.setup import dtype_of, find_device


@dataclass(frozen=True)
class Recorded:
    """What training recorded at the step of a checkpoint."""

    step: int
    validation_loss: float
    eval_tokens: int
    """How many tokens of the validation data training measures at most."""
    windows: Windows
    """Where the windows begin that training measures; those of `evaluate_run` stand side by side."""


@dataclass(frozen=True)
class RunEvaluation:
    """The evaluation of one checkpoint on one token file."""

    checkpoint: Path
    file: Path
    evaluation: Evaluation
    recorded: Recorded | None
    """None if training did not measure this checkpoint on this file."""


def evaluate_run(
    run: Path,
    file: Path | None = None,
    *,
    which: str = "best",
    device: Device = "auto",
    batch_size: int = 32,
    progress: Progress | None = None,
) -> RunEvaluation:
    """Measure the best or last checkpoint of `run` on `file`, by default the run's own validation data."""
    checkpoint = find_checkpoint(run, which=which)
    folder = run_of_checkpoint(checkpoint)
    config = config_of_checkpoint(checkpoint)
    path = file or (config.data.validation if config else None)
    if path is None:
        raise UsageError(f"{run} has no validation data of its own; name a token file to evaluate on")
    model_config = read_model_config(checkpoint)
    tokens = open_tokens(path, model_config)
    token_bytes = None
    if folder and (folder / "tokenizer").is_dir():
        token_bytes = count_token_bytes(read_vocabulary_of(tokens, folder / "tokenizer"))
    elif config and config.data.train.exists():
        tokens.require_tokenizer(TokenFile.open(config.data.train).manifest.tokenizer_fingerprint)
    target = find_device(device)
    compute_dtype = dtype_of(config.precision) if config else None
    model = load_model(checkpoint, device=target, compute_dtype=compute_dtype)
    evaluation_set = EvaluationSet(
        tokens.tokens,
        target,
        context_length=model_config.context_length,
        batch_size=batch_size,
        token_bytes=token_bytes,
    )
    with torch.no_grad():
        evaluation = evaluation_set.evaluate(
            lambda ids, targets: language_model_loss(model, ids, targets), progress
        )
    is_own = config and config.data.validation and path.resolve() == config.data.validation.resolve()
    recorded = _find_recorded(checkpoint, config) if config and is_own else None
    return RunEvaluation(checkpoint, path, evaluation, recorded)


def _find_recorded(checkpoint: Path, config: TrainConfig) -> Recorded | None:
    """Find the validation loss of a checkpoint's step in the metrics of its run."""
    metrics = checkpoint.parent.parent / METRICS
    with contextlib.suppress(FormatError):  # damaged metrics do not change what was measured
        for record in read_metrics(metrics) if metrics.is_file() else ():
            step, loss = record.get("step"), record.get("validation_loss")
            if isinstance(step, int) and isinstance(loss, float) and checkpoint.name == f"step-{step:06d}":
                return Recorded(step, loss, config.eval_tokens, config.data.windows)
    return None

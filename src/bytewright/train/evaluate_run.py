"""Measure a checkpoint on a whole token file: what `bytewright evaluate` prints.

The run tells which tokenizer its model reads; a file of another one is refused. Every window of the file is
measured once, by the precision of the run.
"""

from __future__ import annotations

from pathlib import Path

import torch

from bytewright.errors import UsageError
from bytewright.train.checkpoint import find_checkpoint, load_model
from bytewright.train.config import Device
from bytewright.train.evaluate import Evaluation, EvaluationSet
from bytewright.train.inputs import count_token_bytes, open_tokens, read_vocabulary_of
from bytewright.train.loss import language_model_loss
from bytewright.train.run_folder import config_of
from bytewright.train.setup import find_device


def evaluate_run(
    run: Path, file: Path | None = None, *, which: str = "best", device: Device = "auto", batch_size: int = 32
) -> Evaluation:
    """Measure the best or last checkpoint of `run` on `file`, by default the run's own validation data."""
    checkpoint = find_checkpoint(run, which=which)
    config = config_of(checkpoint.parents[1])
    path = file or config.data.validation
    if path is None:
        raise UsageError(f"{run} has no validation data of its own; name a token file to evaluate on")
    tokens = open_tokens(path, config.model)
    if config.data.train.exists():
        tokens.require_tokenizer(open_tokens(config.data.train, config.model).manifest.tokenizer_fingerprint)
    token_bytes = None
    if config.data.tokenizer is not None:
        token_bytes = count_token_bytes(read_vocabulary_of(tokens, config.data.tokenizer))
    target = find_device(device)
    compute_dtype = torch.bfloat16 if config.precision == "bf16" else None
    model = load_model(checkpoint, device=target, compute_dtype=compute_dtype)
    evaluation_set = EvaluationSet(
        tokens.tokens,
        target,
        context_length=config.model.context_length,
        batch_size=batch_size,
        token_bytes=token_bytes,
    )
    with torch.no_grad():
        return evaluation_set.evaluate(lambda ids, targets: language_model_loss(model, ids, targets))

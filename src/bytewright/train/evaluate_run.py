"""Measure a checkpoint on a token file, in whole windows: what `bytewright evaluate` prints.

A run that keeps its tokenizer, or whose training data is still there, tells which tokenizer its model reads,
and a file of another one is refused. The windows stand side by side from the beginning of the file, and each
is measured once; the tokens behind the last, fewer than a window, are left out. It is measured in the
precision of the run; an imported model has no record of a run and is measured in fp32.
"""

from __future__ import annotations

from pathlib import Path

import torch

from bytewright.data.tokenfile import TokenFile
from bytewright.errors import UsageError
from bytewright.train.checkpoint import find_checkpoint, load_model, read_model_config
from bytewright.train.config import Device
from bytewright.train.evaluate import Evaluation, EvaluationSet
from bytewright.train.inputs import count_token_bytes, open_tokens, read_vocabulary_of
from bytewright.train.loss import language_model_loss
from bytewright.train.run_folder import config_of_checkpoint, run_of_checkpoint
from bytewright.train.setup import dtype_of, find_device


def evaluate_run(
    run: Path, file: Path | None = None, *, which: str = "best", device: Device = "auto", batch_size: int = 32
) -> Evaluation:
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
        return evaluation_set.evaluate(lambda ids, targets: language_model_loss(model, ids, targets))

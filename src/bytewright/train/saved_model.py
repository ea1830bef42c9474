"""Load the model of a run or of one checkpoint; write and read a checkpoint as a single file.

`load_model` reads the folders that `checkpoint.CheckpointFolder` writes. `save_checkpoint` and
`load_checkpoint` use one safetensors file instead, given by path or as a file object. An invalid file raises
`FormatError` and changes neither the model nor the optimizer.
"""

from __future__ import annotations

import json
import operator
import os
import re
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import Module

from bytewright.errors import FormatError, UsageError, wrong_value
from bytewright.model import ModelConfig, TransformerLM
from bytewright.model.transformer import MAX_CONTEXT
from bytewright.storage import atomic
from bytewright.storage.config_reader import build
from bytewright.train.checkpoint import (
    SavedState,
    Stateful,
    Writable,
    check_model_weights,
    load_weights,
    pack,
    plain_state_dict,
    read_file,
    read_tensors,
    unpack,
    write_tensors,
)
from bytewright.train.checkpoint_list import FORMAT, STATE, Which, open_checkpoint
from bytewright.train.run_files import find_checkpoint


def read_model_config(checkpoint: Path) -> ModelConfig:
    """Read the config of a checkpoint's model from its manifest."""
    fields = open_checkpoint(checkpoint).about.get("model")
    if not isinstance(fields, dict):
        raise FormatError.at(checkpoint, "its manifest does not describe the model")
    try:
        config = build(ModelConfig, fields, source="its manifest")
    except UsageError as error:
        raise FormatError.at(checkpoint, error, key=error.key, found=error.found) from None
    if config.context_length > MAX_CONTEXT:  # the weights do not limit it
        message = f"its context length is {config.context_length}; the limit is {MAX_CONTEXT}"
        raise FormatError.at(checkpoint, message, key="context_length", found=config.context_length)
    return config


def load_model(
    path: atomic.StrPath,
    *,
    which: Which = "best",
    device: torch.device | str = "cpu",
    compute_dtype: torch.dtype | None = None,
) -> TransformerLM:
    """Load the model of a run at its "best" or "last" checkpoint, or the model of one checkpoint's folder.

    The best checkpoint has the lowest validation loss; a run without validation data has only a last one.
    Memory is proportional to the weights, whatever sizes the files claim. The model is in evaluation mode,
    which disables dropout in a part of the user; call `model.train()` before training.
    """
    checkpoint = find_checkpoint(path, which=which)
    config = read_model_config(checkpoint)
    weights = read_weights(checkpoint)
    check_model_weights(config, weights, str(checkpoint))
    model = TransformerLM(config, device, compute_dtype=compute_dtype)
    load_weights(model, weights, str(checkpoint))
    return model.eval()


def read_weights(checkpoint: Path, *, mapped: bool = False) -> dict[str, Tensor]:
    """Read the weights in the folder of a checkpoint; `mapped` as in `CheckpointFolder.read`."""
    return read_file(open_checkpoint(checkpoint), "model.safetensors", mapped=mapped)


def read_optimizer(checkpoint: Path) -> Any:
    """Read the optimizer state in the folder of a checkpoint; that of an imported model is empty."""
    folder = open_checkpoint(checkpoint)
    state = folder.read_json(STATE)
    if not isinstance(state, dict) or "optimizer" not in state:
        raise FormatError.at(checkpoint / STATE, "is not the state of a checkpoint")
    return unpack(read_file(folder, "optimizer.safetensors"), state["optimizer"], str(checkpoint))


@runtime_checkable
class Readable(Protocol):
    """Anything that can be read: an open file or a `BytesIO`."""

    def read(self) -> bytes:
        """Return all remaining bytes."""


def save_checkpoint(
    model: Module, optimizer: Stateful, iteration: int, out: str | os.PathLike[str] | Writable
) -> None:
    """Write model, optimizer and iteration into one file, given by path or open for writing.

    A run writes folders instead: see `CheckpointFolder.save`.
    """
    if not hasattr(iteration, "__index__") or not 0 <= operator.index(iteration) < 10**18:
        raise wrong_value("iteration", "a whole number from 0 to 10^18 - 1", iteration)
    iteration = operator.index(iteration)
    tensors = {f"model.{name}": tensor for name, tensor in plain_state_dict(model).items()}
    of_optimizer, skeleton = pack(optimizer.state_dict(), "optimizer")
    metadata = {"format": FORMAT, "iteration": str(iteration), "optimizer": json.dumps(skeleton)}
    if isinstance(out, str | os.PathLike):
        with atomic.write_stream(out) as stream:
            write_tensors(stream, tensors | of_optimizer, metadata)
    else:
        write_tensors(out, tensors | of_optimizer, metadata)


def load_checkpoint(src: str | os.PathLike[str] | Readable, model: Module, optimizer: Stateful) -> int:
    """Load what `save_checkpoint` wrote into `model` and `optimizer`; return the iteration."""
    if isinstance(src, str | os.PathLike) and os.path.isdir(src):
        raise UsageError(
            f"{src}: is a folder, but load_checkpoint reads one file that save_checkpoint wrote;"
            " use load_model for the model of a run or of one of its checkpoints, or resume to train on",
            path=src,
        )
    saved = read_checkpoint_file(src)
    saved.load_into(model, optimizer)
    return int(saved.rest["iteration"])


def read_checkpoint_file(src: str | os.PathLike[str] | Readable) -> SavedState:
    """Read what `save_checkpoint` wrote; the iteration is in `rest`."""
    if isinstance(src, str | os.PathLike):
        source, data = os.fspath(src), atomic.read_bytes(src)
    else:
        source, data = str(getattr(src, "name", "checkpoint")), src.read()
    tensors, metadata = read_tensors(data, source)
    if metadata.get("format") != FORMAT or not re.fullmatch(r"\d{1,18}", metadata.get("iteration", "")):
        raise FormatError.at(source, "is a safetensors file, but not a checkpoint of Bytewright")
    skeleton = atomic.parse_json(metadata.get("optimizer", ""), source)
    return SavedState(
        source=source,
        weights={name.removeprefix("model."): tensors[name] for name in tensors if name.startswith("model.")},
        optimizer=unpack(tensors, skeleton, source),
        rest={"iteration": int(metadata["iteration"])},
    )

"""Start a run from the weights of another model: `train(config, run, init="runs/base")`.

`InitialWeights.read` reads a run or one of its checkpoints, a file of `save_checkpoint`, or a Hugging Face
Llama folder. `fit` checks them against the config and the data of the new run. Model, settings and tokenizer
must be the same, with two exceptions:

- the context may be longer or shorter, because no weight depends on it;
- the vocabulary may grow: each new row of the embedding and of the head is the mean of the old rows, so the
  logit of a new token is the mean of the old logits. The state of the optimizer for new rows is zero.

The run records its source in init.json: path, step, and the SHA-256 of the weights as a checkpoint of them
stores them (model.safetensors). Its first checkpoint, of step 0, holds the weights, so a resume does not need
the source. Only a run that was killed before this checkpoint reads the source again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bytewright.data.tokenfile import TokenFile
from bytewright.errors import FormatError, TokenizerError, UsageError, first_line
from bytewright.model import ModelConfig
from bytewright.model.hf_llama import read_llama
from bytewright.model.transformer import weight_shapes
from bytewright.optim.saved_state import load_state
from bytewright.plugins import check_loaded
from bytewright.registry import accepting_unknown_parts
from bytewright.storage import atomic
from bytewright.storage.json_reader import Json
from bytewright.train.checkpoint import write_tensors
from bytewright.train.checkpoint_list import CHECKPOINTS, Which
from bytewright.train.recipe import read_config
from bytewright.train.run_files import CONFIG, INIT, TOKENIZER, find_checkpoint, is_llama_folder, read_init
from bytewright.train.saved_model import read_checkpoint_file, read_model_config, read_optimizer, read_weights
from bytewright.train.setup import Inputs

if TYPE_CHECKING:
    from bytewright.tokenizer import Vocabulary  # at run time only if the source has a tokenizer

VOCABULARY_WEIGHTS = ("token_embeddings.weight", "lm_head.weight")
"""The weights with one row per token."""
FREE_SETTINGS = ("vocab_size", "context_length", "implementation")
"""Settings of the model that may differ from those of the source."""
LLAMA_TOKENIZER = "tokenizer.json"


@dataclass(frozen=True, kw_only=True)
class InitialWeights:
    """A saved model whose weights a run starts from."""

    source: Path
    """The folder of the checkpoint, the file, or the Hugging Face folder."""
    weights: Mapping[str, Tensor]
    step: int | None = None
    """The step at which the weights were saved, if it is recorded."""
    model: ModelConfig | None = None
    """Their config; None for a file of `save_checkpoint`, which has none."""
    optimizer: Any = None
    """The state dict of the optimizer, if it is to be used too."""
    tokenizer: Path | None = None
    """The tokenizer of the source, if it has one."""
    fingerprint: str | None = None
    """The fingerprint of the tokenizer, if the source records it but has no tokenizer."""

    @classmethod
    def read(
        cls,
        source: atomic.StrPath,
        *,
        which: Which = "best",
        with_optimizer: bool = False,
        mapped: bool = False,
    ) -> InitialWeights:
        """Read the weights at `source`; of a run, those of its "best" or "last" checkpoint.

        With `mapped`, the weights of a checkpoint are views of its file, which occupy no memory until they
        are copied. Those of a file of `save_checkpoint` or of a Llama are always read into memory.
        """
        source = Path(source)
        if source.is_file():
            try:
                saved = read_checkpoint_file(source)
            except FormatError as error:
                message = (
                    f"{error}; give a run, a checkpoint, a file of save_checkpoint, or the folder of a Llama"
                )
                raise FormatError(message, path=source) from None
            optimizer = saved.optimizer if with_optimizer else None
            return cls(
                source=source, weights=saved.weights, step=saved.rest["iteration"], optimizer=optimizer
            )
        if is_llama_folder(source):
            if with_optimizer:
                message = f"{source} is a Hugging Face folder, which has no optimizer state; start without it"
                raise UsageError(message, path=source, key="init_optimizer")
            model = read_llama(source)
            tokenizer = source / LLAMA_TOKENIZER
            return cls(
                source=source,
                weights=model.state_dict(),
                model=model.config,
                tokenizer=tokenizer if tokenizer.is_file() else None,
            )
        return cls._read_checkpoint(find_checkpoint(source, which=which), with_optimizer, mapped)

    @classmethod
    def _read_checkpoint(cls, checkpoint: Path, with_optimizer: bool, mapped: bool) -> InitialWeights:
        parent = checkpoint.absolute().parent
        run = parent.parent if parent.name == CHECKPOINTS else None
        if run is not None:
            check_loaded(run, of_model_only=True)
        optimizer = read_optimizer(checkpoint) if with_optimizer else None
        if with_optimizer and not optimizer:
            message = f"{checkpoint} is an imported model, which has no optimizer state; start without it"
            raise UsageError(message, path=checkpoint, key="init_optimizer")
        tokenizer = run / TOKENIZER if run and (run / TOKENIZER).is_dir() else None
        return cls(
            source=checkpoint,
            weights=read_weights(checkpoint, mapped=mapped),
            step=read_step(checkpoint),
            model=read_model_config(checkpoint),
            optimizer=optimizer,
            tokenizer=tokenizer,
            fingerprint=find_fingerprint(run) if run and not tokenizer else None,
        )

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the weights as the model.safetensors of a checkpoint."""
        digest = _Digest()
        write_tensors(digest, self.weights, {"format": "pt"})
        return digest.sha256.hexdigest()

    @cached_property
    def vocabulary(self) -> Vocabulary | None:
        """The vocabulary of the source, if it has a tokenizer."""
        if self.tokenizer is None:
            return None
        from bytewright.tokenizer.formats import read_vocabulary

        return read_vocabulary(self.tokenizer)

    def describe(self, run: Path) -> dict[str, Any]:
        """Return the contents of init.json of the run at `run`; the path is relative to that folder."""
        return {
            "source": os.path.relpath(os.path.realpath(self.source), os.path.realpath(run)),
            "sha256": self.sha256,
            "step": self.step,
            "optimizer": self.optimizer is not None,
        }

    def fit(self, config: ModelConfig, inputs: Inputs) -> InitialWeights:
        """Return the weights with the rows that a model of `config` has; raise if anything else differs."""
        self._check_settings(config)
        self._check_tokenizer(inputs)
        weights = dict(self.weights)
        expected = weight_shapes(config)
        for name in VOCABULARY_WEIGHTS:
            if name in expected and name in weights and weights[name].ndim == 2:
                weights[name] = grow_rows(weights[name], expected[name][0])
        for name in sorted(expected.keys() | weights.keys()):
            found = tuple(weights[name].shape) if name in weights else None
            if found != expected.get(name):
                raise self._mismatch(name, expected.get(name), found)
        return dataclasses.replace(self, weights=weights)

    def _check_settings(self, config: ModelConfig) -> None:
        if self.model is None:
            rows = self.weights.get(VOCABULARY_WEIGHTS[0])
            vocab_size = len(rows) if rows is not None and rows.ndim else 0
        else:
            vocab_size = self.model.vocab_size
            ours, theirs = _resolved(config), _resolved(self.model)
            for name, value in theirs.items():
                if name not in FREE_SETTINGS and ours[name] != value:
                    key, found = f"model.{name}", ours[name]
                    message = (
                        f"{key} is {found!r}, but the weights in {self.source} are of a model with {value!r};"
                        f" set {key} = {value!r}, or leave it out of the recipe"
                    )
                    raise UsageError(message, path=self.source, key=key, expected=value, found=found)
        if config.vocab_size < vocab_size:
            raise UsageError(
                f"model.vocab_size is {config.vocab_size}, but the weights in {self.source} have {vocab_size}"
                f" rows, and rows are only added; set model.vocab_size to {vocab_size} or more",
                path=self.source,
                key="model.vocab_size",
                expected=vocab_size,
                found=config.vocab_size,
            )

    def _check_tokenizer(self, inputs: Inputs) -> None:
        """Raise unless the data's tokenizer is that of the source, or has all of its ids."""
        known = self.fingerprint if self.vocabulary is None else self.vocabulary.fingerprint
        if known is None or known == inputs.fingerprint:
            return
        if self.vocabulary is not None and inputs.vocabulary is not None:
            ours, theirs = inputs.vocabulary.tokens, self.vocabulary.tokens
            other = next((id for id in sorted(theirs) if ours.get(id) != theirs[id]), None)
            if other is None:
                return
            detail = f"id {other} is {theirs[other]!r} there and {ours.get(other)!r} here"
        else:
            detail = "without data.tokenizer it cannot be checked whether it has the same ids"
        raise TokenizerError(
            f"the data was encoded with tokenizer {inputs.fingerprint[:12]}…, but the weights in"
            f" {self.source} belong to {known[:12]}… ({detail}); encode the data with"
            f" {self.tokenizer or 'that tokenizer'}, or with an extension of it",
            path=self.source,
            key="tokenizer_fingerprint",
            expected=known,
            found=inputs.fingerprint,
        )

    def _mismatch(self, name: str, expected: object, found: object) -> FormatError:
        problem = f"is {found} in {self.source}, but {expected} in this model"
        if found is None:
            problem = f"is missing in {self.source}"
        elif expected is None:
            problem = f"is in {self.source}, but not in this model"
        message = f"the weight {name} {problem}; give [model] the settings that the weights were trained with"
        return FormatError(message, path=self.source, key=name, expected=expected, found=found)


def read_recorded(run: Path, *, mapped: bool = False) -> InitialWeights | None:
    """Read the initial weights of a run again; None if it did not start from weights.

    `mapped` as in `InitialWeights.read`. Raises if they are no longer those that init.json records.
    """
    record = read_init(run)
    if not record:
        return None
    recorded = Json(record, run / INIT)
    source, sha256 = Path(recorded["source"].as_text()), recorded["sha256"].as_text()
    again = f"{run} has no checkpoint yet; restore the source, or start a new run"
    if not source.exists():
        message = f"{source}, where the weights of the run came from, does not exist, and {again}"
        raise UsageError(message, path=source)
    with_optimizer = recorded["optimizer"].as_boolean(default=False)
    init = InitialWeights.read(source, with_optimizer=with_optimizer, mapped=mapped)
    if init.sha256 != sha256:
        message = f"its weights have changed since the run started from them, and {again}"
        raise FormatError.at(source, message, key="sha256", expected=sha256, found=init.sha256)
    return init


def read_step(checkpoint: Path) -> int:
    """Return the step of a checkpoint, from its manifest."""
    step = atomic.open_folder(checkpoint).about.get("step")
    if not isinstance(step, int):
        raise FormatError.at(checkpoint, "its manifest does not name a step", key="step")
    return step


def find_fingerprint(run: Path) -> str | None:
    """Return the fingerprint of the tokenizer of a run without one, from its training data if it exists."""
    if not (run / CONFIG).is_file():
        return None
    with accepting_unknown_parts():  # plugins of the training, such as an optimizer, need not be loaded
        data = read_config(run / CONFIG).data.train
    return TokenFile.open(data).manifest.tokenizer_fingerprint if data.exists() else None


def grow_rows(weight: Tensor, num_rows: int) -> Tensor:
    """Return `weight` with rows added up to `num_rows`; each new row is the mean of the old ones.

    >>> grow_rows(torch.tensor([[1.0, 2.0], [3.0, 6.0]]), 3)
    tensor([[1., 2.],
            [3., 6.],
            [2., 4.]])
    """
    num_new = num_rows - len(weight)
    if num_new <= 0:
        return weight
    mean = weight.double().mean(dim=0, keepdim=True).to(weight.dtype)
    return torch.cat([weight, mean.expand(num_new, -1)])


def load_optimizer_state(optimizer: torch.optim.Optimizer, saved: Any, source: Path) -> None:
    """Load the tensors and update counts of a saved state; the settings of `optimizer` stay as they are.

    State tensors of a smaller vocabulary get rows of zeros.
    """
    settings = [
        {name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups
    ]
    try:
        load_state(optimizer, _pad_state(optimizer, saved))
    except (ValueError, KeyError) as error:  # torch's optimizers raise these
        message = (
            f"its optimizer state cannot be used here: {first_line(error)}; set [optimizer] to that of its"
            " run, or start without the state"
        )
        raise FormatError.at(source, message, key="optimizer") from None
    for group, before in zip(optimizer.param_groups, settings, strict=True):
        group.update(before)


def _pad_state(optimizer: torch.optim.Optimizer, saved: Any) -> Any:
    """Return a saved state whose tensors have as many rows as the parameters of `optimizer`."""
    parts = getattr(optimizer, "optimizers", [])
    fields = saved if isinstance(saved, dict) else {}
    if isinstance(former := fields.get("optimizers"), list):  # of an earlier version: one state for each part
        padded = [_pad_state(part, one) for part, one in zip(parts, former, strict=False)]
        return {"optimizers": padded + former[len(padded) :]}
    if not isinstance(state := fields.get("state"), dict):
        return saved
    parameters = dict(enumerate(p for group in optimizer.param_groups for p in group["params"]))
    return {
        **fields,
        "state": {
            number: {name: _pad_rows(value, parameters[number]) for name, value in values.items()}
            if number in parameters and isinstance(values, dict)
            else values
            for number, values in state.items()
        },
    }


def _pad_rows(value: Any, parameter: Tensor) -> Any:
    if not isinstance(value, Tensor) or value.ndim == 0 or value.shape[1:] != parameter.shape[1:]:
        return value
    num_new = max(0, len(parameter) - len(value))
    return torch.cat([value, value.new_zeros(num_new, *value.shape[1:])]) if num_new else value


def _resolved(config: ModelConfig) -> dict[str, Any]:
    """Return the settings of a model with derived sizes filled in."""
    return config.to_dict() | {"d_ff": config.ffn_width, "num_kv_heads": config.kv_heads}


class _Digest:
    """A stream that only computes a SHA-256."""

    def __init__(self) -> None:
        self.sha256 = hashlib.sha256()

    def write(self, data: Any, /) -> None:
        """Add the bytes."""
        self.sha256.update(data)

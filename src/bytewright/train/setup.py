"""Build the parts of a run from its config: data, samplers, device and model.

All data is opened and checked here, before any computation. Token files must be intact, of one tokenizer,
within the model's vocabulary, and at least one window long. The initial weights depend only on the config,
its seed and the names of modules (`initialise`). They are drawn on the CPU, and the global random state is
left unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Int64

from bytewright.account import count_parameters, state_bytes
from bytewright.corpus import END_OF_TEXT
from bytewright.data.rng import mix_key
from bytewright.data.sampler import Corpus, DocumentSampler, WindowSampler, count_targets, find_documents
from bytewright.data.tokenfile import Mask, TokenFile
from bytewright.errors import FormatError, UsageError
from bytewright.generate.text import make_text_sampler
from bytewright.model import ModelConfig, TransformerLM
from bytewright.model.fused import make_loss
from bytewright.model.initialisation import initialise
from bytewright.storage.filesystem import check_space
from bytewright.train.config import DeviceName, Precision, TrainConfig

if TYPE_CHECKING:
    from bytewright.tokenizer.vocabulary import Vocabulary  # at run time only if a run has a tokenizer


@dataclass(frozen=True)
class Inputs:
    """Checked tokens to train and validate on, and the bytes of each token if the tokenizer is known."""

    train: Corpus
    validation: Corpus | None
    validation_starts: Int64[np.ndarray, " windows"] | None
    """Where validation windows may begin; None: side by side."""
    vocabulary: Vocabulary | None
    train_mask: Mask | None
    """1 for each training token whose prediction counts; None if all count."""
    validation_mask: Mask | None
    fingerprint: str
    """The fingerprint of the tokenizer that encoded the tokens."""
    identity: Mapping[str, object]
    """SHA-256 of each token file; a checkpoint stores them, and a resume on other data is rejected."""

    @property
    def is_masked(self) -> bool:
        """Whether some tokens do not count in the loss."""
        return self.train_mask is not None or self.validation_mask is not None

    @property
    def token_bytes(self) -> Int64[np.ndarray, " vocab"] | None:
        """Bytes of text per token id, if the tokenizer is known."""
        return None if self.vocabulary is None else count_token_bytes(self.vocabulary)


def open_inputs(config: TrainConfig) -> Inputs:
    """Open the files that `config.data` names and check them against each other and the model."""
    train = open_tokens(config.data.train, config.model)
    identity = train.manifest.digests("train")
    validation = None
    if config.data.validation is not None:
        validation = open_tokens(config.data.validation, config.model)
        validation.require_tokenizer(train.manifest.tokenizer_fingerprint)
        identity |= validation.manifest.digests("validation")
    vocabulary = None
    if config.data.tokenizer is not None:
        from bytewright.tokenizer.formats import read_vocabulary_of  # a run of bare ids does not need it

        vocabulary = read_vocabulary_of(train, config.data.tokenizer)
    if train.mask is not None or (validation is not None and validation.mask is not None):
        make_loss(config.loss.name, config.loss.options, masked=True)  # raises if it does not support masks
    if train.mask is not None and not train.mask.any():
        message = "its mask counts no token, so nothing would be learned; encode it again"
        raise UsageError.at(train.path, message, key="data.train")
    return Inputs(
        train=train.tokens,
        validation=None if validation is None else validation.tokens,
        validation_starts=None
        if validation is None
        else _find_validation_starts(config, validation, vocabulary),
        vocabulary=vocabulary,
        train_mask=train.mask,
        validation_mask=None if validation is None else validation.mask,
        fingerprint=train.manifest.tokenizer_fingerprint,
        identity=identity,
    )


def _find_validation_starts(
    config: TrainConfig, validation: TokenFile, vocabulary: Vocabulary | None
) -> Int64[np.ndarray, " windows"] | None:
    """Return where validation windows may begin, by the same rule as in training: losses depend on it."""
    if config.data.windows == "side by side":
        return None
    length = config.model.context_length
    starts = find_documents(validation.tokens, find_end_token(vocabulary), length)
    if not len(starts):
        message = f"no end token has a whole window of {length} tokens after it"
        message += ', which data.windows = "documents" needs'
        raise UsageError.at(validation.path, message, key="data.windows")
    return starts


def make_window_sampler(config: TrainConfig, inputs: Inputs) -> WindowSampler | DocumentSampler:
    """Return the sampler that chooses the windows of each step."""
    length = config.model.context_length
    if config.data.windows == "side by side":
        return WindowSampler(
            num_tokens=len(inputs.train),
            context_length=length,
            batch_size=config.batch_size,
            seed=config.seed,
        )
    first_tokens = find_documents(inputs.train, find_end_token(inputs.vocabulary), length)
    if inputs.train_mask is not None and len(first_tokens):
        first_tokens = first_tokens[count_targets(inputs.train_mask, first_tokens, length) > 0]
        if not len(first_tokens):
            message = (
                f"all prompts of data.train fill the context of {length} tokens, so no completion would be"
                " learned; set a longer model.context_length, or shorten the prompts"
            )
            raise UsageError(message, key="data.train", found=length)
    return DocumentSampler(first_tokens=first_tokens, batch_size=config.batch_size, seed=config.seed)


def find_end_token(vocabulary: Vocabulary | None) -> int:
    """Return the id of the end token; raise if there is no tokenizer, or none with that token."""
    end = None if vocabulary is None else vocabulary.special_tokens.get(END_OF_TEXT)
    if end is None:
        raise UsageError(
            f'data.windows is "documents", but no tokenizer with the token {END_OF_TEXT} is given in'
            " data.tokenizer, so document boundaries cannot be located",
            key="data.tokenizer",
        )
    return end


def text_sampler_of(config: TrainConfig, inputs: Inputs) -> Callable[[TransformerLM, int], str] | None:
    """Return the function that writes samples of text, or None if `sample_every` is 0."""
    if not config.sample_every:
        return None
    if inputs.vocabulary is None:
        raise UsageError(
            f"sample_every is {config.sample_every}, but samples of text need a tokenizer;"
            " set data.tokenizer, or sample_every = 0",
            key="data.tokenizer",
        )
    return make_text_sampler(
        config.model,
        inputs.vocabulary,
        config.sample_prompt,
        sampler=config.sampler.name,
        sampler_options=config.sampler.options,
    )


def open_tokens(path: Path, model: ModelConfig, remedy: str | None = None) -> TokenFile:
    """Open a token file; raise unless the model has all its ids and it holds at least one window.

    The error about ids that the model lacks ends with `remedy`, by default that of a run that starts.
    """
    file = TokenFile.open(path, verify=True)
    expected, found = model.vocab_size, file.manifest.vocabulary_size
    if found > expected:
        message = (
            f"was encoded with a vocabulary of {found} tokens (tokenizer"
            f" {file.manifest.tokenizer_fingerprint[:12]}…), but the model has {expected};"
            f" {remedy or f'set model.vocab_size={found}, or use other data'}"
        )
        raise FormatError.at(path, message, key="model.vocab_size", expected=expected, found=found)
    if len(file) < model.context_length + 1:
        message = (
            f"has {len(file)} tokens, but a context of {model.context_length} needs at least"
            f" {model.context_length + 1}: one window and the token after it; use more text, or set a shorter"
            " model.context_length"
        )
        raise UsageError.at(path, message, expected=model.context_length + 1, found=len(file))
    return file


def count_token_bytes(vocabulary: Vocabulary) -> Int64[np.ndarray, " vocab"]:
    """Return the bytes of text per token id; special tokens have none."""
    lengths = np.zeros(vocabulary.size, dtype=np.int64)
    for token, id in vocabulary.ids_of_ordinary_tokens.items():
        lengths[id] = len(token)
    return lengths


def select_device(name: DeviceName) -> torch.device:
    """Return the torch device with this name; "auto" selects a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    is_there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not is_there[name]:
        message = f"device is {name!r}, but this machine has none; use 'cpu' or 'auto'"
        raise UsageError(message, key="device", found=name)
    return torch.device(name)


def choose_backend(config: TrainConfig, device: torch.device) -> str | None:
    """Return the backend of torch.compile, or None for no compilation."""
    if config.compile == "off" or (config.compile == "auto" and device.type != "cuda"):
        return None
    return "aot_eager" if device.type == "mps" else "inductor"


def dtype_of(precision: Precision) -> torch.dtype | None:
    """Return the type that a model computes in; None means that of its weights, fp32."""
    return torch.bfloat16 if precision == "bf16" else None


def build_model(config: TrainConfig, device: torch.device) -> TransformerLM:
    """Return the initial model on `device`: weights in fp32, computation in the precision of the config."""
    with torch.random.fork_rng(devices=[]):
        # Not the seed itself, which orders the data.
        torch.default_generator.manual_seed(mix_key(config.seed, 1))
        model = TransformerLM(config.model, dtype=torch.float32, compute_dtype=dtype_of(config.precision))
    initialise(model, mix_key(config.seed, 1))
    return model.to(device)


def seed_step(config: TrainConfig, step: int, *part: int) -> None:
    """Seed torch's random numbers for a step, or one of its parts: a resumed run draws the same ones."""
    torch.manual_seed(mix_key(config.seed, 2, step, *part))


def checkpoint_bytes(config: TrainConfig) -> int:
    """Return an upper bound of the size of a checkpoint: weights, optimizer state and 1 MiB for the rest."""
    weights = 4 * count_parameters(config.model).total
    return weights + state_bytes(config.model, config.optimizer) + 2**20


def check_checkpoint_space(run: Path, config: TrainConfig) -> None:
    """Raise if the disk has no space for the checkpoints of a run and a temporary one."""
    num_bytes = checkpoint_bytes(config) * (config.keep_last + 3)
    check_space(run, num_bytes, "the checkpoints of this run")

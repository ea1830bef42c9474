"""The data of a run, opened and checked before any compute is spent.

Token files must be whole, of one tokenizer, within the model's vocabulary and at least one window long. All
of it is checked here, so that nothing behind has to: an id beyond the embedding would otherwise be a wild
read on a GPU. What identifies the data goes into every checkpoint, and a resume on other data is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int64

from bytewright.corpus import END_OF_TEXT
from bytewright.data.sampler import DocumentSampler, Tokens, WindowSampler, find_documents
from bytewright.data.tokenfile import TokenFile
from bytewright.errors import FormatError, UsageError
from bytewright.generate.text import make_text_sampler
from bytewright.model import ModelConfig, TransformerLM
from bytewright.train.config import TrainConfig

if TYPE_CHECKING:
    from bytewright.tokenizer.vocabulary import Vocabulary  # at run time only where a run has one


@dataclass(frozen=True)
class Inputs:
    """Checked tokens to train and validate on, and the bytes of each token if the tokenizer is known."""

    train: Tokens
    validation: Tokens | None
    validation_starts: Int64[np.ndarray, " windows"] | None
    """Where windows to validate on may begin; None: side by side."""
    vocabulary: Vocabulary | None
    identity: Mapping[str, object]

    @property
    def token_bytes(self) -> Int64[np.ndarray, " vocab"] | None:
        """How many bytes of text each id stands for, if the tokenizer is known."""
        return None if self.vocabulary is None else count_token_bytes(self.vocabulary)


def open_inputs(config: TrainConfig) -> Inputs:
    """Open the files that `config.data` names and check them against each other and the model."""
    train = open_tokens(config.data.train, config.model)
    identity = {"train": train.manifest.sha256}
    validation = None
    if config.data.validation is not None:
        validation = open_tokens(config.data.validation, config.model)
        validation.require_tokenizer(train.manifest.tokenizer_fingerprint)
        identity["validation"] = validation.manifest.sha256
    vocabulary = None
    if config.data.tokenizer is not None:
        vocabulary = read_vocabulary_of(train, config.data.tokenizer)
    return Inputs(
        train=train.tokens,
        validation=None if validation is None else validation.tokens,
        validation_starts=None
        if validation is None
        else _find_validation_starts(config, validation, vocabulary),
        vocabulary=vocabulary,
        identity=identity,
    )


def _find_validation_starts(
    config: TrainConfig, validation: TokenFile, vocabulary: Vocabulary | None
) -> Int64[np.ndarray, " windows"] | None:
    """Find where windows to validate on may begin: as those of training, since losses depend on that."""
    if config.data.windows == "side by side":
        return None
    length = config.model.context_length
    starts = find_documents(validation.tokens, find_end_token(vocabulary), length)
    if not len(starts):
        raise UsageError(
            f"{validation.path}: no end token has a whole window of {length} tokens after it, which"
            ' data.windows = "documents" needs'
        )
    return starts


def make_sampler(config: TrainConfig, inputs: Inputs) -> WindowSampler | DocumentSampler:
    """Make what decides which windows a step sees."""
    length = config.model.context_length
    if config.data.windows == "side by side":
        return WindowSampler(
            num_tokens=len(inputs.train),
            context_length=length,
            batch_size=config.batch_size,
            seed=config.seed,
        )
    first_tokens = find_documents(inputs.train, find_end_token(inputs.vocabulary), length)
    return DocumentSampler(first_tokens=first_tokens, batch_size=config.batch_size, seed=config.seed)


def find_end_token(vocabulary: Vocabulary | None) -> int:
    """Return the id of the end token; raise if there is no tokenizer, or none with that token."""
    end = None if vocabulary is None else vocabulary.special_tokens.get(END_OF_TEXT)
    if end is None:
        raise UsageError(
            f'data.windows is "documents", but no tokenizer with the token {END_OF_TEXT} is given in'
            " data.tokenizer, so document boundaries cannot be located"
        )
    return end


def text_sampler_of(config: TrainConfig, inputs: Inputs) -> Callable[[TransformerLM, int], str] | None:
    """Return the function that writes samples of text, or None if the config asks for none."""
    if not config.sample_every:
        return None
    if inputs.vocabulary is None:
        raise UsageError(
            f"sample_every is {config.sample_every}, but samples of text need a tokenizer;"
            " set data.tokenizer, or sample_every = 0"
        )
    return make_text_sampler(config.model, inputs.vocabulary, config.sample_prompt)


def open_tokens(path: Path, model: ModelConfig) -> TokenFile:
    """Open a token file whose every id the model has a row for, and that holds at least one window."""
    file = TokenFile.open(path, verify=True)
    if file.manifest.vocabulary_size > model.vocab_size:
        raise FormatError(
            f"{path}: was encoded with a vocabulary of {file.manifest.vocabulary_size} tokens "
            f"(tokenizer {file.manifest.tokenizer_fingerprint[:12]}…), but the model has {model.vocab_size}"
        )
    if len(file) < model.context_length + 1:
        raise UsageError(
            f"{path}: has {len(file)} tokens, but a context of {model.context_length} needs at least "
            f"{model.context_length + 1}: one window and the token after it"
        )
    return file


def read_vocabulary_of(tokens: TokenFile, path: Path) -> Vocabulary:
    """Read the tokenizer at `path`, and refuse it if it did not make `tokens`."""
    from bytewright.tokenizer.formats import read_vocabulary  # a run of bare ids does not need it

    vocabulary = read_vocabulary(path)
    tokens.require_tokenizer(vocabulary.fingerprint)
    if vocabulary.size != tokens.manifest.vocabulary_size:  # tables of that size are made
        raise FormatError(
            f"{tokens.path}: its manifest says a vocabulary of {tokens.manifest.vocabulary_size},"
            f" but that of {path} is {vocabulary.size}"
        )
    return vocabulary


def count_token_bytes(vocabulary: Vocabulary) -> Int64[np.ndarray, " vocab"]:
    """Count the bytes of text that each id stands for; special tokens stand for none."""
    lengths = np.zeros(vocabulary.size, dtype=np.int64)
    for token, id in vocabulary.ids_of_ordinary_tokens.items():
        lengths[id] = len(token)
    return lengths

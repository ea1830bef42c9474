"""The data of a run, opened and checked before any compute is spent.

Token files must be whole, of one tokenizer, within the model's vocabulary and at least one window long. All
of it is checked here, so that nothing behind has to: an id beyond the embedding would otherwise be a wild
read on a GPU. What identifies the data goes into every checkpoint, and a resume on other data is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from bytewright.data.batches import Tokens
from bytewright.data.tokenfile import TokenFile
from bytewright.errors import FormatError, UsageError
from bytewright.train.config import TrainConfig

CHUNK = 2**24
"""Tokens looked at in one piece while checking."""


@dataclass(frozen=True)
class Inputs:
    """Checked tokens to train and validate on, and the bytes of each token if the tokenizer is known."""

    train: Tokens
    validation: Tokens | None
    token_bytes: Int64[np.ndarray, " vocab"] | None
    identity: Mapping[str, object]


def open_inputs(config: TrainConfig) -> Inputs:
    """Open the files that `config.data` names and check them against each other and the model."""
    train = open_tokens(config.data.train, config)
    identity = {"train": train.sha256}
    validation = None
    if config.data.validation is not None:
        validation = open_tokens(config.data.validation, config)
        identity["validation"] = validation.sha256
        if validation.fingerprint != train.fingerprint:
            raise FormatError(
                f"{config.data.validation}: was encoded with tokenizer {validation.fingerprint[:12]}…, "
                f"{config.data.train} with {train.fingerprint[:12]}…"
            )
    token_bytes = None
    if config.data.tokenizer is not None:
        token_bytes = read_token_bytes(config.data.tokenizer, train, config.data.train)
    return Inputs(train.ids, None if validation is None else validation.ids, token_bytes, identity)


def open_tokens(path: Path, config: TrainConfig) -> TokenFile:
    """Open a token file whose every id the model has a row for, and that holds at least one window."""
    file = TokenFile.open(path)
    vocab_size, context_length = config.model.vocab_size, config.model.context_length
    if file.vocab_size > vocab_size:
        raise FormatError(
            f"{path}: was encoded with a vocabulary of {file.vocab_size} tokens "
            f"(tokenizer {file.fingerprint[:12]}…), but the model has {vocab_size}"
        )
    if len(file.ids) < context_length + 1:
        raise UsageError(
            f"{path}: has {len(file.ids)} tokens, but a context of {context_length} needs at least "
            f"{context_length + 1}: one window and the token after it"
        )
    check_ids(file.ids, vocab_size, path)
    return file


def check_ids(tokens: Tokens, vocab_size: int, path: Path) -> None:
    """Refuse an id outside the vocabulary, by its position."""
    for first in range(0, len(tokens), CHUNK):
        chunk = tokens[first : first + CHUNK]
        if chunk.max() >= vocab_size:
            position = int((chunk >= vocab_size).argmax())
            raise FormatError(
                f"{path}: token id {chunk[position]} at position {first + position} "
                f"is outside the vocabulary ({vocab_size})"
            )


def read_token_bytes(folder: Path, tokens: TokenFile, path: Path) -> Int64[np.ndarray, " vocab"]:
    """Read how many bytes of text each id stands for; special tokens stand for none."""
    from bytewright.tokenizer.files import read_vocabulary

    vocabulary = read_vocabulary(folder)
    if vocabulary.fingerprint != tokens.fingerprint:
        raise FormatError(
            f"{path}: was encoded with tokenizer {tokens.fingerprint[:12]}…, "
            f"but {folder} holds tokenizer {vocabulary.fingerprint[:12]}…"
        )
    lengths = np.zeros(vocabulary.size, dtype=np.int64)
    for token, id in vocabulary.ids_of_ordinary_tokens.items():
        lengths[id] = len(token)
    return lengths

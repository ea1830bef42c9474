"""Every BPE trainer in the benchmark behind one call: corpus file in, learned tokens out.

Each adapter uses the library's own fastest documented way to train on a file of documents separated by
`<|endoftext|>` with the GPT-2 pattern. Reading the file is part of what is timed, for everybody. Peers are
imported by name inside their adapter, so that a worker process loads one library only and a machine without a
peer can still run the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from vocabularies import GPT2_PATTERN, printable_bytes

from bytewright.corpus import END_OF_TEXT

Tokens = list[bytes]
"""What was learned, in order of creation: the bytes each merge makes, without single bytes and specials."""


@dataclass(frozen=True)
class TrainingJob:
    """What to train on, and how far."""

    corpus: Path
    vocab_size: int
    num_threads: int


@dataclass(frozen=True)
class Trainer:
    """One library: `train` is timed, `tokens` turns what it returned into comparable form and is not."""

    package: str
    module: str
    train: Callable[[TrainingJob], Any]
    tokens: Callable[[Any, TrainingJob], Tokens]


def documents(path: Path, block_size: int = 1 << 22) -> Iterator[str]:
    """Read a file's documents one after the other, for the libraries that take an iterator of strings."""
    separator = END_OF_TEXT.encode()
    rest = b""
    with path.open("rb") as file:
        while block := file.read(block_size):
            *complete, rest = (rest + block).split(separator)
            for document in complete:
                yield document.decode()
    if rest:
        yield rest.decode()


def _train_bytewright(job: TrainingJob) -> Any:
    train_bpe = import_module("bytewright.tokenizer.train").train_bpe
    return train_bpe(job.corpus, job.vocab_size, [END_OF_TEXT], num_threads=job.num_threads)


def _tokens_of_merges(trained: Any, job: TrainingJob) -> Tokens:
    _, merges = trained
    return [left + right for left, right in merges]


def _train_gigatoken(job: TrainingJob) -> Any:
    gigatoken = import_module("gigatoken")
    # Given a plain path instead, it is as fast but keeps more in memory; its three tie rules cost the same.
    source = gigatoken.TextFileSource([str(job.corpus)], separator=END_OF_TEXT)
    return gigatoken.train_bpe(source, job.vocab_size, [END_OF_TEXT])


def _train_rustbpe(job: TrainingJob) -> Any:
    tokenizer = import_module("rustbpe").Tokenizer()
    # It knows no special tokens: one fewer in the vocabulary gives everybody the same number of merges.
    tokenizer.train_from_iterator(documents(job.corpus), vocab_size=job.vocab_size - 1, pattern=GPT2_PATTERN)
    return tokenizer


def _tokens_of_rustbpe(tokenizer: Any, job: TrainingJob) -> Tokens:
    ranked = sorted(tokenizer.get_mergeable_ranks(), key=lambda pair: pair[1])
    return [bytes(token) for token, rank in ranked if rank >= 256]


def _train_fast_bpe_rs(job: TrainingJob) -> Any:
    tokenizer = import_module("fast_bpe_rs").BPE(GPT2_PATTERN, {END_OF_TEXT: job.vocab_size - 1})
    tokenizer.train(job.vocab_size, list(documents(job.corpus)))
    return tokenizer


def _tokens_of_fast_bpe_rs(tokenizer: Any, job: TrainingJob) -> Tokens:
    return [bytes(tokenizer.decode([id])) for id in range(256, job.vocab_size - 1)]


def _train_huggingface(job: TrainingJob) -> Any:
    tokenizers = import_module("tokenizers")
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = byte_level(add_prefix_space=False, use_regex=True)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=job.vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=byte_level.alphabet(),
        show_progress=False,
    )
    # Its own file reader cuts at line ends, so that no word holds two of them; an iterator keeps texts whole.
    tokenizer.train_from_iterator(documents(job.corpus), trainer)
    return tokenizer


def _tokens_of_huggingface(tokenizer: Any, job: TrainingJob) -> Tokens:
    byte_of = {character: byte for byte, character in enumerate(printable_bytes())}
    vocab: dict[str, int] = tokenizer.get_vocab()
    learned = sorted((id, token) for token, id in vocab.items() if len(token) > 1 and token != END_OF_TEXT)
    return [bytes(byte_of[character] for character in token) for _, token in learned]


OURS = "bytewright"
TRAINERS: Mapping[str, Trainer] = {
    OURS: Trainer("bytewright", "bytewright.tokenizer.train", _train_bytewright, _tokens_of_merges),
    "gigatoken": Trainer("gigatoken", "gigatoken", _train_gigatoken, _tokens_of_merges),
    "rustbpe": Trainer("rustbpe", "rustbpe", _train_rustbpe, _tokens_of_rustbpe),
    "fast-bpe-rs": Trainer("fast-bpe-rs", "fast_bpe_rs", _train_fast_bpe_rs, _tokens_of_fast_bpe_rs),
    "hf-tokenizers": Trainer("tokenizers", "tokenizers", _train_huggingface, _tokens_of_huggingface),
}

"""One adapter per tokenizer library: how it trains on a file, and how it encodes each kind of input.

Every adapter uses the library's fastest documented call. Libraries are imported by name inside their adapter:
a worker process loads only the library that it measures, and a missing library excludes only itself.

Training reads a file of documents separated by `<|endoftext|>` and uses the GPT-2 pattern. The time includes
reading the file. For encoding, building the tokenizer and converting the input to the type that the library
prefers (str or bytes) are not timed. A library with two fast calls has two adapters.
"""

# ruff: noqa: D102 - the docstrings of the base class apply to the methods of the adapters

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from vocabularies import GPT2_PATTERN, printable_bytes, tiktoken_encoding, tokenizer_json, vocabulary_files

from bytewright.corpus import END_OF_TEXT

OURS = "bytewright"

Tokens = list[bytes]
"""The learned tokens in the order of their merges, without single bytes and special tokens."""


@dataclass(frozen=True)
class TrainingJob:
    """The corpus to train on and the size of the vocabulary."""

    corpus: Path
    vocab_size: int
    num_threads: int


@dataclass(frozen=True)
class Trainer:
    """Training with one library: `train` is timed; `tokens` converts its result for comparison."""

    package: str
    module: str
    train: Callable[[TrainingJob], Any]
    tokens: Callable[[Any, TrainingJob], Tokens]


def documents(path: Path, block_size: int = 1 << 22) -> Iterator[str]:
    """Yield the documents of a file, for libraries that train on an iterator of strings."""
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
    # A plain path is as fast but uses more memory. All three tie rules take the same time.
    source = gigatoken.TextFileSource([str(job.corpus)], separator=END_OF_TEXT)
    return gigatoken.train_bpe(source, job.vocab_size, [END_OF_TEXT])


def _train_rustbpe(job: TrainingJob) -> Any:
    tokenizer = import_module("rustbpe").Tokenizer()
    # rustbpe has no special tokens: a vocabulary smaller by one gives the same number of merges.
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
    # The library's file reader splits at line ends and so changes the words; an iterator keeps them.
    tokenizer.train_from_iterator(documents(job.corpus), trainer)
    return tokenizer


def _tokens_of_huggingface(tokenizer: Any, job: TrainingJob) -> Tokens:
    byte_of = {character: byte for byte, character in enumerate(printable_bytes())}
    vocab: dict[str, int] = tokenizer.get_vocab()
    learned = sorted((id, token) for token, id in vocab.items() if len(token) > 1 and token != END_OF_TEXT)
    return [bytes(byte_of[character] for character in token) for _, token in learned]


TRAINERS: Mapping[str, Trainer] = {
    OURS: Trainer("bytewright", "bytewright.tokenizer.train", _train_bytewright, _tokens_of_merges),
    "gigatoken": Trainer("gigatoken", "gigatoken", _train_gigatoken, _tokens_of_merges),
    "rustbpe": Trainer("rustbpe", "rustbpe", _train_rustbpe, _tokens_of_rustbpe),
    "fast-bpe-rs": Trainer("fast-bpe-rs", "fast_bpe_rs", _train_fast_bpe_rs, _tokens_of_fast_bpe_rs),
    "hf-tokenizers": Trainer("tokenizers", "tokenizers", _train_huggingface, _tokens_of_huggingface),
}


Ids = npt.NDArray[np.uint32]
Call = Callable[[], Any]


class Encoder(ABC):
    """The tokenizer of one library. All methods except `ids` prepare input and return the timed call."""

    @abstractmethod
    def document(self, text: bytes) -> Call:
        """Encode one text."""

    @abstractmethod
    def batch(self, texts: list[bytes]) -> Call:
        """Encode many texts."""

    @abstractmethod
    def file(self, path: Path) -> Call:
        """Encode the documents of a file, separated by `<|endoftext|>`, into memory."""

    def token_file(self, path: Path, out: Path) -> Call:
        """Encode a file into a `.npy` file of 16-bit ids."""
        encode = self.file(path)
        return lambda: np.save(out, self.ids(encode()).astype(np.uint16))

    @abstractmethod
    def tiny(self, text: str) -> Call:
        """Encode a sentence with the library's call for short texts."""

    @abstractmethod
    def ids(self, result: Any) -> Ids:
        """Convert the result of a timed call to one flat array."""


class Bytewright(Encoder):
    """Bytewright: `encode_array`, `encode_batch`, `encode_pieces` and `encode_file`."""

    def __init__(self, num_threads: int) -> None:
        tokenizer_class = import_module("bytewright.tokenizer").Tokenizer
        self._tokenizer = tokenizer_class.from_files(*vocabulary_files(), [END_OF_TEXT])
        self._num_threads = num_threads

    def document(self, text: bytes) -> Call:
        return lambda: self._tokenizer.encode_array(text, num_threads=self._num_threads)

    def batch(self, texts: list[bytes]) -> Call:
        return lambda: self._tokenizer.encode_batch(texts, num_threads=self._num_threads)

    def file(self, path: Path) -> Call:
        return lambda: list(self._tokenizer.encode_pieces(path, num_threads=self._num_threads))

    def token_file(self, path: Path, out: Path) -> Call:
        return lambda: self._tokenizer.encode_file(path, out, num_threads=self._num_threads)

    def tiny(self, text: str) -> Call:
        return lambda: self._tokenizer.encode(text)

    def ids(self, result: Any) -> Ids:
        is_batch = isinstance(result, list) and bool(result) and isinstance(result[0], np.ndarray)
        return np.concatenate(result) if is_batch else np.asarray(result)


class Gigatoken(Encoder):
    """gigatoken: `encode` of a str, `encode_batch` of a list of str, `encode_files`."""

    def __init__(self, num_threads: int) -> None:
        self._module = import_module("gigatoken")
        import_module("awkward")  # otherwise the first batch would import it during the timed call
        self._tokenizer = self._module.Tokenizer(str(tokenizer_json()))

    def document(self, text: bytes) -> Call:
        string = text.decode()
        return lambda: self._tokenizer.encode(string)

    def batch(self, texts: list[bytes]) -> Call:
        strings = [text.decode() for text in texts]
        return lambda: self._tokenizer.encode_batch(strings)

    def file(self, path: Path) -> Call:
        source = self._module.TextFileSource([str(path)], separator=END_OF_TEXT)
        return lambda: self._tokenizer.encode_files(source)

    def tiny(self, text: str) -> Call:
        return lambda: self._tokenizer.encode(text)

    def ids(self, result: Any) -> Ids:
        if isinstance(result, np.ndarray):
            return result
        return np.asarray(import_module("awkward").flatten(result))


class GigatokenBuffers(Gigatoken):
    """gigatoken: `encode_batch` of a `BytesSource`, which borrows buffers and splits them in its threads."""

    def document(self, text: bytes) -> Call:
        source = self._module.BytesSource(text)
        return lambda: self._tokenizer.encode_batch(source)

    def batch(self, texts: list[bytes]) -> Call:
        source = self._module.BytesSource(texts)
        return lambda: self._tokenizer.encode_batch(source)

    def file(self, path: Path) -> Call:
        return lambda: self._tokenizer.encode_batch(
            self._module.BytesSource(path.read_bytes(), separator=END_OF_TEXT)
        )

    def tiny(self, text: str) -> Call:
        raw = text.encode()
        return lambda: self._tokenizer.encode(raw)


class Fastokens(Encoder):
    """fastokens: `encode_batch_flat` for every kind of input."""

    def __init__(self, num_threads: int) -> None:
        self._tokenizer = import_module("fastokens").Tokenizer.from_file(str(tokenizer_json()))

    def document(self, text: bytes) -> Call:
        return self.batch([text])

    def batch(self, texts: list[bytes]) -> Call:
        strings = [text.decode() for text in texts]
        return lambda: self._tokenizer.encode_batch_flat(strings)

    def file(self, path: Path) -> Call:
        return lambda: self._tokenizer.encode_batch_flat(path.read_bytes().decode().split(END_OF_TEXT))

    def tiny(self, text: str) -> Call:
        return lambda: self._tokenizer.encode(text).ids

    def ids(self, result: Any) -> Ids:
        return (
            np.frombuffer(result[0], np.uint32) if isinstance(result, tuple) else np.array(result, np.uint32)
        )


class Tiktoken(Encoder):
    """tiktoken: `encode_to_numpy` of one text, `encode_ordinary_batch` on its thread pool."""

    def __init__(self, num_threads: int) -> None:
        self._tokenizer = tiktoken_encoding()
        self._num_threads = num_threads

    def document(self, text: bytes) -> Call:
        string = text.decode()
        return lambda: self._tokenizer.encode_to_numpy(string, disallowed_special=())

    def batch(self, texts: list[bytes]) -> Call:
        strings = [text.decode() for text in texts]
        return lambda: self._tokenizer.encode_ordinary_batch(strings, num_threads=self._num_threads)

    def file(self, path: Path) -> Call:
        return lambda: self.batch(path.read_bytes().split(END_OF_TEXT.encode()))()

    def tiny(self, text: str) -> Call:
        return lambda: self._tokenizer.encode_ordinary(text)

    def ids(self, result: Any) -> Ids:
        if isinstance(result, list) and result and isinstance(result[0], list):
            return np.concatenate([np.array(row, np.uint32) for row in result])
        return np.asarray(result, np.uint32)


class HuggingFace(Encoder):
    """Hugging Face tokenizers: `encode_batch_fast`, which skips offsets."""

    def __init__(self, num_threads: int) -> None:
        self._tokenizer = import_module("tokenizers").Tokenizer.from_file(str(tokenizer_json()))

    def document(self, text: bytes) -> Call:
        return self.batch([text])

    def batch(self, texts: list[bytes]) -> Call:
        strings = [text.decode() for text in texts]
        return lambda: self._tokenizer.encode_batch_fast(strings, add_special_tokens=False)

    def file(self, path: Path) -> Call:
        return lambda: self.batch(path.read_bytes().split(END_OF_TEXT.encode()))()

    def tiny(self, text: str) -> Call:
        return lambda: self._tokenizer.encode(text, add_special_tokens=False).ids

    def ids(self, result: Any) -> Ids:
        if result and isinstance(result[0], int):
            return np.array(result, np.uint32)
        return np.concatenate([np.array(encoding.ids, np.uint32) for encoding in result])


@dataclass(frozen=True)
class EncoderAdapter:
    """How to find and build an encoder, and whether it takes part in the columns that read files."""

    package: str
    module: str
    build: Callable[[int], Encoder]
    reads_files: bool = True


ENCODERS: Mapping[str, EncoderAdapter] = {
    OURS: EncoderAdapter("bytewright", "bytewright.tokenizer", Bytewright),
    "gigatoken": EncoderAdapter("gigatoken", "gigatoken", Gigatoken),
    "gigatoken-buffers": EncoderAdapter("gigatoken", "gigatoken", GigatokenBuffers),
    "fastokens": EncoderAdapter("fastokens", "fastokens", Fastokens),
    "tiktoken": EncoderAdapter("tiktoken", "tiktoken", Tiktoken, reads_files=False),
    "hf-tokenizers": EncoderAdapter("tokenizers", "tokenizers", HuggingFace, reads_files=False),
}

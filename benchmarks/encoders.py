"""Every encoder in the benchmark behind one face: the same vocabulary, the same text in, ids out.

Each adapter uses the library's own fastest documented call for each kind of input. Building the encoder and
holding the input in the form that the library likes best (str or bytes) is preparation and not timed. What a
call returns is left as the library gives it; `ids` turns it into one flat array afterwards, for comparison.
Where a library has two fast ways that win in different places, both are contestants.
"""

# ruff: noqa: D102 - the base class says what each method does; an adapter only says how

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from trainers import OURS
from vocabularies import tiktoken_encoding, tokenizer_json, vocabulary_files

from bytewright.corpus import END_OF_TEXT

Ids = npt.NDArray[np.uint32]
Call = Callable[[], Any]


class Encoder(ABC):
    """One library's tokenizer, built and ready.

    Every method but `ids` prepares its input and returns the call to be timed.
    """

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
        """Encode a sentence, by the call that a user would use for one."""

    @abstractmethod
    def ids(self, result: Any) -> Ids:
        """Flatten what a call returned."""


class Bytewright(Encoder):
    """Ours."""

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
        import_module("awkward")  # it would otherwise be imported by the first batch, on the clock
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
    """gigatoken: `encode_batch` of a `BytesSource`, which borrows buffers and splits them on its threads."""

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
    """fastokens: `encode_batch_flat`, its bulk call, on every kind of input."""

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
class Contestant:
    """How to find and build an encoder, and whether it reads files or comes near those that do."""

    package: str
    module: str
    build: Callable[[int], Encoder]
    reads_files: bool = True


ENCODERS: Mapping[str, Contestant] = {
    OURS: Contestant("bytewright", "bytewright.tokenizer", Bytewright),
    "gigatoken": Contestant("gigatoken", "gigatoken", Gigatoken),
    "gigatoken-buffers": Contestant("gigatoken", "gigatoken", GigatokenBuffers),
    "fastokens": Contestant("fastokens", "fastokens", Fastokens),
    "tiktoken": Contestant("tiktoken", "tiktoken", Tiktoken, reads_files=False),
    "hf-tokenizers": Contestant("tokenizers", "tokenizers", HuggingFace, reads_files=False),
}

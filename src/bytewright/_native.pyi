"""The native core: the fused versions of `tokenizer.reference` and of the generator of `corpus.worldbook`."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]

__version__: str

class WordCounter:
    """Counts the words (pre-tokens) of texts and files."""

    def __init__(self, pattern: str, special_tokens: Sequence[str]) -> None: ...
    def add_files(
        self, paths: Sequence[str], num_threads: int, on_progress: Callable[[int], object] | None
    ) -> None: ...
    def add_text(self, text: str | bytes) -> None: ...
    def add_word(self, word: bytes, count: int) -> None: ...
    @property
    def pattern(self) -> str | None: ...
    def copy(self) -> WordCounter: ...
    def counts(self) -> dict[bytes, int]: ...
    def stats(self) -> tuple[int, int, int, float, float]: ...

def learn_merges(
    words: WordCounter,
    num_merges: int,
    min_count: int,
    initial: Sequence[tuple[int, int]],
    on_progress: Callable[[int], object] | None,
) -> list[tuple[int, int, int]]: ...

class Encoder:
    """Encodes and decodes with one vocabulary."""

    def __init__(
        self,
        tokens: Sequence[tuple[int, bytes]],
        merges: Sequence[tuple[bytes, bytes]],
        special_tokens: Sequence[tuple[str, int]],
        pattern: str,
    ) -> None: ...
    def encode(self, text: str | bytes) -> list[int]: ...
    def encode_selected(
        self, text: str | bytes, allowed: Sequence[str], disallowed: Sequence[str]
    ) -> list[int]: ...
    def encode_array(self, text: str | bytes, num_threads: int) -> Ids: ...
    def encode_batch(self, texts: Sequence[str | bytes], num_threads: int) -> list[Ids]: ...
    def decode(self, ids: Iterable[int] | npt.NDArray[Any]) -> bytes: ...

class StreamEncoder:
    """Encodes a text that is given in pieces."""

    def __init__(self, encoder: Encoder) -> None: ...
    def feed(self, text: str | bytes) -> list[int]: ...
    def finish(self) -> list[int]: ...

class FileEncoder:
    """Encodes a file in pieces."""

    def __init__(self, encoder: Encoder, path: str) -> None: ...
    @property
    def num_bytes(self) -> int: ...
    def next_cut(self, start: int, num_bytes: int) -> int: ...
    def encode(self, start: int, end: int) -> Ids: ...

def pretokenize(text: str | bytes, pattern: str) -> list[bytes]: ...
def read_amx() -> tuple[int, int, int, int] | None: ...

class WorldbookWriter:
    """Writes documents of the world book."""

    def __init__(
        self,
        *,
        texts: Sequence[str],
        lexicons: Sequence[tuple[Sequence[str], Sequence[str], Sequence[str], Sequence[int]]],
        rules: Sequence[Sequence[tuple[int, Sequence[tuple[int, int, int, int, int]]]]],
        genres: Sequence[tuple[int, int]],
        facts: Sequence[int],
        turns: Sequence[tuple[int, int]],
        things_and_names: tuple[int, int],
        num_variables: int,
        recency: Sequence[int],
        limits: tuple[int, int, int, int, int],
        seed: int,
        buckets: Sequence[tuple[int, int, int]],
        syllables: Sequence[Sequence[str]],
    ) -> None: ...
    def write(
        self, split: int, seed: int, first: int, count: int, separator: bytes
    ) -> tuple[bytes, list[tuple[int, float]]]: ...

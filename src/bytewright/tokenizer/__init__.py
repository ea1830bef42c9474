"""Byte-level BPE tokenizers: training, encoding, decoding, inspection and file formats.

Read `reference` first: it defines the results. `Tokenizer` and `train_bpe` compute the same results fast, in
Rust. The names that need the native extension are imported on first use, so a machine without it can still
read and write vocabularies (`formats`). The package depends on `storage`, `corpus` and `data`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from bytewright.tokenizer.vocabulary import PATTERNS, Vocabulary

if TYPE_CHECKING:
    from bytewright.tokenizer.tokenizer import StreamDecoder, Tokenizer
    from bytewright.tokenizer.train import (
        Phase,
        TrainingProgress,
        TrainingResult,
        count_texts,
        count_words,
        extend_tokenizer,
        train_bpe,
        train_tokenizer,
    )

__all__ = [
    "PATTERNS",
    "Phase",
    "StreamDecoder",
    "Tokenizer",
    "TrainingProgress",
    "TrainingResult",
    "Vocabulary",
    "count_texts",
    "count_words",
    "extend_tokenizer",
    "train_bpe",
    "train_tokenizer",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "tokenizer" if name in ("StreamDecoder", "Tokenizer") else "train"
    value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Byte-level BPE tokenizers: train them, encode and decode with them, look into them.

`reference` defines what they do and is the place to read; `Tokenizer` and `train_bpe` do it fast. What needs
the native extension is imported when it is asked for: a machine without the extension (a GPU box that only
has ids) still reads and writes vocabularies (`files`).
"""

from importlib import import_module
from typing import TYPE_CHECKING

from bytewright.tokenizer.vocabulary import PATTERNS, Vocabulary

if TYPE_CHECKING:
    from bytewright.tokenizer.estimate import Estimate, estimate_training
    from bytewright.tokenizer.tokenizer import StreamDecoder, Tokenizer
    from bytewright.tokenizer.train import (
        Phase,
        Progress,
        Training,
        count_texts,
        count_words,
        extend_tokenizer,
        train_bpe,
        train_tokenizer,
    )

__all__ = [
    "PATTERNS",
    "Estimate",
    "Phase",
    "Progress",
    "StreamDecoder",
    "Tokenizer",
    "Training",
    "Vocabulary",
    "count_texts",
    "count_words",
    "estimate_training",
    "extend_tokenizer",
    "train_bpe",
    "train_tokenizer",
]

_NATIVE = {"Estimate": "estimate", "estimate_training": "estimate"}
_NATIVE |= {"StreamDecoder": "tokenizer", "Tokenizer": "tokenizer"}
"""Where the names live that need the extension; all others of `__all__` are in `train`."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_NATIVE.get(name, 'train')}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

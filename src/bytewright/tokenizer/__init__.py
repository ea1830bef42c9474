"""Byte-level BPE tokenizers: training, encoding, decoding, inspection and file formats.

Read `reference` first: it defines the results. `Tokenizer` and `train_bpe` compute the same results fast, in
Rust. The names that need the native extension are imported on first use, so a machine without it can still
read and write vocabularies (`formats`). The package depends on `storage`, `corpus` and `data`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bytewright.tokenizer.tokenizer import StreamDecoder, Tokenizer
    from bytewright.tokenizer.train import (
        Phase,
        TrainingResult,
        count_texts,
        count_words,
        extend_tokenizer,
        train_bpe,
        train_tokenizer,
    )
    from bytewright.tokenizer.vocabulary import PATTERNS, Vocabulary
else:
    from bytewright import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "PATTERNS",
    "Phase",
    "StreamDecoder",
    "Tokenizer",
    "TrainingResult",
    "Vocabulary",
    "count_texts",
    "count_words",
    "extend_tokenizer",
    "train_bpe",
    "train_tokenizer",
]

"""Byte-level BPE tokenizers: train them, encode and decode with them, look into them.

`reference` defines what they do and is the place to read; `Tokenizer` and `train_bpe` do it fast.
"""

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
from bytewright.tokenizer.vocabulary import PATTERNS, Vocabulary

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

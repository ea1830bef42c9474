"""Compute the figures of loss.md."""

from __future__ import annotations

from bytewright.account import find_preset

base = find_preset("base")
batch_size = 128
logit_bytes = batch_size * base.context_length * base.vocab_size * 4

FIGURES = [
    # The same loss without storing the logits
    f"At batch size {batch_size} the logits of the base experiment take {logit_bytes / 1e9:.2f} GB in",
]

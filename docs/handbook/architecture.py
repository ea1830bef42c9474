"""Compute the figures of architecture.md."""

from __future__ import annotations

from math import log

import torch

from bytewright.account import account, find_preset
from bytewright.model import TransformerLM
from bytewright.train import cross_entropy

base = find_preset("base")
counted = account(base).parameters


def parameter_rows():
    names = ["embeddings", "attention", "feed_forward", "norms_in_blocks", "final_norm", "head", "total"]
    formulas = ["V·d", "L·4·d²", "L·3·d·f", "L·2·d", "d", "V·d", ""]
    rows = zip(names, formulas, strict=True)
    return [
        ("part", "formula", "parameters"),
        *((name.replace("_", " "), formula, f"{getattr(counted, name):,}") for name, formula in rows),
    ]


def first_loss():
    torch.manual_seed(0)
    ids = torch.randint(base.vocab_size, (4, 65))
    with torch.no_grad():
        return cross_entropy(TransformerLM(base)(ids[:, :-1]), ids[:, 1:]).item()


FIGURES = [
    # The base experiment's model
    parameter_rows(),
    f"Here V = {base.vocab_size:,}, d = {base.d_model}, f = {base.ffn_width:,} and L = {base.num_layers}",
    f"{counted.without_embeddings:,} parameters",
    # Three properties to test
    f"ln V = {log(base.vocab_size):.2f}; this model starts at {first_loss():.2f}",
]
GIVEN = {
    '"17M" model': "published descriptions of the course's model",
    "as the positions 103 and 101": "the example below it",
}

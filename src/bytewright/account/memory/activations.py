"""The tensors that the forward pass keeps for the backward pass, as the parts of a model state them.

Autograd keeps the inputs of gradients, each storage once. With N = batch·tokens, d = d_model, f = d_ff,
H heads, c = the width of all key heads, A = N·T·H scores, and s bytes per number of the computation (4 in
fp32, 2 in bf16; norms and softmax always use 4):

    norm          (4 + 4 + s)·N·d     its input in float32, the input divided by its rms, the output
    attention     reference: q, k, v of every head and the merged result, 4·s·N·d, and
                  (4 + 4 + s)·A       scores, their exponentials, the weights
                  fused: the joined projection s·N·(d + 2c), q and k again if rotated or normalised,
                  the result s·N·d, a normaliser per row and head 4·N·H, and no scores
    ffn           gated, reference: gate, its sigmoid, SiLU, up, their product: 5·s·N·f
                  gated, fused: gate and up joined, SiLU, product: 4·s·N·f (3 with our kernel)
                  ungated: 3·s·N·f
    weights       in bf16 a copy of each matrix, and for joined matrices a joined copy: s each

A compiler keeps less, because the backward pass recomputes cheap operations. It keeps 2·s·N·d of a norm (the
residual stream and the output), 2·s·A of the reference scores, 3·s·N·f of a gated layer, and 2·s·N·f of an
ungated one.

The result is exact to a few per mille: rotary tables and one number per token and norm are left out. The
formulas are in the classes of the parts (`model.layers`, `model.attention`, `model.fused`); a part that
states none is traced (`tracing`). `memory` adds the rest of a training step.
"""

from __future__ import annotations

from bytewright.account.tracing import PartKind, costs_of
from bytewright.model.costs import Kept, StepShape


def kept_by_block(x: StepShape) -> list[Kept]:
    """Return the tensors that one block keeps."""
    kept = [*_kept_by("attention", x, "attention"), *_kept_by("ffn", x, "ffn")]
    if x.config.norm == "none":
        stream = x.s * x.N * x.d
        kept.append(Kept("residual stream before attention", stream, sublayer="attention"))
        kept.append(Kept("residual stream before ffn", stream, sublayer="ffn"))
    else:
        kept += [*_kept_by("norm", x, "ln1"), *_kept_by("norm", x, "ln2")]
    return kept


def kept_after_blocks(x: StepShape) -> list[Kept]:
    """Return the tensors that are kept once: of the final norm, the embeddings or the last hidden states."""
    if x.config.norm == "pre":
        return _kept_by("norm", x, "ln_final")
    name = "embeddings of the tokens" if x.config.norm == "post" else "hidden states"
    return [Kept(name, x.s * x.N * x.d, sublayer="head")]


def _kept_by(kind: PartKind, x: StepShape, sublayer: str) -> list[Kept]:
    prefix = f"{sublayer}: " if kind == "norm" else ""
    return [kept._replace(name=prefix + kept.name, sublayer=sublayer) for kept in costs_of(kind, x).kept]

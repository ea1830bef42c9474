# mypy: disable-error-code="no-untyped-call"
"""Check the kernels of training against float64 on a GPU, and time single kernels.

`training_kernels.py` starts this script.

Prints one JSON object per line: the relative error of a kernel on fresh random inputs, or its time and the
bytes per second that it reaches. A check that fails is printed as an error, and the others continue.
"""

from __future__ import annotations

import itertools
import json
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from bytewright.model.fused import rotate_halves
from bytewright.model.kernels import attention, cross_entropy, embedding, heads
from bytewright.model.layers import EPSILON, rms_norm

HALF = torch.bfloat16
LARGEST_ERROR = 1e-2
"""‖ours - exact‖ / ‖exact‖ of results in bfloat16."""

SECONDS = 35.0
"""No timing starts after this time."""

STARTED = time.monotonic()


def report(**row: Any) -> None:
    """Print one result."""
    print(json.dumps(row), flush=True)


def draw(*shape: int) -> Tensor:
    """Return fresh random numbers."""
    return torch.randn(*shape, device="cuda", dtype=HALF)


def error_of(ours: Tensor, exact: Tensor) -> float:
    """Return the relative error; NaN is an error too."""
    error: float = ((ours.double() - exact.double()).norm() / exact.double().norm()).item()
    return error


def compare(exact: Tensor, function: Callable[..., Tensor], *arguments: Any) -> dict[str, Any]:
    """Return the error of the result of a function."""
    return {"error": error_of(function(*arguments), exact)}


def attempt(name: str, function: Callable[..., dict[str, Any]], *arguments: Any) -> None:
    """Print the result of a check or a timing, or its error."""
    try:
        row = function(*arguments)
        if "error" in row:
            row["passed"] = row["error"] <= LARGEST_ERROR
            row["error"] = f"{row['error']:.1e}"
        report(name=name, **row)
    except Exception:
        report(name=name, failed=traceback.format_exc()[-400:])
    torch.cuda.empty_cache()


def milliseconds(function: Callable[[], Any]) -> float:
    """Return the median time of a function."""
    found: float = triton.testing.do_bench(function, warmup=8, rep=40, return_mode="median")
    return found


def attempt_timing(
    name: str, num_bytes: float, function: Callable[..., Any], *arguments: Any, **settings: Any
) -> None:
    """Print the time of a function and the bytes per second, while there is time."""
    if time.monotonic() - STARTED > SECONDS:
        return

    def run() -> dict[str, Any]:
        ms = milliseconds(lambda: function(*arguments, **settings))
        return {"ms": round(ms, 4), "TBps": round(num_bytes / ms / 1e9, 2)}

    attempt(name, run)


def angles(length: int, d_head: int) -> tuple[Tensor, Tensor]:
    """Return the tables of the rotary embedding."""
    exponents = torch.arange(d_head // 2, device="cuda") * 2 / d_head
    turned = torch.outer(torch.arange(length, device="cuda").float(), 10_000.0**-exponents)
    return turned.cos(), turned.sin()


def gradients(function: Callable[..., Any], inputs: list[Tensor], upstreams: list[Tensor]) -> list[Tensor]:
    """Return the outputs of a function and the gradients of its inputs."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    outputs = function(*inputs)
    upstreams = [upstream.to(out.dtype) for upstream, out in zip(upstreams, outputs, strict=True)]
    return [*outputs, *torch.autograd.grad(outputs, inputs, upstreams)]


def split_exactly(qkv: Tensor, gains: Tensor | None, length: int, d_head: int, counts: list[int]) -> Any:
    """Return q, k and v by tensor operations in float64."""
    cos, sin = angles(length, d_head)
    qk, v = qkv.unflatten(-1, (-1, d_head)).split([counts[0] + counts[1], counts[1]], dim=2)
    if gains is not None:
        qk = rms_norm(qk, gains, EPSILON)
    qk = rotate_halves(qk, cos.double(), sin.double())
    return [*qk.split(counts, dim=2), v]


def check_heads(length: int, num_heads: int, kv_heads: int, d_head: int, has_norm: bool) -> dict[str, Any]:
    """Compare norm and rotation, forward and backward."""
    counts, tables = [num_heads, kv_heads], angles(length, d_head)
    inputs = [draw(2, length, (num_heads + 2 * kv_heads) * d_head)]
    inputs += [1 + draw(num_heads + kv_heads, d_head).float() / 4] if has_norm else []
    ups = [draw(2, count, length, d_head).transpose(1, 2) for count in (num_heads, kv_heads, kv_heads)]

    def ours(qkv: Tensor, gains: Tensor | None = None) -> Any:
        return heads.SplitHeads.apply(qkv, gains, *tables, num_heads, d_head, EPSILON)

    def exact(qkv: Tensor, gains: Tensor | None = None) -> Any:
        return split_exactly(qkv, gains, length, d_head, counts)

    right = gradients(exact, [x.double() for x in inputs], ups)
    left = gradients(ours, inputs, ups)
    return {"error": max(error_of(a, b) for a, b in zip(left, right, strict=True))}


def check_attention(
    length: int, num_heads: int, kv_heads: int, d_head: int, has_norm: bool
) -> dict[str, Any]:
    """Compare our attention, forward and backward."""
    counts, tables = [num_heads, kv_heads], angles(length, d_head)
    inputs = [draw(2, length, (num_heads + 2 * kv_heads) * d_head)]
    inputs += [1 + draw(num_heads + kv_heads, d_head).float() / 4] if has_norm else []
    ups = [draw(2, length, num_heads * d_head)]

    def ours(qkv: Tensor, gains: Tensor | None = None) -> Any:
        return [attention.rotary_attention(qkv, *tables, num_heads, kv_heads, gains, EPSILON)[0]]

    def exact(qkv: Tensor, gains: Tensor | None = None) -> Any:
        q, k, v = split_exactly(qkv, gains, length, d_head, counts)
        k, v = (x.repeat_interleave(num_heads // kv_heads, dim=2) for x in (k, v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / d_head**0.5
        mask = torch.ones(length, length, device="cuda", dtype=torch.bool).tril()
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
        return [torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2)]

    right = gradients(exact, [x.double() for x in inputs], ups)
    left = gradients(ours, inputs, ups)
    again = gradients(ours, inputs, ups)
    same = all(torch.equal(a, b) for a, b in zip(left, again, strict=True))
    return {"error": max(error_of(a, b) for a, b in zip(left, right, strict=True)), "same_bits": same}


def check_loss(vocab_size: int, d_model: int) -> dict[str, Any]:
    """Compare head and loss with all switches."""
    hidden, weight = draw(1000, d_model), torch.randn(vocab_size, d_model, device="cuda") / d_model**0.5
    targets = torch.randint(vocab_size, (1000,), device="cuda")
    total, *ours = cross_entropy.total_cross_entropy(hidden, weight, targets, 512, True)
    again = cross_entropy.total_cross_entropy(hidden, weight, targets, 512, True)
    inputs = [x.double().requires_grad_() for x in (hidden, weight.to(HALF))]
    exact = F.cross_entropy(inputs[0] @ inputs[1].T, targets, reduction="sum")
    right = [exact.detach(), *torch.autograd.grad(exact, inputs)]
    same = all(torch.equal(a, b) for a, b in zip((total, *ours), again, strict=True))
    return {
        "error": max(error_of(a, b) for a, b in zip((total, *ours), right, strict=True)),
        "same_bits": same,
    }


def check_embedding(num_ids: int, vocab_size: int, width: int) -> dict[str, Any]:
    """Compare the gradient of the embeddings."""
    ids, upstream = skewed_ids(num_ids, vocab_size), draw(num_ids, width)
    exact = torch.zeros(vocab_size, width, device="cuda", dtype=torch.float64)
    exact.index_add_(0, ids, upstream.double())
    ours = [embedding.embed_backward(upstream, ids, vocab_size) for _ in range(2)]
    return {"error": error_of(ours[0], exact), "same_bits": torch.equal(*ours)}


def skewed_ids(num_ids: int, vocab_size: int) -> Tensor:
    """Return ids as the benchmark of training draws them."""
    return (torch.rand(num_ids, device="cuda") ** 3 * vocab_size).long()


def run_checks() -> None:
    """Check every kernel."""
    for has_norm in (False, True):
        for counts in ((12, 12, 64), (8, 2, 128), (9, 3, 32)):
            attempt(f"heads {counts} norm={has_norm}", check_heads, 1000, *counts, has_norm)
        for length, counts in itertools.product((256, 500), ((4, 4, 32), (4, 1, 32), (4, 2, 64))):
            name = f"attention {length} {counts} norm={has_norm}"
            attempt(name, check_attention, length, *counts, has_norm)
    attempt("loss 10000", check_loss, 10_000, 512)
    attempt("loss 50257", check_loss, 50_257, 768)
    attempt("embedding 50257", check_embedding, 32_768, 50_257, 768)
    attempt("embedding 10000", check_embedding, 65_536, 10_000, 512)


def time_head_and_loss() -> None:
    """Time the rows of logits, and the output head with its loss for several numbers of rows at a time."""
    for rows, vocab_size, d_model in ((32_768, 50_257, 768), (65_536, 10_000, 512)):
        width = -(-vocab_size // 16) * 16
        logits, targets = draw(8192, width), skewed_ids(rows, vocab_size)
        settings = {"with_gradient": True, "vocab_size": vocab_size}
        short = cross_entropy.SHORT_ROW
        for cross_entropy.SHORT_ROW in (0, 2**20):
            name = f"row {vocab_size} {'2048/8' if cross_entropy.SHORT_ROW else '8192/16'}"
            row_targets = targets[:8192]
            attempt_timing(
                name, 2 * logits.nbytes, cross_entropy.cross_entropy_, logits, row_targets, **settings
            )
        cross_entropy.SHORT_ROW = short
        hidden, weight = draw(rows, d_model), torch.randn(vocab_size, d_model, device="cuda") / d_model**0.5
        for chunk in (8192, 16_384, 32_768):
            name = f"head+loss {vocab_size} chunk={chunk}"
            attempt_timing(name, 0, cross_entropy.total_cross_entropy, hidden, weight, targets, chunk, True)


def time_heads() -> None:
    """Time norm and rotation at the two larger shapes."""
    for batch, length, num_heads, kv_heads, d_head in (
        (32, 1024, 12, 12, 64),
        (16, 2048, 8, 8, 128),
    ):
        qkv, tables = draw(batch, length, (num_heads + 2 * kv_heads) * d_head), angles(length, d_head)
        q, k, v = heads.SplitHeads.apply(qkv, None, *tables, num_heads, d_head, EPSILON)
        name = f"{length} {num_heads}/{kv_heads}x{d_head}"
        qk_bytes = q.nbytes + k.nbytes
        ones = torch.ones(num_heads + kv_heads, d_head, device="cuda")
        ups = [torch.randn_like(x) for x in (q, k, v)]
        sizes = num_heads + kv_heads, d_head
        before = heads.NORM_TOKENS, heads.NORM_HEADS
        for gains, blocks in ((None, ()), (ones, (8, 4)), (ones, (16, 4)), (ones, (4, 8))):
            if blocks:
                heads.NORM_TOKENS, heads.NORM_HEADS = blocks
            label = f"heads {name} {blocks or 'no norm'}"
            forward = qkv, gains, *tables, *sizes, EPSILON
            attempt_timing(f"{label} forward", 2 * qk_bytes, heads.rotate_heads, *forward)
            num_bytes = 2 * qkv.nbytes + (0 if gains is None else qk_bytes)
            arguments = *ups, qkv, gains, *tables, EPSILON
            attempt_timing(f"{label} backward", num_bytes, heads.rotate_heads_backward, *arguments)
        heads.NORM_TOKENS, heads.NORM_HEADS = before


def time_attention() -> None:
    """Time our attention at the base shape, with grouped heads and norms, for several blocks."""
    batch, length, num_heads, d_head = 256, 256, 16, 32
    tables = angles(length, d_head)
    before = attention.BLOCKS[d_head]
    for kv_heads, has_norm in ((16, False), (4, False), (16, True)):
        qkv = draw(batch, length, (num_heads + 2 * kv_heads) * d_head)
        gains = torch.ones(num_heads + kv_heads, d_head, device="cuda") if has_norm else None
        dout = draw(batch, length, num_heads * d_head)
        shape = f"attention base {num_heads}/{kv_heads} norm={has_norm}"
        forward = qkv, *tables, num_heads, kv_heads, gains, EPSILON
        for blocks in ((128, 64, 4), (64, 64, 4)):
            attention.BLOCKS[d_head] = (attention.Blocks(*blocks), before[1])
            attempt_timing(f"{shape} forward {blocks}", 0, attention.rotary_attention, *forward)
        attention.BLOCKS[d_head] = before
        out, lse = attention.rotary_attention(*forward)
        backward = dout, qkv, *tables, gains, out, lse, num_heads, kv_heads, EPSILON
        for blocks in ((64, 128, 4), (128, 128, 4)) if has_norm else ((64, 128, 4), (32, 128, 4)):
            attention.BLOCKS[d_head] = (before[0], attention.Blocks(*blocks))
            attempt_timing(f"{shape} backward {blocks}", 0, attention.rotary_attention_backward, *backward)
        attention.BLOCKS[d_head] = before


if __name__ == "__main__":
    torch.manual_seed(time.time_ns() % 2**31)
    for part in (run_checks, time_attention, time_heads, time_head_and_loss):
        try:
            part()
        except Exception:
            report(name=part.__name__, failed=traceback.format_exc()[-400:])

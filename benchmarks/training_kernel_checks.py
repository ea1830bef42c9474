# mypy: disable-error-code="no-untyped-call"
"""Check the kernels of training against float64 on a GPU, and time single kernels.

`training_kernels.py` starts this script.

Prints one JSON object per line: the relative error of a kernel on fresh random inputs, or its time and the
bytes per second that it reaches. A check that fails is printed as an error, and the others continue.
"""

from __future__ import annotations

import functools
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
from torch.nn.attention import SDPBackend, sdpa_kernel

from bytewright.model import kernels
from bytewright.model.fused import rotate_halves
from bytewright.model.kernels import attention, cross_entropy, embedding, heads
from bytewright.model.kernels.swiglu import silu_gate, silu_gate_backward
from bytewright.model.layers import EPSILON, rms_norm

HALF = torch.bfloat16
LARGEST_ERROR = 1e-2
"""‖ours - exact‖ / ‖exact‖ of results in bfloat16."""

SECONDS = 75.0
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
    ours = [embedding.sum_segments(upstream, ids, vocab_size) for _ in range(2)]
    return {"error": error_of(ours[0], exact), "same_bits": torch.equal(*ours)}


def skewed_ids(num_ids: int, vocab_size: int) -> Tensor:
    """Return ids as the benchmark of training draws them."""
    return (torch.rand(num_ids, device="cuda") ** 3 * vocab_size).long()


def run_checks() -> None:
    """Check every kernel."""
    kernels.ENABLED.update(("loss", "head", "embedding", "heads", "attention"))
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


def time_rows() -> None:
    """Time the kernel of a row of logits with several launches."""
    launch = cross_entropy.RowLaunch
    launches = [launch(*sizes) for sizes in ((2048, 8), (4096, 16), (8192, 16), (8192, 32))]
    launches += [one._replace(keeps_in_cache=True) for one in launches]
    for rows, width, whole in ((8192, 50_304, (65_536, 32)), (32_768, 10_000, (16_384, 8, 16, 32))):
        logits, targets = draw(rows, width), torch.randint(10_000, (rows,), device="cuda")
        for one in [*launches, *(launch(whole[0], warps, is_whole=True) for warps in whole[1:])]:
            name = f"row {rows}x{width} {'/'.join(map(str, one))}"
            settings = {"with_gradient": True, "launch": one}
            attempt_timing(name, 2 * logits.nbytes, cross_entropy.cross_entropy_, logits, targets, **settings)


def time_heads_of_models() -> None:
    """Time the output head with its loss for several numbers of rows at a time, with and without switches."""
    for rows, vocab_size, d_model in ((32_768, 50_257, 768), (65_536, 10_000, 512)):
        hidden, weight = draw(rows, d_model), torch.randn(vocab_size, d_model, device="cuda") / d_model**0.5
        targets = skewed_ids(rows, vocab_size)
        for switches, chunk in itertools.product(((), ("loss",), ("loss", "head")), (8192, 16_384, 32_768)):
            if rows == 65_536 and chunk == 8192:
                continue
            kernels.ENABLED.clear()
            kernels.ENABLED.update(switches)
            name = f"head+loss {vocab_size} chunk={chunk} {'+'.join(switches) or 'old'}"
            attempt_timing(name, 0, cross_entropy.total_cross_entropy, hidden, weight, targets, chunk, True)


def time_embeddings() -> None:
    """Time the gradient of the embeddings."""
    for num_ids, vocab_size, width in ((32_768, 50_257, 768), (65_536, 10_000, 512)):
        ids, upstream = skewed_ids(num_ids, vocab_size), draw(num_ids, width).float()
        num_bytes = upstream.nbytes + 4 * vocab_size * width
        kernels.ENABLED.clear()
        arguments = upstream, ids, vocab_size
        attempt_timing(f"embedding {vocab_size} old", num_bytes, embedding.embed_backward, *arguments)
        for rows in (16, 32, 64):
            name = f"embedding {vocab_size} segments of {rows}"
            attempt_timing(name, num_bytes, embedding.sum_segments, *arguments, rows=rows)


def attend(inputs: list[Tensor], backend: SDPBackend) -> Tensor:
    """Return the attention of one of torch's kernels."""
    q, k, v = inputs
    is_grouped = q.shape[1] != k.shape[1]
    with sdpa_kernel([backend]):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=is_grouped)


def attend_both_ways(inputs: list[Tensor], backend: SDPBackend) -> Any:
    """Compute the attention and its gradients."""
    out = attend(inputs, backend)
    return torch.autograd.grad(out, inputs, out)


def time_heads() -> None:
    """Time norm and rotation, and torch's attention, at the two larger shapes."""
    for batch, length, num_heads, kv_heads, d_head in (
        (32, 1024, 12, 12, 64), (32, 1024, 12, 4, 64), (16, 2048, 8, 8, 128), (16, 2048, 8, 2, 128),
    ):  # fmt: skip
        qkv, tables = draw(batch, length, (num_heads + 2 * kv_heads) * d_head), angles(length, d_head)
        q, k, v = heads.SplitHeads.apply(qkv, None, *tables, num_heads, d_head, EPSILON)
        name = f"{length} {num_heads}/{kv_heads}x{d_head}"
        qk_bytes = q.nbytes + k.nbytes
        inputs = [x.transpose(1, 2).detach().requires_grad_() for x in (q, k, v)]
        for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
            attempt_timing(f"sdpa {name} {backend.name[:5]} forward", 0, attend, inputs, backend)
            attempt_timing(f"sdpa {name} {backend.name[:5]} both", 0, attend_both_ways, inputs, backend)
        if kv_heads != num_heads:
            continue
        ones = torch.ones(num_heads + kv_heads, d_head, device="cuda")
        ups = [torch.randn_like(x) for x in (q, k, v)]
        for (tokens, block), gains in itertools.product(((8, 8), (4, 8), (16, 8), (4, 4)), (None, ones)):
            heads.TOKENS, heads.HEADS = tokens, block
            label = f"heads {name} {tokens}x{block} norm={gains is not None}"
            sizes = num_heads + kv_heads, d_head
            attempt_timing(
                f"{label} forward", 2 * qk_bytes, heads.rotate_heads, qkv, gains, *tables, *sizes, EPSILON
            )
            num_bytes = 2 * qkv.nbytes + (0 if gains is None else qk_bytes)
            arguments = *ups, qkv, gains, *tables, EPSILON
            attempt_timing(f"{label} backward", num_bytes, heads.rotate_heads_backward, *arguments)
        heads.TOKENS, heads.HEADS = 8, 8


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
        for blocks in ((64, 128, 4), (32, 128, 4), (64, 128, 8), (64, 64, 4)):
            attention.BLOCKS[d_head] = (before[0], attention.Blocks(*blocks))
            attempt_timing(f"{shape} backward {blocks}", 0, attention.rotary_attention_backward, *backward)
        attention.BLOCKS[d_head] = before


def gate_separately(x: Tensor, weights: Tensor) -> Any:
    """Compute the product of gate and up, then the gate."""
    return silu_gate(x @ weights.T)


def differentiate_gate_separately(dout: Tensor, w2: Tensor, joined: Tensor) -> Any:
    """Compute the product with w2, then the gradient of the gate."""
    return silu_gate_backward(dout @ w2, joined)


def time_gate_products() -> None:
    """Compare products that compute the gate with a product and a pass of their own."""
    from gate_products import BACKWARD_TILES, FORWARD_TILES, gate_backward, gate_forward

    for rows, d_model, d_ff in ((32_768, 768, 2048), (32_768, 1024, 2752)):
        x, weights, w2 = draw(rows, d_model), draw(2 * d_ff, d_model) / 30, draw(d_model, d_ff) / 30
        dout, joined = draw(rows, d_model), x @ weights.T
        name = f"gate {d_model}"
        attempt_timing(f"{name} forward product", 0, torch.mm, x, weights.T)
        attempt_timing(f"{name} forward separate", 0, gate_separately, x, weights)
        exact = silu_gate(joined)
        for tile in FORWARD_TILES:
            label = f"{name} forward {'/'.join(map(str, tile))}"
            attempt(label, compare, exact, lambda *a: gate_forward(*a)[1], x, weights, tile)
            attempt_timing(label, 0, gate_forward, x, weights, tile)
        attempt_timing(f"{name} backward product", 0, torch.mm, dout, w2)
        attempt_timing(f"{name} backward separate", 0, differentiate_gate_separately, dout, w2, joined)
        exact = silu_gate_backward(dout @ w2, joined)
        for tile in BACKWARD_TILES:
            label = f"{name} backward {'/'.join(map(str, tile))}"
            attempt(label, compare, exact, gate_backward, dout, w2, joined, tile)
            attempt_timing(label, 0, gate_backward, dout, w2, joined, tile)


def time_products() -> None:
    """Print the TFLOP/s of each product of a layer: forward, and both gradients."""
    for rows, d_model, d_ff in ((32_768, 768, 2048), (32_768, 1024, 2752)):
        for name, k, n in (
            ("qkv", d_model, 3 * d_model),
            ("out", d_model, d_model),
            ("up", d_model, 2 * d_ff),
            ("down", d_ff, d_model),
        ):
            x, w, dy = draw(rows, k), draw(n, k), draw(rows, n)
            if time.monotonic() - STARTED > SECONDS:
                return
            found = {}
            for kind, pair in {"forward": (x, w.T), "dx": (dy, w), "dw": (dy.T, x)}.items():
                ms = milliseconds(functools.partial(torch.mm, *pair))
                found[kind] = f"{ms:.3f} ms {2 * rows * k * n / ms / 1e9:.0f}"
            report(name=f"product {d_model} {name}", **found)


if __name__ == "__main__":
    torch.manual_seed(time.time_ns() % 2**31)
    parts = [run_checks, time_embeddings, time_heads, time_rows, time_attention]
    for part in [*parts, time_gate_products, time_heads_of_models, time_products]:
        try:
            part()
        except Exception:
            report(name=part.__name__, failed=traceback.format_exc()[-400:])

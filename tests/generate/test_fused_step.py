"""A decoding step in few kernels equals the decoder's: on a GPU, or in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from bytewright.generate import SamplingConfig
from bytewright.generate.decoder import Decoder
from bytewright.generate.prompt_chunks import PromptChunk, RowDraws
from bytewright.generate.slots import SlotBatch
from bytewright.model import TransformerLM
from bytewright.model.layers import EPSILON, rms_norm
from model_choices import small_config

pytest.importorskip("triton")
from bytewright.generate.fused_step import FusedStep, StepOptions, TokenChoice, supports_fused_step
from bytewright.model.kernels import decoding_products
from bytewright.model.kernels.decoding_products import LargestLogits, Tiles

ON_GPU = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if ON_GPU else ("cpu", torch.float16)
"""The interpreter cannot multiply matrices in bfloat16."""
ROW, ROWS = Tiles(outputs=16, inputs=64), Tiles(outputs=16, inputs=32, rows=16, chains=2)
ONE_ROW = StepOptions(qkv=ROW, output=ROW, up=ROW, down=ROW, head=ROW, split=16)
SOME_ROWS = StepOptions(qkv=ROWS, output=ROWS, up=ROWS, down=ROWS, head=ROWS, split=16)
LIBRARY = StepOptions(split=16)
"""Small tiles, so that small models have several."""


SMALLER = {"num_layers": 1, "num_heads": 2}


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@pytest.mark.parametrize(
    ("tiles", "d_in"),
    [
        (ROW, 100),
        (ROWS, 100),
        pytest.param(ROW, 64, marks=pytest.mark.slow),
        pytest.param(ROWS, 64, marks=pytest.mark.slow),
        pytest.param(Tiles(outputs=8, inputs=128), 100, marks=pytest.mark.slow),
        pytest.param(Tiles(outputs=16, inputs=32, rows=16), 100, marks=pytest.mark.slow),
    ],
    ids=["row", "rows", "even-row", "even-rows", "whole-row", "one-chain"],
)
def test_a_product_includes_the_work_around_it(tiles: Tiles, d_in: int) -> None:
    num_rows = 1 if tiles.rows == 1 else 19
    table, weight, gains = draw(30, d_in), draw(2 * 37, d_in, seed=1), draw(d_in, seed=2) + 2
    ids = torch.arange(num_rows, device=DEVICE) * 7 % 30 - 1  # -1 is the last row
    x, residuals = table[ids], draw(30, 2 * 37, seed=3)
    multiply = decoding_products.multiply
    close = torch.testing.assert_close
    product = x @ weight.T
    close(multiply(x, weight, tiles).rows, product, rtol=1e-4, atol=1e-3)
    options: dict[str, Any] = {}
    if num_rows == 1:
        options, product = (
            {"ids": ids, "gains": gains, "eps": EPSILON},
            rms_norm(x, gains, EPSILON) @ weight.T,
        )
    rows = table if num_rows == 1 else x
    gate, up = product.chunk(2, dim=-1)
    ours = multiply(rows, weight, tiles, **options, gate=decoding_products.SWIGLU).rows
    close(ours, silu(gate) * up, rtol=1e-4, atol=1e-3)
    ours = multiply(rows, weight, tiles, **options, gate=decoding_products.SILU).rows
    close(ours, silu(product), rtol=1e-4, atol=1e-3)
    if num_rows == 1:
        ours = multiply(x, weight, tiles, residual=residuals, residual_ids=ids).rows
        close(ours, x @ weight.T + residuals[ids], rtol=1e-4, atol=1e-3)
    ours = multiply(x, weight, tiles, residual=residuals[ids]).rows
    close(ours, x @ weight.T + residuals[ids], rtol=1e-4, atol=1e-3)
    ours, largest, _ = multiply(x, weight, tiles, num_ids=50)
    assert largest is not None
    assert torch.equal(choose(largest), ours[:, :50].argmax(-1))


def test_a_product_scales_its_rows_for_the_norm_that_follows() -> None:
    x, weight, residual, gains = draw(19, 64), draw(48, 64, seed=1), draw(19, 48, seed=2), draw(48, seed=3)
    added = decoding_products.multiply(x, weight, ROWS, residual=residual, next_gains=gains)
    embedded = decoding_products.embed_rows(residual, torch.arange(-2, 17, device=DEVICE), gains)
    torch.testing.assert_close(embedded[0], residual.roll(2, dims=0))
    for rows, scaled in ((added.rows, added.scaled), embedded):
        assert scaled is not None
        following = draw(32, 48, seed=4)
        ours = decoding_products.multiply(scaled, following, ROWS, eps=EPSILON).rows
        expected = rms_norm(rows, gains, EPSILON) @ following.T
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-3)


def choose(largest: LargestLogits) -> Tensor:
    ids, positions, num_chosen = (
        torch.zeros(len(largest.values), dtype=torch.long, device=DEVICE) for _ in range(3)
    )
    decoding_products.choose_largest(largest, ids, positions, num_chosen, capacity=2, num_columns=2)
    assert positions.eq(1).all()
    assert num_chosen.eq(1).all()
    return ids


def test_logits_that_are_not_finite_choose_no_token() -> None:
    logits = draw(6, 300)
    logits[0, 7] = torch.nan
    logits[1, 290] = torch.inf
    logits[2] = -torch.inf
    logits[3, :299] = -torch.inf  # one finite logit, which is not among the ids
    logits[4, 5:] = -torch.inf
    logits[5, [33, 250]] = 50.0  # the lowest id wins
    expected = [-1, -1, -1, -1, int(logits[4, :5].argmax()), 33]
    assert choose(decoding_products.find_largest(logits, 299, block=64)).tolist() == expected


DEFAULT: dict[str, Any] = {"num_layers": 2}
GROUPS: dict[str, Any] = {"qk_norm": True, "num_kv_heads": 1}
OTHERS: dict[str, Any] = {"norm": "none", "ffn": "silu", "position": "none"}


@pytest.mark.parametrize(
    ("changes", "num_rows", "options"),
    [
        (DEFAULT, 1, ONE_ROW),
        (GROUPS, 3, SOME_ROWS),
        (OTHERS, 4, LIBRARY),
        pytest.param(GROUPS, 1, ONE_ROW, marks=pytest.mark.slow),
        pytest.param(OTHERS, 1, ONE_ROW, marks=pytest.mark.slow),
        pytest.param(DEFAULT, 3, SOME_ROWS, marks=pytest.mark.slow),
        pytest.param(OTHERS, 3, SOME_ROWS, marks=pytest.mark.slow),
        pytest.param(DEFAULT, 4, LIBRARY, marks=pytest.mark.slow),
        pytest.param(GROUPS, 4, LIBRARY, marks=pytest.mark.slow),
    ],
)
def test_a_step_equals_that_of_the_decoder(
    changes: dict[str, Any], num_rows: int, options: StepOptions
) -> None:
    torch.manual_seed(0)
    config = small_config("default", context_length=48, **{**SMALLER, **changes})
    decoder = Decoder(TransformerLM(config).to(DEVICE, DTYPE), num_rows)
    decoder.fused_step = None
    fused = FusedStep(decoder, options)
    ids = torch.randint(config.vocab_size, (num_rows, 40), device=DEVICE)
    lengths = torch.tensor([15, 33, 40, 1], device=DEVICE)[:num_rows]
    caches = [decoder.new_cache(num_rows, 48) for _ in range(2)]
    for cache in caches:
        decoder.read(cache, ids, lengths)
    theirs = decoder.step(caches[0], ids[:, 0], lengths).double()
    ours = fused.step(caches[1], ids[:, 0], lengths).double()
    assert (ours - theirs).norm() <= 2e-2 * theirs.norm()
    assert not caches[1].arrivals.any()
    for left, right in zip(caches[0].keys + caches[0].values, caches[1].keys + caches[1].values, strict=True):
        torch.testing.assert_close(left, right, rtol=0.1, atol=0.1)
    chosen = torch.zeros(num_rows, 4, dtype=torch.long, device=DEVICE)
    last, positions, num_chosen = ids[:, 1].clone(), lengths + 1, torch.full_like(lengths, 2)
    again = last.clone(), positions.clone(), TokenChoice(num_chosen.clone(), None, num_ids=50)
    logits = fused.step_and_choose(caches[1], last, positions, TokenChoice(num_chosen, chosen, num_ids=50))
    # Reading only the part of the cache that is in use does not change a bit.
    num_positions = int(lengths.max()) + 2
    assert torch.equal(fused.step_and_choose(caches[1], *again, num_positions), logits)
    assert torch.equal(last, logits[:, :50].argmax(-1))
    assert torch.equal(chosen[:, 2], last)
    assert torch.equal(positions, (lengths + 2).clamp(max=47))
    assert num_chosen.eq(3).all()


def test_a_round_of_slots_may_exceed_the_context() -> None:
    torch.manual_seed(0)
    config = small_config("default", context_length=48, **SMALLER)
    decoder = Decoder(TransformerLM(config).to(DEVICE, DTYPE), 2)
    decoder.fused_step = None
    batch = SlotBatch(decoder, 2, num_ids=config.vocab_size, can_capture=False)
    batch.is_on_gpu, decoder.fused_step = True, FusedStep(decoder, SOME_ROWS)
    prompt = torch.randint(config.vocab_size, (45,)).tolist()
    with torch.inference_mode():
        sampling = SamplingConfig(temperature=0.0, max_new_tokens=3)
        batch.read([PromptChunk(0, 0, prompt, RowDraws(sampling, 0, 3))])
        chosen = batch.launch([0], num_tokens=46, num_steps=8).ids()
    assert [len(row) for row in chosen] == [8, 8]


@pytest.mark.parametrize("options", [SOME_ROWS, LIBRARY], ids=["kernel", "library"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_below_the_head_are_never_chosen(options: StepOptions, temperature: float) -> None:
    torch.manual_seed(0)
    config = small_config("default", context_length=48, **SMALLER)
    decoder = Decoder(TransformerLM(config).to(DEVICE, DTYPE), 2)
    # The padding on a GPU is zeros. Rows like these would always be chosen.
    decoder.head.weight = torch.cat((decoder.head.weight, 100 * decoder.head.weight))
    decoder.fused_step = None
    batch = SlotBatch(decoder, 2, num_ids=config.vocab_size, can_capture=False)
    batch.is_on_gpu, decoder.fused_step = True, FusedStep(decoder, options)
    sampling = SamplingConfig(temperature=temperature, max_new_tokens=5)
    with torch.inference_mode():
        read = batch.read([PromptChunk(slot, 0, [slot], RowDraws(sampling, slot, 5)) for slot in range(2)])
        steps = batch.launch([0, 1], num_tokens=2, num_steps=4)
    assert read.first is not None
    assert read.first.logits.shape[1] == steps.logits.shape[1] == config.vocab_size
    chosen = torch.tensor(
        [[*first, *others] for first, others in zip(read.first.ids(), steps.ids(), strict=True)]
    )
    assert chosen.ge(0).all()
    assert chosen.lt(config.vocab_size).all()


def test_models_with_other_parts_are_not_supported() -> None:
    for choice in ("default", "tied", "no-norm", "qk-norm", "ffn-silu"):
        assert supports_fused_step(Decoder(TransformerLM(small_config(choice)).bfloat16()))
    for choice in ("post-norm", "all-at-once"):
        assert not supports_fused_step(Decoder(TransformerLM(small_config(choice)).bfloat16()))
    assert not supports_fused_step(Decoder(TransformerLM(small_config("default")).half()))


def test_a_row_does_not_depend_on_the_others() -> None:
    torch.manual_seed(0)
    num_rows, config = 2, small_config("default", context_length=48, **SMALLER)
    decoder = Decoder(TransformerLM(config).to(DEVICE, DTYPE))
    ids = torch.randint(61, (num_rows, 33), device=DEVICE)
    results = []
    for others in (0, 1):
        ids[1:] = (ids[1:] + others) % 61
        cache = decoder.new_cache(num_rows, 48)
        lengths = torch.full((num_rows,), 33 - others * 3, device=DEVICE)
        lengths[0] = 33
        decoder.read(cache, ids[:1].expand(num_rows, -1), lengths)  # only the tokens differ
        step = FusedStep(decoder, SOME_ROWS).step(cache, ids[:, 0], lengths)
        results.append(step[0])
    assert torch.equal(*results)

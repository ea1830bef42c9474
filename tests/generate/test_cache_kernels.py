"""Kernels that read prompts into the cache and attend to it: on a GPU, or in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bytewright.generate import Generator, SamplingConfig, prompt_chunks
from bytewright.generate.decoder import Decoder
from bytewright.generate.prompt_chunks import PromptChunk, RowDraws
from bytewright.generate.slots import SlotBatch
from bytewright.model import TransformerLM
from bytewright.model.layers import EPSILON
from model_choices import small_config

pytest.importorskip("triton")
from bytewright.model.kernels import decoding, prompts

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DEFAULT: dict[str, Any] = {"num_layers": 1, "num_heads": 2}
GROUPS: dict[str, Any] = {**DEFAULT, "d_model": 64, "num_heads": 4, "qk_norm": True, "num_kv_heads": 2}
UNROTATED: dict[str, Any] = {**DEFAULT, "position": "none"}
CHANGES = pytest.mark.parametrize(
    "changes", [DEFAULT, GROUPS, UNROTATED], ids=["heads", "groups", "unrotated"]
)


def make_decoder(changes: dict[str, Any], batch_size: int = 3) -> Decoder:
    torch.manual_seed(0)
    config = small_config("default", context_length=96, **changes)
    return Decoder(TransformerLM(config).to(DEVICE), batch_size)


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE)


@CHANGES
def test_attention_to_whole_sequences_equals_that_to_splits(changes: dict[str, Any]) -> None:
    decoder = make_decoder(changes)
    config = decoder.config
    qkv = draw(3, (config.num_heads + 2 * config.kv_heads) * config.d_head)
    positions = torch.tensor([0, 64, 95], device=DEVICE)
    empty = draw(3, config.kv_heads, 96, config.d_head)
    results = []
    for split in (16, None):
        keys, values, arrivals = empty.clone(), 2 * empty, torch.zeros(3, config.kv_heads, dtype=torch.int32)
        gains = decoder.blocks[0].attention.qk_gains
        token = qkv, gains, decoder.angles, keys, values, positions, arrivals.to(DEVICE)
        results.append((decoding.attend_and_store(*token, eps=EPSILON, split=split), keys, values))
    for left, right in zip(*results, strict=True):
        torch.testing.assert_close(left, right)


def test_many_sequences_are_read_whole_unless_in_float32() -> None:
    assert decoding.split_for(32, 12, torch.bfloat16) is None
    assert decoding.split_for(32, 12, torch.float32) == decoding.SPLIT
    assert decoding.split_for(2, 12, torch.bfloat16) == decoding.SPLIT


@CHANGES
def test_prompts_are_rotated_into_the_cache(changes: dict[str, Any]) -> None:
    decoder = make_decoder(changes)
    config = decoder.config
    qkv = draw(2, 5, (config.num_heads + 2 * config.kv_heads) * config.d_head)
    angles = decoder._angles_at(torch.arange(5, device=DEVICE).repeat(2))
    split = decoder._split(0, qkv.flatten(0, 1), angles)
    q, k, v = (part.view(2, 5, *part.shape[1:]) for part in split)
    cache = decoder.new_cache(2, 7)
    gains = decoder.blocks[0].attention.qk_gains
    ours = prompts.rotate_into_cache(
        qkv, gains, decoder.half_angles, cache.keys[0], cache.values[0], eps=EPSILON
    )
    torch.testing.assert_close(ours, q)
    torch.testing.assert_close(cache.keys[0][:, :, :5], k.transpose(1, 2))
    torch.testing.assert_close(cache.values[0][:, :, :5], v.transpose(1, 2))
    assert not cache.keys[0][:, :, 5:].any()


@CHANGES
def test_packed_prompts_equal_those_read_alone(changes: dict[str, Any]) -> None:
    decoder = make_decoder(changes)
    lengths, rows = [1, 17, 30], [2, 0, 1]
    ids = torch.randint(decoder.config.vocab_size, (sum(lengths) + 6,), device=DEVICE)
    alone, packed = decoder.new_cache(4, 96), decoder.new_cache(4, 96)
    firsts = [0, 1, 18]
    chunks = [*zip(rows, firsts, lengths, strict=True), (3, 48, 6), (3, 0, 0)]
    hidden = decoder.read_packed(packed, ids, torch.tensor(chunks, device=DEVICE), longest=32)
    for row, first, length in chunks[:4]:
        place = torch.tensor([row], device=DEVICE), ids[None, first : first + length]
        (expected,) = decoder.read_chunk(alone, *place, torch.zeros(1, dtype=torch.long, device=DEVICE))
        torch.testing.assert_close(hidden[first : first + length], expected)
    for left, right in zip(alone.keys + alone.values, packed.keys + packed.values, strict=True):
        torch.testing.assert_close(left[:3], right[:3])


def test_slots_with_kernels_continue_prompts_as_generate_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of one and of several chunks, of which more wait than one call can read."""
    monkeypatch.setattr(prompt_chunks, "FIRST_TOKENS", 100)
    monkeypatch.setattr(prompt_chunks, "FIRST_CHUNKS", 3)
    decoder = make_decoder(DEFAULT)
    torch.manual_seed(0)
    model = TransformerLM(decoder.config).to(DEVICE)
    lengths = [1, 30, 64, 90]
    generator = torch.Generator().manual_seed(1)
    texts = [torch.randint(61, (length,), generator=generator).tolist() for length in lengths]
    sampling = SamplingConfig(max_new_tokens=2, temperature=1.0, seed=5)
    alone = Generator(model)
    batch = SlotBatch(decoder, len(texts), num_ids=61, can_capture=False)
    batch.is_on_gpu = decoder.has_kernel = True
    batch.packs_first = batch._compare_packed()
    assert batch.packs_first
    chosen: dict[int, list[int]] = {}
    waiting = dict.fromkeys(range(len(texts)), 0)
    num_tokens = []
    with torch.inference_mode():
        while waiting:
            chunks = []
            for slot, start in waiting.items():
                end = min(start + 64, lengths[slot])
                draws = RowDraws(sampling, slot, 2) if end == lengths[slot] else None
                chunks.append(PromptChunk(slot, start, texts[slot][start:end], draws))
            chunks = [chunks[number] for number in batch.select(chunks)]
            read = batch.read(chunks)
            num_tokens.append(sum(len(chunk.ids) for chunk in chunks))
            first = None if read.first is None else read.first.ids()
            for row, chunk in enumerate(chunks):
                waiting[chunk.slot] = chunk.end
                assert read.hidden_of(row).shape == (len(chunk.ids), decoder.config.d_model)
                torch.testing.assert_close(read.hidden_of(row)[-1], read.last[row])
                if chunk.draws:
                    assert first is not None
                    chosen[chunk.slot] = first[row]
                    del waiting[chunk.slot]
        steps = batch.launch(range(len(texts)), max(lengths) + 1).ids()
    assert num_tokens == [95, 64, 26]
    for slot, text in enumerate(texts):
        (completion,) = alone.generate([text], sampling, first_random_stream=slot)
        assert chosen[slot] + steps[slot] == completion.ids


def test_prompts_are_not_packed_if_their_heads_exceed_shared_memory() -> None:
    heads_of_256: dict[str, Any] = {"num_layers": 1, "d_model": 256, "num_heads": 1}
    for config, can_read_packed in ((heads_of_256, False), ({**heads_of_256, "num_heads": 2}, True)):
        decoder = make_decoder(config)
        assert decoder.dtype == torch.float32
        decoder.has_kernel = True
        assert decoder.can_read_packed == can_read_packed


def test_prompts_are_not_packed_if_their_bits_depend_on_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_chunks, "FIRST_TOKENS", 64)
    decoder = make_decoder(DEFAULT)
    batch = SlotBatch(decoder, 2, num_ids=61, can_capture=False)
    read = decoder.read_packed

    def read_unequally(*given: Any) -> torch.Tensor:
        hidden = read(*given)
        hidden[17] = hidden[17].nextafter(torch.full_like(hidden[17], torch.inf))
        return hidden

    assert batch._compare_packed()
    monkeypatch.setattr(decoder, "read_packed", read_unequally)
    assert not batch._compare_packed()

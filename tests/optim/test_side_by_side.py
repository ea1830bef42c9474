"""Training equals that of `transformers`' Llama with torch's AdamW, from the same weights and batches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bytewright.data.sampler import TokenStore, WindowSampler
from bytewright.model import ModelConfig, TransformerLM
from bytewright.model.hf_llama import write_llama
from bytewright.optim.build import build_optimizer
from bytewright.train.config import OptimizerConfig
from bytewright.train.step import TrainStep
from runs import make_ids

CONFIG = ModelConfig(vocab_size=40, context_length=16, d_model=32, num_layers=2, num_heads=4)


def test_two_hundred_steps_equal_llama_with_torch_adamw(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    ours = TransformerLM(CONFIG)
    write_llama(ours, tmp_path / "llama")
    theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "llama", dtype=torch.float32)
    config = OptimizerConfig(lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01)
    step = TrainStep(ours, build_optimizer(ours, config), max_grad_norm=1.0)
    groups = [
        {"params": [p for p in theirs.parameters() if p.ndim == 2], "weight_decay": 0.01},
        {"params": [p for p in theirs.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    peer = torch.optim.AdamW(groups, lr=1e-3, eps=1e-8)
    store = TokenStore(make_ids(4000))
    sampler = WindowSampler(num_tokens=4000, context_length=16, batch_size=4, seed=0)
    losses = []
    for number in range(200):
        ids, targets = store.batch(sampler.starts(number), 16)
        mine = step([(ids, targets)]).loss.item()
        peer.zero_grad()
        logits = theirs(input_ids=ids).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        peer.step()
        assert mine == pytest.approx(loss.item(), abs=1e-3), f"step {number}"
        losses.append(mine)
    assert losses[-1] < 0.6 * losses[0], "nothing was learned, so nothing was compared"

"""Train a tiny model for the examples of pages."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from bytewright.model import ModelConfig
from bytewright.tokenizer import Tokenizer, train_bpe
from bytewright.train import BudgetConfig, DataConfig, OptimizerConfig, TrainConfig, train

END = "<|endoftext|>"
STEPS = 60


def train_tiny_run(folder: Path) -> str:
    """Train on one sentence, repeated, and return the path of the run."""
    text, tokens, tokenizer = folder / "tale.txt", folder / "tale.npy", folder / "tok"
    text.write_text(f"Once upon a time an owl sat in an old oak.{END}" * 200)
    vocab, merges = train_bpe(text, 280, [END])
    Tokenizer(vocab, merges, [END]).save(tokenizer)
    Tokenizer.load(tokenizer).encode_file(text, tokens)
    config = TrainConfig(
        model=ModelConfig(vocab_size=280, context_length=32, d_model=32, num_layers=1, num_heads=2),
        data=DataConfig(train=tokens, validation=tokens, tokenizer=tokenizer),
        budget=BudgetConfig(steps=STEPS),
        optimizer=OptimizerConfig(lr=0.02),
        batch_size=8,
        device="cpu",
    )
    train(config, folder / "tiny", console=Console(file=io.StringIO()))
    return str(folder / "tiny")

"""A small run on generated stories, for tests that compare a model with the true probabilities."""

from __future__ import annotations

from pathlib import Path

from bytewright.experiments.corpora import CorpusConfig, prepare_corpus
from bytewright.model import ModelConfig
from bytewright.train import TrainConfig, train
from bytewright.train.config import BudgetConfig

VOCAB_SIZE = 400


def train_on_stories(folder: Path, *, context_length: int = 64, steps: int = 2) -> Path:
    """Train a tiny model on generated stories and return its run; the data lie beside it."""
    corpus = CorpusConfig(storybook=200_000, vocab_size=VOCAB_SIZE, validation_size=20_000)
    data = prepare_corpus(corpus, folder / "data", lambda phase, done, total, unit: None)
    config = TrainConfig(
        model=ModelConfig(
            vocab_size=VOCAB_SIZE, context_length=context_length, d_model=16, num_layers=2, num_heads=2
        ),
        data=data,
        budget=BudgetConfig(steps=steps),
        batch_size=2,
        device="cpu",
    )
    train(config, folder / "run")
    return folder / "run"

"""What the demo makes: every size and setting, chosen once by measurement, so that two cores need minutes.

The plan is a value: equal plans make equal stories, tokens and models. Where the values come from is written
beside them. Nothing here runs.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bytewright.model import ModelConfig
from bytewright.train.config import BudgetConfig, DataConfig, OptimizerConfig, ScheduleConfig, TrainConfig

EXPECTED_SECONDS = {
    "stories": 1.0,
    "tokenizer": 0.2,
    "tokens": 0.1,
    "measure": 1.0,
    "samples": 10.0,
    "check": 1.0,
}
"""What the stages take on two quiet cores; the training is timed on the machine itself before it starts."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One demo."""

    seed: int = 1
    """Decides the stories, the weights before training, and the samples."""
    train_bytes: int = 12_000_000
    """Stories to learn from; the model sees each about once."""
    validation_bytes: int = 150_000
    """Stories to measure on: about two hundred, whose plots are in no training story."""
    vocab_size: int = 3072
    """Nearly every word is one token."""
    context_length: int = 256
    """The longest story fits in, with its end."""
    d_model: int = 64
    """Small, so that it sees many stories: at equal time 64 came closer to the floor than 96 and 128 did."""
    num_layers: int = 3
    num_heads: int = 2
    batch_size: int = 4
    """Small too: keeping facts straight is learnt after a number of steps more than of stories."""
    num_steps: int = 3200
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(name="muon", lr=1.2e-2, muon_lr=5e-3, weight_decay=0.01)
    )
    """A high rate for the embeddings, a low one for the blocks: with half the one and four times the other,
    the model was a thousand steps later in keeping its facts straight."""
    schedule: ScheduleConfig = field(
        default_factory=lambda: ScheduleConfig(kind="linear", warmup=20, final=0.0)
    )
    num_looks: int = 8
    """How often on the way the model is measured on the validation stories."""
    num_samples: int = 200
    """Stories that the trained model tells, to be checked one by one."""
    temperature: float = 0.7
    top_p: float = 0.95

    @property
    def steps_between_looks(self) -> int:
        """Updates between two measurements."""
        return max(1, -(-self.num_steps // self.num_looks))

    def train_config(self, folder: Path, vocab_size: int) -> TrainConfig:
        """Word the plan as the config of a run on the data in `folder`."""
        return TrainConfig(
            model=ModelConfig(
                vocab_size=vocab_size,
                context_length=self.context_length,
                d_model=self.d_model,
                num_layers=self.num_layers,
                num_heads=self.num_heads,
                tie_embeddings=True,
                qk_norm=True,  # without it, no fact but the commonest is kept at the end
            ),
            data=DataConfig(
                train=folder / "tokens" / "train.npy",
                validation=folder / "tokens" / "validation.npy",
                tokenizer=folder / "tokenizer",
                windows="documents",
            ),
            budget=BudgetConfig(steps=self.num_steps),
            optimizer=self.optimizer,
            schedule=self.schedule,
            batch_size=self.batch_size,
            seed=self.seed,
            device="cpu",  # so that it is the same model everywhere, and no GPU is taken by surprise
            log_every=max(1, self.num_steps // 70),
            eval_every=self.steps_between_looks,
            eval_tokens=128 * self.context_length,
            save_every=self.steps_between_looks,
            keep_last=1,
            sample_every=2 * self.steps_between_looks,
        )

    def settings(self, *names: str) -> dict[str, Any]:
        """Pick settings by name: what a stage depends on."""
        fields = dataclasses.asdict(self)
        return {name: fields[name] for name in names}

"""The sizes and settings of the demo, chosen by measurement for a few minutes on two cores.

Equal plans give equal stories, tokens and models. The docstrings of the fields give the reasons.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from bytewright.experiments.corpora import CorpusConfig
from bytewright.experiments.evaluation.stories import SamplingPlan
from bytewright.model import ModelConfig
from bytewright.train.config import BudgetConfig, DataConfig, OptimizerConfig, ScheduleConfig, TrainConfig


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The settings of one demo."""

    seed: int = 1
    """Seed of the stories, the initial weights and the samples."""
    train_bytes: int = 12_000_000
    """Size of the training stories; the model reads each about once."""
    validation_bytes: int = 150_000
    """Size of the validation stories: about two hundred, with plots that no training story has."""
    vocab_size: int = 3072
    """Nearly every word is one token."""
    context_length: int = 256
    """The longest story fits, with its end token."""
    d_model: int = 64
    """At equal training time, 64 comes closer to the floor than 96 and 128."""
    num_layers: int = 3
    num_heads: int = 2
    batch_size: int = 4
    """Small, since consistency depends on the number of steps more than on the number of stories."""
    num_steps: int = 3200
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(name="muon", lr=1.2e-2, muon_lr=5e-3, weight_decay=0.01)
    )
    """A high learning rate for the embeddings and a low one for the blocks. With half the former and four
    times the latter, consistency came a thousand steps later."""
    schedule: ScheduleConfig = field(
        default_factory=lambda: ScheduleConfig(kind="linear", warmup=20, final=0.0)
    )
    num_evaluations: int = 8
    """Number of evaluations on the validation stories during training."""
    num_samples: int = 200
    """Number of stories that the trained model generates."""
    temperature: float = 0.7
    top_p: float = 0.95

    @property
    def eval_every(self) -> int:
        """Steps between two evaluations."""
        return max(1, -(-self.num_steps // self.num_evaluations))

    def corpus_config(self) -> CorpusConfig:
        """Return the corpus to prepare."""
        return CorpusConfig(
            storybook=self.train_bytes,
            validation_size=self.validation_bytes,
            seed=self.seed,
            vocab_size=self.vocab_size,
        )

    def model_config(self) -> ModelConfig:
        """Return the shape of the model."""
        return ModelConfig(
            vocab_size=self.vocab_size,
            context_length=self.context_length,
            d_model=self.d_model,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            tie_embeddings=True,
            qk_norm=True,  # without it, stories keep only their most frequent facts consistent
        )

    def train_config(self, data: DataConfig) -> TrainConfig:
        """Return the config of the run on the prepared corpus."""
        return TrainConfig(
            model=self.model_config(),
            data=replace(data, windows="documents"),
            budget=BudgetConfig(steps=self.num_steps),
            optimizer=self.optimizer,
            schedule=self.schedule,
            batch_size=self.batch_size,
            seed=self.seed,
            device="cpu",  # gives the same model on every machine
            log_every=max(1, self.num_steps // 70),
            eval_every=self.eval_every,
            eval_tokens=128 * self.context_length,
            save_every=self.eval_every,
            keep_last=1,
            sample_every=2 * self.eval_every,
        )

    def sampling_plan(self) -> SamplingPlan:
        """Return how to sample stories from the model."""
        return SamplingPlan(
            temperature=self.temperature, top_p=self.top_p, seed=self.seed, num_stories=self.num_samples
        )

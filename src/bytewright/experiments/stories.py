"""How good the stories are that a model writes: sample many, parse them back, and count.

`tell` samples from the model of a run and keeps the texts; `check` says what share of their sentences and of
the stories is sound, what share is consistent throughout, and what share is copied from the training text.
Only the storybook has a grammar to check against; of other texts the figures that need none are given.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bytewright.corpus import END_OF_TEXT
from bytewright.errors import UsageError
from bytewright.generate import Generator, SamplingConfig
from bytewright.train.checkpoint import find_checkpoint, load_model
from bytewright.train.config import Device
from bytewright.train.run import config_of_checkpoint
from bytewright.train.setup import dtype_of, find_device, precision_to_write_in

BATCH = 100


@dataclass(frozen=True, kw_only=True)
class SamplingPlan:
    """How to sample, and how much."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    seed: int = 0
    num_stories: int = 200
    prompt: str = ""
    """What stories begin with; empty: the model begins them itself."""

    def __post_init__(self) -> None:
        if self.num_stories < 1:
            raise UsageError(f"sampling.num_stories must be at least 1, but is {self.num_stories}")
        self.config(1, ())

    def config(self, max_new_tokens: int, stop_tokens: tuple[int, ...]) -> SamplingConfig:
        """Give the settings of the generator."""
        return SamplingConfig(
            max_new_tokens=max_new_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            seed=self.seed,
            stop_tokens=stop_tokens,
        )


def tell(run: Path, plan: SamplingPlan, *, device: Device = "auto") -> tuple[list[str], float]:
    """Write stories with the model of a run; also give the share of them that the model ended itself."""
    from bytewright.tokenizer import Tokenizer

    checkpoint = find_checkpoint(run, which="last")
    tokenizer = Tokenizer.load(run / "tokenizer")
    end = tokenizer.special_tokens.get(END_OF_TEXT)
    if end is None:
        raise UsageError(f"{run}: its tokenizer has no {END_OF_TEXT}, so its model cannot end a story")
    place = find_device(device)
    precision = precision_to_write_in(config_of_checkpoint(checkpoint), place)
    model = load_model(checkpoint, device=place, compute_dtype=dtype_of(precision))
    prompt = [end, *tokenizer.encode(plan.prompt)]
    stories, num_ended = [], 0
    generator = Generator(model, min(BATCH, plan.num_stories))
    sampling = plan.config(model.config.context_length - len(prompt), (end,))
    sampling = dataclasses.replace(sampling, num_ids=tokenizer.vocab_size)
    for completion in generator.generate_many([prompt] * plan.num_stories, sampling, BATCH):
        stories.append((plan.prompt + tokenizer.decode(completion.ids)).strip())
        num_ended += completion.reason == "stop"
    return stories, num_ended / plan.num_stories


def check(stories: Sequence[str], ended: float, training_text: Path | None) -> dict[str, Any]:
    """Count what can be counted: with a grammar where the text is the storybook's, else without one."""
    words = [word for story in stories for word in story.split()]
    figures: dict[str, Any] = {
        "num_stories": len(stories),
        "ended": ended,
        "words_per_story": len(words) / len(stories),
        "distinct_words": len(set(words)) / max(1, len(words)),
        "distinct_stories": len(set(stories)) / len(stories),
    }
    if training_text is None:
        return figures
    from bytewright.corpus.storybook import Storybook

    report = Storybook.load().check_stories(stories, _known_stories(training_text))
    return figures | {
        "sound_sentences": report.sound_sentences,
        "well_formed": report.well_formed,
        "consistent": report.consistent,
        "copies": report.copies,
    }


@functools.lru_cache(maxsize=1)
def _known_stories(path: Path) -> Container[str]:
    """Read the stories that a model was trained on, once for all ways to sample from it."""
    from bytewright.corpus.storybook import KnownStories, read_stories

    return KnownStories(read_stories(path))

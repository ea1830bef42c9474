"""Sample stories from the model of a run and score them.

`generate_stories` samples the texts. `score_stories` returns the shares of grammatical sentences, of
well-formed and consistent stories, and of copies of training stories. These need the storybook's grammar; for
other corpora only length, diversity and the share of ended stories are returned.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bytewright.corpus import END_OF_TEXT
from bytewright.errors import UsageError, wrong_value
from bytewright.formatting import Progress
from bytewright.generate import Generator, SamplingConfig
from bytewright.train.config import DeviceName
from bytewright.train.run_model import open_model
from bytewright.train.setup import select_device

BATCH = 100


@dataclass(frozen=True, kw_only=True)
class SamplingPlan:
    """The sampling parameters and the number of stories."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    sampler: str | None = None
    """A registered sampler that applies last."""
    sampler_options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    num_stories: int = 200
    prompt: str = ""
    """The beginning of every story; empty: the model generates the whole story."""

    def __post_init__(self) -> None:
        if self.num_stories < 1:
            raise wrong_value("sampling.num_stories", "at least 1", self.num_stories)
        self.config(1, ())

    def config(self, max_new_tokens: int, stop_tokens: tuple[int, ...]) -> SamplingConfig:
        """Return the settings of the generator."""
        shared = dataclasses.asdict(self)
        del shared["num_stories"], shared["prompt"]
        return SamplingConfig(max_new_tokens=max_new_tokens, stop_tokens=stop_tokens, **shared)


def generate_stories(
    run: Path,
    plan: SamplingPlan,
    *,
    device: DeviceName = "auto",
    progress: Progress | None = None,
) -> tuple[list[str], float]:
    """Sample stories from the model of a run; return them and the share that ended with an end token."""
    saved = open_model(run, which="last")
    tokenizer = saved.run.tokenizer
    end = tokenizer.special_tokens.get(END_OF_TEXT)
    if end is None:
        message = (
            f"the tokenizer has no {END_OF_TEXT}, so the model cannot end a story;"
            " train one with this special token, and a model with it"
        )
        raise UsageError.at(run, message, expected=END_OF_TEXT)
    place = select_device(device)
    model = saved.load(device=place, precision=saved.generation_precision(place))
    prompt = [end, *tokenizer.encode(plan.prompt)]
    room = model.config.context_length - len(prompt)
    if room < 1:
        limit, found = model.config.context_length - 2, len(prompt) - 1
        message = (
            f"sampling.prompt has {found} tokens, which leaves no room in the model's context of"
            f" {model.config.context_length}; shorten it to at most {limit} tokens"
        )
        raise UsageError(message, key="sampling.prompt", expected=limit, found=found)
    stories, num_ended = [], 0
    generator = Generator(model, min(BATCH, plan.num_stories))
    sampling = plan.config(room, (end,))
    sampling = dataclasses.replace(sampling, num_ids=tokenizer.vocab_size)
    for completion in generator.generate_many([prompt] * plan.num_stories, sampling, BATCH):
        stories.append((plan.prompt + tokenizer.decode(completion.ids)).strip())
        num_ended += completion.reason == "stop"
        if progress is not None:
            progress(len(stories), plan.num_stories)
    return stories, num_ended / plan.num_stories


def score_stories(stories: Sequence[str], ended: float, training_text: Path | None) -> dict[str, Any]:
    """Return the scores of stories; `training_text` is given if the storybook's grammar applies to them."""
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
    """Return the training stories; cached, since all trials of a sweep sample from one model."""
    from bytewright.corpus.storybook import KnownStories, read_stories

    return KnownStories(read_stories(path))

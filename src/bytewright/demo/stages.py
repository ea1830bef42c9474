"""The work of the demo, stage by stage: each takes files in the demo's folder and leaves others there.

Every function does one stage and returns its figures, plain values that JSON keeps. Whether a stage has to
be done at all, and what is said about it, is decided in `show`.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import time
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64
from rich.console import Console

from bytewright.corpus import END_OF_TEXT, SEPARATOR
from bytewright.corpus.storybook import Storybook, check_file, read_stories, write_stories
from bytewright.corpus.storybook.book import GRAMMAR_FILE
from bytewright.data.tokenfile import TokenFile
from bytewright.demo.display import FloorDisplay
from bytewright.demo.plan import Plan
from bytewright.generate import Generator, SamplingConfig
from bytewright.model import TransformerLM
from bytewright.storage import atomic
from bytewright.system import keep_freed_memory
from bytewright.tokenizer import Tokenizer
from bytewright.tokenizer.tokenizer import default_num_threads
from bytewright.tokenizer.train import train_tokenizer
from bytewright.train import TrainConfig, TrainResult, resume, train
from bytewright.train.checkpoint import CheckpointFolder, find_checkpoint, load_model
from bytewright.train.evaluate_stories import StoryEvaluation, evaluate_stories, split_stories
from bytewright.train.inputs import count_token_bytes
from bytewright.train.run import config_of
from bytewright.train.setup import build_model, make_optimizer
from bytewright.train.step import TrainStep

TRAIN, VALIDATION, SAMPLES = "stories/train.txt", "stories/validation.txt", "samples.txt"
TRAIN_TOKENS, VALIDATION_TOKENS, FLOOR = "tokens/train.npy", "tokens/validation.npy", "tokens/corpus.json"
TOKENIZER, RUN = "tokenizer", "run"
SAMPLES_AT_ONCE = 50
WORTH_WORKERS = 2_000_000
"""Bytes of stories beyond which starting processes to tell them pays."""
TIMED_STEPS = 3

Report = Callable[[str, int, int, str], None]
"""Hears how far a stage is: what it does, what is done, the total, and the unit."""
Facts = dict[str, Any]


@functools.cache  # as the storybook itself is: the two must not part when the file is edited meanwhile
def hash_grammar() -> str:
    """Identify the grammar that stories are told from."""
    grammar = resources.files("bytewright.corpus.storybook").joinpath(GRAMMAR_FILE)
    return hashlib.sha256(grammar.read_bytes()).hexdigest()


def tell_stories(folder: Path, plan: Plan, report: Report) -> Facts:
    """Write the stories to learn from and those to measure on, and what the latter weigh."""
    written = write_stories(
        folder / TRAIN,
        plan.train_bytes,
        seed=plan.seed,
        split="train",
        num_workers=default_num_threads() if plan.train_bytes > WORTH_WORKERS else 1,
        progress=lambda done, total: report("stories", done, total, "bytes"),
    )
    write_stories(folder / VALIDATION, plan.validation_bytes, seed=plan.seed, split="validation")
    texts = list(read_stories(folder / VALIDATION))
    bits = [
        story.bits for _, story in zip(texts, Storybook.load().stories(plan.seed, "validation"), strict=False)
    ]
    return {
        "num_stories": written.num_stories,
        "num_bytes": written.num_bytes,
        "first": next(read_stories(folder / TRAIN)),
        "floor_bits": bits,
    }


def learn_tokens(folder: Path, plan: Plan) -> Facts:
    """Train the tokenizer on the training stories."""
    training = train_tokenizer(folder / TRAIN, plan.vocab_size, [END_OF_TEXT])
    tokenizer = Tokenizer.from_vocabulary(training.vocabulary)
    tokenizer.save(folder / TOKENIZER, replace=True)
    return {"vocab_size": tokenizer.vocab_size, "num_merges": len(tokenizer.merges)}


def encode_stories(folder: Path, floor_bits: list[float], report: Report) -> Facts:
    """Turn both files of stories into token files; the floor goes beside them, where reports look for it."""
    tokenizer = Tokenizer.load(folder / TOKENIZER)
    token_bytes = count_token_bytes(tokenizer.vocabulary)
    end = tokenizer.special_tokens[END_OF_TEXT]
    train_tokens = tokenizer.encode_file(
        folder / TRAIN,
        folder / TRAIN_TOKENS,
        progress=lambda done, total: report("encode", done, total, "bytes"),
    )
    validation = tokenizer.encode_file(folder / VALIDATION, folder / VALIDATION_TOKENS)
    newline = tokenizer.vocabulary.ids_of_ordinary_tokens[b"\n"]
    stories = split_stories(validation.tokens, end, newline=newline)
    num_bytes = sum(int(token_bytes[story].sum()) for story in stories)
    floor = sum(floor_bits) / num_bytes
    atomic.write_document(folder / FLOOR, {"floor_bits_per_byte": floor, "num_stories": len(stories)})
    return {
        "num_tokens": len(train_tokens),
        "bytes_per_token": int(token_bytes[train_tokens.tokens].sum()) / len(train_tokens),
        "longest_story": max(map(len, stories)),
        "floor": floor,
    }


class Validation(NamedTuple):
    """The validation stories, as a model is measured on them, and their entropy."""

    stories: list[np.ndarray[Any, np.dtype[np.uint16]]]
    end: int
    token_bytes: np.ndarray[Any, np.dtype[np.int64]]
    floor_bits: Float64[np.ndarray, " stories"]

    @classmethod
    def open(cls, folder: Path, floor_bits: list[float]) -> Validation:
        """Read the stories of the demo in `folder`."""
        vocabulary = Tokenizer.load(folder / TOKENIZER).vocabulary
        end, newline = vocabulary.special_tokens[END_OF_TEXT], vocabulary.ids_of_ordinary_tokens[b"\n"]
        stories = split_stories(TokenFile.open(folder / VALIDATION_TOKENS).tokens, end, newline=newline)
        return cls(stories, end, count_token_bytes(vocabulary), np.array(floor_bits))  # type: ignore[arg-type]

    def measure(self, model: TransformerLM) -> StoryEvaluation:
        """Measure a model on all of them."""
        return evaluate_stories(model, self.stories, self.end, self.token_bytes)


def time_step(config: TrainConfig) -> float:
    """Take the time of a step on this machine, in seconds, with a model that is thrown away."""
    model = build_model(config, torch.device("cpu"))
    step = TrainStep(model, make_optimizer(model, config.optimizer), max_grad_norm=1.0)
    ids = torch.randint(config.model.vocab_size, (config.batch_size, config.model.context_length + 1))
    batch = (ids[:, :-1], ids[:, 1:])
    with keep_freed_memory():  # as the loop has it
        step([batch])  # the first one warms up
        started = time.perf_counter()
        for _ in range(TIMED_STEPS):
            step([batch])
        return (time.perf_counter() - started) / TIMED_STEPS


def count_steps_left(run: Path, config: TrainConfig) -> int:
    """Tell how many steps are still to be taken: all of them, unless a run of this config was begun."""
    done = CheckpointFolder(run / "checkpoints").steps() if is_run_of(run, config) else []
    return (config.num_steps or 0) - (done[-1] if done else 0)


def train_model(
    folder: Path, plan: Plan, validation: Validation, encoded: Mapping[str, Any], console: Console
) -> TrainResult:
    """Train the model, or go on training it if the run in `folder` is one of this very config."""
    run = folder / RUN
    tokenizer = Tokenizer.load(folder / TOKENIZER)
    config = plan.train_config(folder, tokenizer.vocab_size)
    sampling = sampling_of(plan, validation.end)

    def probe(model: TransformerLM) -> Mapping[str, float]:
        return {"story_bits_per_byte": validation.measure(model).bits_per_byte}

    def sample(model: TransformerLM, step: int) -> str:
        (completion,) = Generator(model).generate([[validation.end]], sampling)
        return tokenizer.decode(completion.ids).strip() + "\n"

    def display(console: Console, title: str) -> FloorDisplay:
        return FloorDisplay(console, title, encoded["floor"], encoded["bytes_per_token"])

    if is_run_of(run, config):
        return resume(run, sample=sample, probe=probe, console=console, display=display)
    if run.exists():
        atomic.remove_folder(run)  # of an earlier plan; everything in the folder of the demo is the demo's
    return train(config, run, sample=sample, probe=probe, console=console, display=display)


def is_run_of(run: Path, config: TrainConfig) -> bool:
    """Say whether `run` is a run that was started with `config`."""
    absolute = dataclasses.replace(config, data=config.data.absolute())
    return (run / "config.json").is_file() and config_of(run) == absolute


def sampling_of(plan: Plan, end: int) -> SamplingConfig:
    """Return how stories are sampled: from the end token to the next one."""
    return SamplingConfig(
        max_new_tokens=plan.context_length,
        temperature=plan.temperature,
        top_p=plan.top_p,
        seed=plan.seed,
        stop_tokens=(end,),
    )


def sample_stories(folder: Path, plan: Plan, report: Report) -> Facts:
    """Let the model tell stories, and write them down as the storybook does."""
    tokenizer = Tokenizer.load(folder / TOKENIZER)
    end = tokenizer.special_tokens[END_OF_TEXT]
    generator = Generator(load_model(find_checkpoint(folder / RUN, which="last")), SAMPLES_AT_ONCE)
    texts: list[str] = []
    num_tokens = 0
    sampling = sampling_of(plan, end)
    for completion in generator.generate_many([[end]] * plan.num_samples, sampling, SAMPLES_AT_ONCE):
        texts.append(tokenizer.decode(completion.ids).strip())
        num_tokens += len(completion.ids)
        report("tell", len(texts), plan.num_samples, "stories")
    atomic.write_text(folder / SAMPLES, "".join(text + SEPARATOR for text in texts))
    return {"num_tokens": num_tokens}


def check_samples(folder: Path, report: Report) -> Facts:
    """Parse the sampled stories: which are sound, and where the others leave the language."""
    checked = check_file(
        folder / SAMPLES,
        training_path=folder / TRAIN,
        progress=lambda done, total: report("check", done, total, "bytes"),
    )
    stories = [dataclasses.asdict(story) for story in checked.stories]
    for story in stories:
        story["bits"] = story["bits"] if math.isfinite(story["bits"]) else None
    return {
        "sound_sentences": checked.sound_sentences,
        "well_formed": checked.well_formed,
        "consistent": checked.consistent,
        "copies": checked.copies,
        "stories": stories,
    }


def measure_model(folder: Path, validation: Validation) -> Facts:
    """Measure the trained model on whole stories, beside the floor."""
    model = load_model(find_checkpoint(folder / RUN, which="last"))
    found = validation.measure(model)
    gap, error = found.gap_to(validation.floor_bits)
    return {
        "bits_per_byte": found.bits_per_byte,
        "floor": found.bits_per_byte - gap,
        "gap": gap,
        "standard_error": error,
        "num_stories": len(validation.stories),
        "num_bytes": int(found.num_bytes.sum()),
    }

"""`bytewright generate`: generate text with the model of a run."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from bytewright.cli import console, options
from bytewright.corpus import END_OF_TEXT, SEPARATOR
from bytewright.errors import UsageError

if TYPE_CHECKING:
    from bytewright.generate import Generator, SamplingConfig
    from bytewright.tokenizer import Tokenizer

BATCH = 32
"""How many texts are generated at the same time."""


@dataclass(frozen=True, kw_only=True)
class Generate:
    """Continue a prompt with the model of a run, and print the text as it is generated.

    The text ends at a special token, at --max-new-tokens, or when the model's context is full, unless --slide
    is given. The same seed gives the same texts. Several texts are printed like a corpus: <|endoftext|> on a
    line of its own follows each text that the model ended. An empty line follows a text that was cut off;
    stderr states the reason.

    For example:
      bytewright generate runs/base --prompt 'Once upon a time'
      bytewright generate runs/base --prompt 'Once' --prompt 'The dog' --temperature 0.7 --top-p 0.9 --seed 3
      bytewright generate runs/base --count 100 > stories.txt
    """

    path: options.RunPath
    prompt: Annotated[options.Repeated, tyro.conf.arg(metavar="TEXT")] = ()
    """The text to continue; may be given several times. Without it, the model starts a new document."""
    count: int = 1
    """The number of texts for each prompt."""
    max_new_tokens: int = 256
    """The maximum number of new tokens; without --slide, prompt and text never exceed the model's context."""
    slide: bool = False
    """Continue past the context: predict each token from the last tokens that fit into it. This is slow."""
    temperature: float = 0.8
    """Values below 1 favour likely tokens; 0 always selects the most likely one."""
    top_k: Annotated[int | None, options.arg("INT", "(default: all)")] = None
    """Sample from the k most likely tokens only."""
    top_p: float = 0.95
    """Sample from the most likely tokens whose probabilities add up to this value."""
    min_p: float = 0.0
    """Sample from tokens whose probability is at least this share of the highest one."""
    sampler: Annotated[str | None, options.arg("NAME")] = None
    """A sampler that applies last, such as one of a plugin."""
    sampler_options: Annotated[tuple[str, ...], options.arg("KEY=VALUE …")] = ()
    """Options of the sampler, such as mass=0.9."""
    seed: int = 0
    """The seed of the random numbers; the same seed gives the same texts."""
    which: options.Which = "best"
    device: options.DeviceName = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """The precision of the computation; auto is that of the run on a GPU, and fp32 elsewhere."""
    plugin: options.Plugins = ()

    def run(self) -> None:
        """Generate and print the texts."""
        options.require_at_least(1, self.count, "--count")
        options.require_exists(self.path)
        from bytewright.generate import Generator, SamplingConfig
        from bytewright.generate.reference import check_prompts
        from bytewright.generate.text import encode_prompt, stop_tokens_of
        from bytewright.train.recipe import parse_override
        from bytewright.train.run_model import open_model
        from bytewright.train.setup import select_device

        saved = open_model(self.path, which=self.which)
        tokenizer = saved.run.tokenizer
        device = select_device(self.device)
        precision = saved.generation_precision(device) if self.precision == "auto" else self.precision
        model = saved.load(device=device, precision=precision)
        prompts = [(text, encode_prompt(tokenizer, text)) for text in self.prompt or ("",)]
        try:  # before any text is printed
            check_prompts(model.config, [ids for _, ids in prompts], slide=self.slide)
        except UsageError as error:
            if error.expected != model.config.context_length - 1:
                raise
            message = f"{error}, or continue past the context with --slide"
            raise UsageError(message, key=error.key, expected=error.expected, found=error.found) from None
        sampling = SamplingConfig(
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            sampler=self.sampler,
            sampler_options=dict(map(parse_override, self.sampler_options)),
            seed=self.seed,
            stop_tokens=stop_tokens_of(tokenizer),
            num_ids=tokenizer.vocab_size,
            slide=self.slide,
        )
        limits = {
            "length": f"reached --max-new-tokens, {self.max_new_tokens}",
            "context": f"filled the model's context of {model.config.context_length} tokens"
            " (--slide continues past it)",
        }
        prompts = [prompt for prompt in prompts for _ in range(self.count)]
        generator = Generator(model, min(BATCH, len(prompts)))
        if len(prompts) == 1:
            print_text(generator, tokenizer, *prompts[0], sampling, limits)
        else:
            print_texts(generator, tokenizer, prompts, sampling, limits)


def print_text(
    generator: Generator,
    tokenizer: Tokenizer,
    text: str,
    prompt: list[int],
    sampling: SamplingConfig,
    limits: Mapping[str, str],
) -> None:
    """Print one text as it is generated, and why it was cut off, if it was."""
    from bytewright.generate.text import stream_text

    def write(piece: str) -> None:
        console.write_model_text(piece)
        sys.stdout.flush()

    console.write_model_text(text)
    reason = stream_text(generator, tokenizer, prompt, sampling, write)
    print(flush=True)
    if reason in limits:
        console.stderr().print(f"the text was cut off: it {limits[reason]}")


def print_texts(
    generator: Generator,
    tokenizer: Tokenizer,
    prompts: Sequence[tuple[str, list[int]]],
    sampling: SamplingConfig,
    limits: Mapping[str, str],
) -> None:
    """Print several texts in the format of a corpus, and how many were cut off."""
    counts: Counter[str] = Counter()
    completions = generator.generate_many((ids for _, ids in prompts), sampling, BATCH)
    for (text, _), completion in zip(prompts, completions, strict=True):
        text = f"{text}{tokenizer.decode(completion.ids)}".strip("\n")
        console.write_model_text(text + (SEPARATOR if completion.reason == "stop" else "\n\n"))
        sys.stdout.flush()
        counts[completion.reason] += 1
    if counts["stop"] < len(prompts):
        reasons = ", ".join(f"{counts[name]} {limit}" for name, limit in limits.items() if counts[name])
        console.stderr().print(
            f"{len(prompts) - counts['stop']} of {len(prompts)} texts were cut off and have no {END_OF_TEXT}"
            f" after them: {reasons}"
        )

"""`bytewright generate`: generate text with the model of a run."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from bytewright.cli import console, options
from bytewright.corpus import END_OF_TEXT, SEPARATOR

BATCH = 32
"""How many texts are generated at the same time."""


@dataclass(frozen=True, kw_only=True)
class Generate:
    """Continue a prompt with the model of a run, and print the text as it is generated.

    The text ends at a special token, at --max-new-tokens, or when the model's context is full. The same seed
    gives the same texts. Several texts are printed like a corpus: <|endoftext|> on a line of its own follows
    each text that the model ended. An empty line follows a text that was cut off; stderr states the reason.

    For example:
      bytewright generate runs/base --prompt 'Once upon a time'
      bytewright generate runs/base --prompt 'Once' --prompt 'The dog' --temperature 0.7 --top-p 0.9 --seed 3
      bytewright generate runs/base --count 100 > stories.txt
    """

    path: options.RunPath

    prompt: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="TEXT")] = ()
    """The text to continue; may be given several times. Without it, the model starts a new document."""

    count: int = 1
    """The number of texts for each prompt."""

    max_new_tokens: int = 256
    """The maximum number of new tokens; prompt and text together never exceed the model's context."""

    temperature: float = 0.8
    """Values below 1 favour likely tokens; 0 always selects the most likely one."""

    top_k: int | None = None
    """Sample from the k most likely tokens only."""

    top_p: float = 0.95
    """Sample from the most likely tokens whose probabilities add up to this value."""

    min_p: float = 0.0
    """Sample from tokens whose probability is at least this share of the highest one."""

    seed: int = 0

    which: Literal["best", "last"] = "best"
    """The checkpoint of the run."""

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"

    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """The precision of the computation; auto is that of the run on a GPU, and fp32 elsewhere."""

    def run(self) -> None:
        """Generate and print the texts."""
        options.require_at_least(1, self.count, "--count")
        from bytewright.generate import Generator, SamplingConfig
        from bytewright.generate.reference import check_prompts
        from bytewright.generate.text import encode_prompt, stop_tokens_of, stream_text
        from bytewright.train.run import open_model
        from bytewright.train.setup import select_device

        saved = open_model(options.require_exists(self.path), which=self.which)
        tokenizer = saved.run.tokenizer
        device = select_device(self.device)
        precision = saved.generation_precision(device) if self.precision == "auto" else self.precision
        model = saved.load(device=device, precision=precision)
        given = [(text, encode_prompt(tokenizer, text)) for text in self.prompt or ("",)]
        check_prompts(model.config, [prompt for _, prompt in given])  # before any text is printed
        num_texts = self.count * len(given)
        sampling = SamplingConfig(
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            seed=self.seed,
            stop_tokens=stop_tokens_of(tokenizer),
            num_ids=tokenizer.vocab_size,
        )
        cut = {
            "length": f"reached --max-new-tokens, {self.max_new_tokens}",
            "context": f"filled the model's context of {model.config.context_length} tokens",
        }
        generator = Generator(model, min(BATCH, num_texts))
        if num_texts == 1:
            ((text, prompt),) = given
            console.write_model_text(text)

            def write(piece: str) -> None:
                console.write_model_text(piece)
                sys.stdout.flush()

            reason = stream_text(generator, tokenizer, prompt, sampling, write)
            print(flush=True)
            if reason in cut:
                console.stderr().print(f"the text was cut off: it {cut[reason]}")
            return
        prompts = (prompt for _, prompt in given for _ in range(self.count))
        texts = (text for text, _ in given for _ in range(self.count))
        counts: Counter[str] = Counter()
        for text, completion in zip(texts, generator.generate_many(prompts, sampling, BATCH), strict=True):
            text = f"{text}{tokenizer.decode(completion.ids)}".strip("\n")
            console.write_model_text(text + (SEPARATOR if completion.reason == "stop" else "\n\n"))
            sys.stdout.flush()
            counts[completion.reason] += 1
        if counts["stop"] < num_texts:
            reasons = ", ".join(
                f"{counts[reason]} {words}" for reason, words in cut.items() if counts[reason]
            )
            console.stderr().print(
                f"{num_texts - counts['stop']} of {num_texts} texts were cut off and have no {END_OF_TEXT}"
                f" after them: {reasons}"
            )

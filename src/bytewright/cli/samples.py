"""Text from a model: the glue between the generator, which knows ids only, and a run's tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bytewright.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bytewright.generate import Generator, SamplingConfig
    from bytewright.generate.generate import Reason
    from bytewright.model import TransformerLM
    from bytewright.tokenizer import Tokenizer
    from bytewright.train import TrainConfig

SAMPLE_TOKENS = 200


def make_sampler(config: TrainConfig) -> Callable[[TransformerLM, int], str] | None:
    """Make the function that writes a sample during training, or None if none are wanted.

    What it would choke on (no tokenizer, a prompt that fills the context) is refused now, not at step 1000.
    """
    if not config.sample_every:
        return None
    if config.data.tokenizer is None:
        raise UsageError("sample_every asks for samples of text, but data.tokenizer names no tokenizer")
    from bytewright.cli import inputs
    from bytewright.generate import SamplingConfig, generate
    from bytewright.generate.generate import check_prompts

    tokenizer = inputs.load_tokenizer(config.data.tokenizer)
    if tokenizer.vocab_size > config.model.vocab_size:
        raise UsageError(
            f"model.vocab_size is {config.model.vocab_size}, but the tokenizer {config.data.tokenizer} has"
            f" {tokenizer.vocab_size} tokens"
        )
    prompt = encode_prompt(tokenizer, config.sample_prompt)
    try:
        check_prompts(config.model, [prompt])
    except UsageError as error:
        raise UsageError(f"sample_prompt cannot be gone on from: {error}") from None
    sampling = SamplingConfig(
        max_new_tokens=SAMPLE_TOKENS,
        temperature=0.8,
        top_p=0.95,
        stop_tokens=stop_tokens_of(tokenizer),
        num_ids=tokenizer.vocab_size,
    )

    def sample(model: TransformerLM, step: int) -> str:
        (completion,) = generate(model, [prompt], sampling)
        return config.sample_prompt + tokenizer.decode(completion.ids) + "\n"

    return sample


def load_run_tokenizer(run: Path) -> Tokenizer:
    """Load the tokenizer that a run keeps, given the run or one of its checkpoints."""
    from bytewright.cli import inputs
    from bytewright.train.run_folder import run_of_checkpoint

    for folder in (run, run_of_checkpoint(run)):
        if folder and (folder / "tokenizer").is_dir():
            return inputs.load_tokenizer(folder / "tokenizer")
    raise UsageError(f"{run} keeps no tokenizer, so it has ids but no text; train with data.tokenizer set")


def encode_prompt(tokenizer: Tokenizer, text: str) -> list[int]:
    """Encode what to go on from; nothing means the beginning of a document, right after a special token."""
    if text:
        return tokenizer.encode(text)
    return list(stop_tokens_of(tokenizer)[:1]) or tokenizer.encode("\n")


def stop_tokens_of(tokenizer: Tokenizer) -> tuple[int, ...]:
    """List the special tokens: each ends a text."""
    return tuple(sorted(tokenizer.special_tokens.values()))


def stream_text(
    generator: Generator,
    tokenizer: Tokenizer,
    prompt: list[int],
    sampling: SamplingConfig,
    write: Callable[[str], object],
) -> Reason:
    """Pass text to `write` as it is generated, in whole characters; return why it ended."""
    from bytewright.generate.generate import find_reason

    decoder = tokenizer.stream_decoder()
    num_written = 0
    for (id,) in generator.stream([prompt], sampling):
        if id is not None:
            write(decoder.feed(id))
            num_written += 1
    write(decoder.finish())
    return find_reason(generator.decoder.config, prompt, num_written, sampling.max_new_tokens)

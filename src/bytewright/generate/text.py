"""Text from a model: prompts to ids, and ids to text, with a tokenizer.

This is the only module of `generate` that handles text. It imports the tokenizer, which needs the native
extension, when a function is called: a machine that trains on ids alone can import this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from bytewright.errors import UsageError
from bytewright.generate.generator import Generator, generate
from bytewright.generate.reference import Reason, check_prompts, find_reason
from bytewright.generate.sampling import SamplingConfig
from bytewright.model import ModelConfig, TransformerLM

if TYPE_CHECKING:
    from bytewright.tokenizer import Tokenizer, Vocabulary

SAMPLE_TOKENS = 200


def make_text_sampler(
    model: ModelConfig,
    vocabulary: Vocabulary,
    prompt: str,
    *,
    sampler: str = "top_p",
    sampler_options: Mapping[str, Any] | None = None,
) -> Callable[[TransformerLM, int], str]:
    """Return a function that generates a sample of text at a step of training, at temperature 0.8.

    A prompt that the model cannot continue raises `UsageError` here, before training starts.
    """
    try:
        from bytewright.tokenizer import Tokenizer
    except ImportError as error:
        raise UsageError(
            f"samples of text need the native extension, which cannot be imported ({error});"
            " install it, or set sample_every = 0",
            key="sample_every",
        ) from None
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    ids = encode_prompt(tokenizer, prompt)
    try:
        check_prompts(model, [ids])
    except UsageError as error:
        message = f"sample_prompt cannot be continued: {error}"
        raise UsageError(message, key="sample_prompt", found=error.found) from None
    sampling = SamplingConfig(
        max_new_tokens=SAMPLE_TOKENS,
        temperature=0.8,
        sampler=sampler,
        sampler_options=sampler_options or {},
        stop_tokens=stop_tokens_of(tokenizer),
        num_ids=tokenizer.vocab_size,
    )

    def sample(model: TransformerLM, step: int) -> str:
        was_training = model.training
        model.eval()  # a part of the user can behave differently, such as dropout
        try:
            (completion,) = generate(model, [ids], sampling)
        finally:
            model.train(was_training)
        return prompt + tokenizer.decode(completion.ids) + "\n"

    return sample


def encode_prompt(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of a prompt; an empty prompt becomes a special token, after which a document starts."""
    if text:
        return tokenizer.encode(text)
    return list(stop_tokens_of(tokenizer)[:1]) or tokenizer.encode("\n")


def encode_document(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of a text as the beginning of a document: after an end token and a line break."""
    return [*stop_tokens_of(tokenizer)[:1], *tokenizer.encode("\n" + text)]


def stop_tokens_of(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the ids of all special tokens; each of them ends a text."""
    return tuple(sorted(tokenizer.special_tokens.values()))


def stream_text(
    generator: Generator,
    tokenizer: Tokenizer,
    prompt: list[int],
    sampling: SamplingConfig,
    write: Callable[[str], object],
) -> Reason:
    """Pass text to `write` as it is generated, in whole characters; return why generation ended."""
    decoder = tokenizer.stream_decoder()
    num_written = 0
    for (id,) in generator.stream([prompt], sampling):
        if id is not None:
            write(decoder.feed(id))
            num_written += 1
    write(decoder.finish())
    return find_reason(generator.config, prompt, num_written, sampling)

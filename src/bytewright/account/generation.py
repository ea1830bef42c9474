"""The memory and the FLOPs of generation with a key/value cache.

With L layers, c the width of all key heads, B sequences of up to T tokens and s bytes per number:

    weights      s·P                 in the type of the computation
    cache        2·s·L·B·T·c         a key and a value for every layer, sequence and token
    logits       4·B·V               one row per sequence, in float32

A token costs two operations per weight of a matrix, and 4·d per layer for every earlier token. Reading the
weights and the cache limits the speed, not arithmetic. The size of the cache is exact: it equals
`generate.decoder.KeyValueCache.num_bytes`.
"""

from __future__ import annotations

from dataclasses import dataclass

from bytewright.account.flops import count_flops
from bytewright.account.parameters import count_parameters
from bytewright.account.tracing import costs_of
from bytewright.model.config import ModelConfig
from bytewright.model.costs import Precision, StepShape


@dataclass(frozen=True, kw_only=True)
class InferenceMemory:
    """The memory of generation, in bytes."""

    weights: int
    cache: int
    logits: int

    @property
    def total(self) -> int:
        """Weights, cache and logits."""
        return self.weights + self.cache + self.logits


def inference_memory(
    config: ModelConfig, *, batch_size: int = 1, num_tokens: int | None = None, precision: Precision = "bf16"
) -> InferenceMemory:
    """Return the memory for `batch_size` sequences of up to `num_tokens` tokens (default: the context).

    >>> from bytewright.account.shapes import find_preset
    >>> inference_memory(find_preset("gpt2-xl")).cache  # 2 numbers · 2 bytes · 48 · 1024 · 1600
    314572800
    """
    s = 2 if precision == "bf16" else 4
    length = config.context_length if num_tokens is None else num_tokens
    x = StepShape(config=config, batch_size=1, num_tokens=1, precision=precision)
    numbers = costs_of("attention", x).cached_numbers
    return InferenceMemory(
        weights=s * count_parameters(config).total,
        cache=s * config.num_layers * batch_size * length * numbers,
        logits=4 * batch_size * config.vocab_size,
    )


def flops_of_token(config: ModelConfig, position: int) -> int:
    """Return the FLOPs of one token after `position` cached tokens.

    Outside attention these are the products of a sequence of one token. In every layer, each of the
    `position + 1` keys costs 2·d for its score and 2·d for its value.

    >>> from bytewright.account.shapes import find_preset
    >>> xl = find_preset("gpt2-xl")
    >>> in_matrices = 50_257 * 1600 + 48 * (4 * 1600**2 + 3 * 1600 * 6400)
    >>> flops_of_token(xl, position=1023) == 2 * in_matrices + 48 * 4 * 1600 * 1024
    True
    """
    one = count_flops(config, num_tokens=1)
    if not one.attention_scores:  # an attention without a cache computes all tokens again
        return count_flops(config, num_tokens=position + 1).forward
    products = one.forward - one.attention_scores - one.attention_weighting
    return products + config.num_layers * 4 * config.d_model * (position + 1)

"""Models of every shape and choice, for hypothesis to draw."""

from __future__ import annotations

from typing import Any, get_args

from hypothesis import strategies as st

from bytewright.model import ModelConfig
from bytewright.model.config import PARTS, NormPlace


@st.composite
def model_configs(draw: st.DrawFn) -> ModelConfig:
    """Draw small models: all sizes at least 2, every option."""
    num_heads = draw(st.sampled_from([2, 3, 4, 6]))
    d_head = 2 * draw(st.integers(1, 6))
    return _choose(draw, num_heads, d_head, st.integers(2, 40), st.integers(2, 12), st.integers(2, 50))


@st.composite
def large_configs(draw: st.DrawFn) -> ModelConfig:
    """Draw models of sizes that people train."""
    num_heads = draw(st.sampled_from([2, 4, 8, 12, 16, 25]))
    d_head = draw(st.sampled_from([16, 32, 64, 128]))
    widths = st.sampled_from([2 * num_heads * d_head, 4 * num_heads * d_head])
    vocabularies = st.sampled_from([300, 5000, 10_000, 50_257])
    return _choose(draw, num_heads, d_head, vocabularies, st.sampled_from([64, 256, 512, 1024]), widths)


def _choose(
    draw: st.DrawFn,
    num_heads: int,
    d_head: int,
    vocabularies: st.SearchStrategy[int],
    contexts: st.SearchStrategy[int],
    widths: st.SearchStrategy[int],
) -> ModelConfig:
    divisors = [count for count in range(1, num_heads + 1) if num_heads % count == 0]
    fields: dict[str, Any] = {
        "vocab_size": draw(vocabularies),
        "context_length": draw(contexts),
        "d_model": num_heads * d_head,
        "num_layers": draw(st.integers(1, 3)),
        "num_heads": num_heads,
        "d_ff": draw(st.none() | widths),
        "norm": draw(st.sampled_from(get_args(NormPlace))),
        **{part.name: draw(st.sampled_from(part.registry.names())) for part in PARTS.values()},
        "tie_embeddings": draw(st.booleans()),
        "qk_norm": draw(st.booleans()),
        "num_kv_heads": draw(st.none() | st.sampled_from(divisors)),
    }
    return ModelConfig(**fields)

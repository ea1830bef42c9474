"""Where the FLOPs go as models and contexts grow: the shares of a forward pass over the GPT-2 family.

A projection costs a fixed amount per token and layer, d² or d·f; attention costs T·d more; the head costs
V·d once. So deeper and wider models spend less of their time in the head, and longer contexts more of it in
attention, from a few per cent to more than half.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bytewright.account.flops import FlopCount, count_flops
from bytewright.account.presets import GPT2_FAMILY, find_preset
from bytewright.model.config import ModelConfig

CONTEXTS = (1024, 16_384)


@dataclass(frozen=True, kw_only=True)
class Growth:
    """One model at one context: FLOPs of a forward pass and where they go."""

    name: str
    context_length: int
    flops: FlopCount

    def shares(self) -> Mapping[str, float]:
        """Shares by what a reader thinks of as one thing: attention's T² part in one, projections in one."""
        flops = self.flops
        parts = {
            "projections": flops.qkv_projections + flops.output_projection,
            "attention": flops.attention_scores + flops.attention_weighting,
            "feed-forward": flops.feed_forward,
            "head": flops.head,
        }
        return {name: part / flops.forward for name, part in parts.items()}


def growth(
    models: Mapping[str, ModelConfig] | None = None, contexts: Sequence[int] = CONTEXTS
) -> list[Growth]:
    """Count every model at every context; the GPT-2 family at 1,024 and 16,384 unless told otherwise.

    >>> [f"{it.name} {it.context_length}: {it.shares()['attention']:.0%}" for it in growth()][-2:]
    ['gpt2-xl 1024: 7%', 'gpt2-xl 16384: 55%']
    """
    models = models or {name: find_preset(name) for name in GPT2_FAMILY}
    return [
        Growth(
            name=name,
            context_length=context,
            flops=count_flops(dataclasses.replace(config, context_length=context)),
        )
        for name, config in models.items()
        for context in contexts
    ]

"""The next tokens of a batch whose rows have different sampling settings: fused counterpart of `sampling`.

`choose_by_row` chooses the tokens that `choose_tokens` chooses for each row alone, in one call and without
host synchronisation. It keeps the settings in tensors, so a CUDA graph can contain it. Each operation treats
every row separately: a token does not depend on the other rows, nor on their number. On an NVIDIA GPU, where
the sums of torch depend on the number of rows, the kernels of `model.kernels.sampling` draw the tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bytewright.errors import UsageError
from bytewright.generate.sampling import MIN_TEMPERATURE, NO_TOKEN, SamplingConfig, draw
from bytewright.generate.transfer import send
from bytewright.model import kernels
from bytewright.model.layers import at_least_float32

NO_LIMIT = 2**62
"""The `top_k` of a row that keeps all tokens."""


class SamplingKind(IntEnum):
    """How much work the choice of a token needs; a kind also chooses correctly for rows of a lower kind."""

    GREEDY = 0
    """The likeliest token, at temperature 0."""
    PLAIN = 1
    """A token drawn from all tokens."""
    FILTERED = 2
    """A token drawn from those that `top_k`, `top_p` and `min_p` keep."""


def kind_of(config: SamplingConfig) -> SamplingKind:
    """Return the kind of a request's sampling; other samplers than the built-in filters are rejected.

    >>> kind_of(SamplingConfig(temperature=0.0)), kind_of(SamplingConfig(top_p=0.9))
    (<SamplingKind.GREEDY: 0>, <SamplingKind.FILTERED: 2>)
    """
    if config.sampler is not None:
        message = f"the sampler {config.sampler!r} cannot be used in a batch of different requests"
        raise UsageError(message, key="sampler", found=config.sampler)
    if config.temperature == 0:
        return SamplingKind.GREEDY
    is_filtered = config.top_k is not None or config.top_p < 1 or config.min_p > 0
    return SamplingKind.FILTERED if is_filtered else SamplingKind.PLAIN


@dataclass(frozen=True)
class RowSettings:
    """The sampling settings of each row, on the device."""

    temperature: Float[Tensor, " rows"]
    top_k: Int[Tensor, " rows"]
    top_p: Float[Tensor, " rows"]
    min_p: Float[Tensor, " rows"]

    @classmethod
    def greedy(cls, num_rows: int, device: torch.device | str = "cpu") -> RowSettings:
        """Return settings with which every row chooses its likeliest token."""
        return cls(
            temperature=torch.zeros(num_rows, dtype=torch.float64, device=device),
            top_k=torch.zeros(num_rows, dtype=torch.long, device=device),
            top_p=torch.ones(num_rows, dtype=torch.float64, device=device),
            min_p=torch.zeros(num_rows, dtype=torch.float64, device=device),
        )

    @classmethod
    def of(cls, config: SamplingConfig, num_rows: int, device: torch.device | str) -> RowSettings:
        """Return the same settings for all rows."""
        settings = cls.greedy(num_rows, device)
        settings.write(torch.arange(num_rows, device=device), [config] * num_rows)
        return settings

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the temperature, `top_k`, `top_p` and `min_p` of all rows."""
        return self.temperature, self.top_k, self.top_p, self.min_p

    def write(self, rows: Int[Tensor, " chosen"], configs: Sequence[SamplingConfig]) -> None:
        """Write the settings of some rows."""
        self.write_values(rows, send(settings_values(configs), rows.device))

    def write_values(self, rows: Int[Tensor, " chosen"], values: Float[Tensor, "chosen 4"]) -> None:
        """Write the settings of some rows, as `settings_values` returns them."""
        temperature, top_p, min_p, top_k = values.unbind(dim=1)
        for tensor, column in ((self.temperature, temperature), (self.top_p, top_p), (self.min_p, min_p)):
            tensor.index_copy_(0, rows, column)
        self.top_k.index_copy_(0, rows, top_k.long())  # exact: a limit above 2⁵³ keeps all tokens anyway

    def first(self, num_rows: int) -> RowSettings:
        """Return the settings of the first rows, in the same memory."""
        return RowSettings(*(tensor[:num_rows] for tensor in self.tensors()))

    def at(self, rows: Int[Tensor, " chosen"]) -> RowSettings:
        """Return the settings of some rows."""
        return RowSettings(self.temperature[rows], self.top_k[rows], self.top_p[rows], self.min_p[rows])


def settings_values(configs: Sequence[SamplingConfig]) -> Float[Tensor, "rows 4"]:
    """Return the `settings_row` of each row, on the host."""
    return torch.tensor([settings_row(config) for config in configs], dtype=torch.float64).view(-1, 4)


def settings_row(config: SamplingConfig) -> tuple[float, float, float, int]:
    """Return the temperature, `top_p`, `min_p` and `top_k` of a row."""
    limit = NO_LIMIT if config.top_k is None else min(config.top_k, NO_LIMIT)
    return config.temperature, config.top_p, config.min_p, limit


def choose_by_row(
    logits: Float[Tensor, "rows vocab"],
    settings: RowSettings,
    uniforms: Float[Tensor, " rows"],
    kind: SamplingKind,
) -> Int[Tensor, " rows"]:
    """Return the next token of every row; `NO_TOKEN` where logits are not finite.

    `kind` is the highest kind of the rows whose tokens are used.
    """
    highest, likeliest = logits.max(dim=-1)  # NaN counts as the highest
    chosen = torch.where(highest.abs() < math.inf, likeliest, NO_TOKEN)
    if kind == SamplingKind.GREEDY:
        return chosen
    if kernels.on_gpu(logits):
        from bytewright.model.kernels import decoding_products, sampling

        num_ids = logits.shape[-1]
        largest = decoding_products.find_largest(logits, num_ids)
        ids = torch.empty(len(logits), dtype=torch.long, device=logits.device)
        sampling.draw_tokens(
            logits,
            largest,
            settings.tensors(),
            uniforms.contiguous(),
            ids,
            num_ids=num_ids,
            is_filtered=kind == SamplingKind.FILTERED,
        )
        return ids
    scores = at_least_float32(logits)
    gaps = scores - scores.amax(dim=-1, keepdim=True)
    # torch's softmax processes whole rows. A separate exp would process the batch as one vector, whose last
    # elements are rounded differently. A result could then depend on the index of its row.
    temperature = settings.temperature.clamp(min=MIN_TEMPERATURE).to(gaps.dtype)
    weights = torch.softmax(gaps / temperature.unsqueeze(-1), dim=-1)
    if kind == SamplingKind.FILTERED:
        weights = filter_by_row(weights, settings)
    return torch.where(settings.temperature == 0, chosen, draw(weights, uniforms))


def filter_by_row(weights: Float[Tensor, "rows vocab"], settings: RowSettings) -> Float[Tensor, "rows vocab"]:
    """Return the weights with 0 for tokens that the row's `top_k`, `top_p` and `min_p` do not keep.

    A row without filters is returned exactly as it is. The rest of a row is not normalised.
    """
    values, ids = weights.sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(values.shape[-1], device=values.device)
    kept = torch.where(ranks < settings.top_k.unsqueeze(-1), values, 0.0)
    mass = kept.cumsum(dim=-1)
    mass_before = mass.roll(1, dims=-1)
    mass_before[..., 0] = 0.0
    top_p = settings.top_p.unsqueeze(-1)
    in_nucleus = (top_p >= 1) | (mass_before < top_p * mass[..., -1:])
    is_likely = kept >= settings.min_p.unsqueeze(-1) * kept[..., :1]
    kept = torch.where(in_nucleus & is_likely, kept, 0.0)
    return torch.zeros_like(weights).scatter(-1, ids, kept)

"""The kernels that draw tokens equal the reference: on a GPU, or in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bytewright.generate import SamplingConfig
from bytewright.generate.row_sampling import RowSettings, SamplingKind, choose_by_row
from bytewright.generate.sampling import NO_TOKEN

pytest.importorskip("triton")
from bytewright.model.kernels import decoding_products, sampling

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, in the interpreter
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CONFIGS = [
    SamplingConfig(temperature=0.0),
    SamplingConfig(),
    SamplingConfig(temperature=0.3),
    SamplingConfig(top_k=1),
    SamplingConfig(top_k=5, temperature=1.5),
    SamplingConfig(top_p=0.5),
    SamplingConfig(top_p=0.9, top_k=10),
    SamplingConfig(min_p=0.2),
    SamplingConfig(top_k=60, top_p=0.8, min_p=0.05, temperature=2.0),
    SamplingConfig(temperature=1e-300),
    SamplingConfig(top_p=1e-6),
    SamplingConfig(top_k=10_000, top_p=0.999),
]
NUM_IDS = 1501


def choose(
    logits: Tensor, configs: list[SamplingConfig], uniforms: Tensor, *, is_filtered: bool = True
) -> list[int]:
    settings = RowSettings.greedy(len(configs), DEVICE)
    settings.write(torch.arange(len(configs), device=DEVICE), configs)
    ids = torch.zeros(len(configs), dtype=torch.long, device=DEVICE)
    largest = decoding_products.find_largest(logits.to(DEVICE), NUM_IDS)
    rows = settings.temperature, settings.top_k, settings.top_p, settings.min_p
    sampling.draw_tokens(
        logits.to(DEVICE), largest, rows, uniforms.to(DEVICE), ids, num_ids=NUM_IDS, is_filtered=is_filtered
    )
    chosen: list[int] = ids.tolist()
    return chosen


def draw_logits(num_rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return logits with many ties in bfloat16, more of them than ids, and uniform numbers."""
    generator = torch.Generator().manual_seed(num_rows)
    logits = 3 * torch.randn(num_rows, NUM_IDS + 40, generator=generator)
    return logits.to(dtype), torch.randint(2**23, (num_rows,), generator=generator) / 2**23


def choose_with_sort(logits: Tensor, configs: list[SamplingConfig], uniforms: Tensor) -> list[int]:
    """Return the tokens that `choose_by_row` chooses on a CPU."""
    settings = RowSettings.greedy(len(configs))
    settings.write(torch.arange(len(configs)), configs)
    chosen: list[int] = choose_by_row(logits[:, :NUM_IDS], settings, uniforms, SamplingKind.FILTERED).tolist()
    return chosen


@pytest.mark.parametrize(
    ("dtype", "configs"),
    [
        (torch.bfloat16, [CONFIGS[number] for number in (0, 1, 6, 8, 11)]),
        pytest.param(torch.bfloat16, CONFIGS, marks=pytest.mark.slow),
        pytest.param(torch.float32, CONFIGS, marks=pytest.mark.slow),
    ],
    ids=["bf16", "all-bf16", "all-fp32"],
)
def test_the_kernels_choose_the_tokens_of_the_reference(
    dtype: torch.dtype, configs: list[SamplingConfig]
) -> None:
    logits, uniforms = draw_logits(len(configs), dtype)
    logits[3, 7], logits[3, 9] = -0.0, 0.0
    expected = choose_with_sort(logits, configs, uniforms)
    assert choose(logits, configs, uniforms) == expected
    plain = choose(logits[:2], configs[:2], uniforms[:2], is_filtered=False)
    assert plain == expected[:2]


def test_filters_keep_the_first_of_equal_tokens() -> None:
    logits = torch.zeros(3, NUM_IDS + 3).bfloat16()
    logits[:, 1400] = 1.0
    configs = [SamplingConfig(top_k=8), SamplingConfig(top_k=10, top_p=0.5), SamplingConfig(top_k=1300)]
    uniforms = torch.tensor([0.25, 0.25, 0.75])
    assert choose(logits, configs, uniforms) == choose_with_sort(logits, configs, uniforms)


def test_rows_with_logits_that_are_not_finite_choose_no_token() -> None:
    logits, uniforms = draw_logits(4, torch.bfloat16)
    logits[0, 5], logits[1, 1500], logits[2], logits[3, 9:] = torch.nan, torch.inf, -torch.inf, -torch.inf
    configs = [SamplingConfig()] * 4
    expected = choose_with_sort(logits, configs, uniforms)
    assert expected[:3] == [NO_TOKEN] * 3
    assert choose(logits, configs, uniforms, is_filtered=False) == expected


def test_a_row_does_not_depend_on_the_others() -> None:
    logits, uniforms = draw_logits(2, torch.bfloat16)
    configs = [CONFIGS[8], CONFIGS[5]]
    together = choose(logits, configs, uniforms)
    assert choose(logits[1:], configs[1:], uniforms[1:]) == together[1:]

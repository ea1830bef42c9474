"""The shapes that a config tells are those of the model that it builds."""

from __future__ import annotations

import pytest

from bytewright.model import TransformerLM
from bytewright.model.shapes import weight_shapes
from model_choices import CHOICES, small_config


@pytest.mark.parametrize("implementation", ["fused", "reference"])
@pytest.mark.parametrize("choice", CHOICES)
def test_every_weight_has_the_name_and_the_shape_that_its_config_tells(
    choice: str, implementation: str
) -> None:
    for d_ff in (None, 48):
        config = small_config(choice, implementation=implementation, d_ff=d_ff)
        weights = TransformerLM(config).state_dict()
        assert weight_shapes(config) == {name: tuple(weight.shape) for name, weight in weights.items()}

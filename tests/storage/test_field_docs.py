"""Descriptions of dataclass fields are available at run time."""

from __future__ import annotations

import pydoc
from dataclasses import dataclass

import pytest

from bytewright.model import ModelConfig
from bytewright.storage.config_reader import describe_fields, document_fields
from bytewright.train import BudgetConfig, DataConfig, OptimizerConfig, ScheduleConfig, TrainConfig


@document_fields
@dataclass(frozen=True, kw_only=True)
class Owl:
    """A bird."""

    name: str = "Mo"
    """What it is called,
    by its friends."""
    age: int = 3
    wings: int = 2
    """Two, as a rule."""

    def hoot(self) -> str:
        """Make a sound."""
        return "hoo"


def test_each_field_has_its_own_description() -> None:
    assert describe_fields(Owl) == {"name": "What it is called, by its friends.", "wings": "Two, as a rule."}
    assert Owl.__doc__ == "A bird.\n\nname: What it is called, by its friends.\nwings: Two, as a rule."


def test_a_class_without_source_keeps_its_docstring() -> None:
    made: type = document_fields(type("Made", (), {"__doc__": "Out of nothing.", "__module__": "nowhere"}))
    assert made.__doc__ == "Out of nothing."


@pytest.mark.parametrize(
    "config", [TrainConfig, ModelConfig, DataConfig, BudgetConfig, OptimizerConfig, ScheduleConfig]
)
def test_help_explains_every_field_of_a_config(config: type) -> None:
    sentences = describe_fields(config)
    assert sentences.keys() == config.__dataclass_fields__.keys()  # type: ignore[attr-defined]
    shown = " ".join(pydoc.plain(pydoc.render_doc(config)).replace("|", " ").split())
    assert all(f"{name}: {sentence}" in shown for name, sentence in sentences.items())

"""Parts are registered once, looked up by name, and attributed to the plugin that registered them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bytewright.errors import UsageError
from bytewright.registry import Registry, registering_from


@pytest.fixture
def shapes() -> Registry:
    registry = Registry("shape", "bytewright.errors")
    registry.register("round")(lambda: "o")
    return registry


def test_a_registered_part_is_found_by_its_name(shapes: Registry) -> None:
    assert shapes["round"]() == "o"
    assert "round" in shapes
    assert list(shapes) == ["round"]
    assert shapes.plugin_of("round") is None


def test_an_unknown_name_is_answered_with_the_closest_one(shapes: Registry) -> None:
    with pytest.raises(UsageError, match="unknown shape 'rund'; did you mean round\\?") as caught:
        shapes["rund"]
    assert caught.value.found == "rund"


@pytest.mark.parametrize("name", ["round", "", "Round", "a b", "a.b", "1st"])
def test_a_taken_or_malformed_name_is_rejected(shapes: Registry, name: str) -> None:
    with pytest.raises(UsageError):
        shapes.register(name)
    assert list(shapes) == ["round"]


def test_a_part_is_attributed_to_the_plugin_being_loaded(shapes: Registry) -> None:
    with registering_from(Path("lab.py")):
        shapes.register("square")(lambda: "#")
    shapes.register("flat")(lambda: "_")
    assert [shapes.plugin_of(name) for name in shapes] == [None, Path("lab.py"), None]


def test_a_removed_part_can_be_registered_again(shapes: Registry) -> None:
    shapes.remove("round")
    assert "round" not in shapes
    shapes.register("round")(lambda: "O")
    assert shapes["round"]() == "O"

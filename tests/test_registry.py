"""Parts are registered once, looked up by name, and attributed to the plugin that registered them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bytewright.errors import UsageError
from bytewright.registry import Registry, accepting_unknown_parts


@pytest.fixture
def shapes() -> Registry:
    registry = Registry("shape", "bytewright.errors", "drawing.shape")
    registry.register("round")(lambda: "o")
    return registry


def test_a_registered_part_is_found_by_its_name(shapes: Registry) -> None:
    assert shapes["round"]() == "o"
    assert "round" in shapes
    assert list(shapes) == ["round"]


def test_the_error_about_an_unknown_name_suggests_the_closest_one(shapes: Registry) -> None:
    with pytest.raises(UsageError, match=r"unknown shape 'rund'; did you mean round\? \(plugins") as caught:
        shapes["rund"]
    assert caught.value.found == "rund"


@pytest.mark.parametrize("name", ["round", "", "Round", "a b", "a.b", "1st", len])
def test_a_taken_or_malformed_name_is_rejected(shapes: Registry, name: Any) -> None:
    with pytest.raises(UsageError):
        shapes.register(name)
    assert list(shapes) == ["round"]


@pytest.mark.parametrize("part", [42, None, "square", [len]])
def test_a_part_that_cannot_be_called_is_rejected(shapes: Registry, part: Any) -> None:
    with pytest.raises(UsageError) as caught:
        shapes.register("square")(part)
    assert caught.value.found == part
    assert list(shapes) == ["round"]


def test_a_part_is_attributed_to_the_file_that_registers_it(shapes: Registry, tmp_path: Path) -> None:
    lab = tmp_path / "lab.py"
    exec("shapes.register('square')(print)", {"shapes": shapes, "__name__": "lab", "__file__": str(lab)})
    here = Path(__file__).resolve()
    assert [shapes.plugin_of(name) for name in shapes] == [here, lab.resolve()]
    assert shapes.names_from(here) == ("round",)


def test_built_in_and_interactive_parts_belong_to_no_file(shapes: Registry) -> None:
    register = "shapes.register(name)(print)"
    exec(register, {"shapes": shapes, "name": "built_in", "__name__": "bytewright.model", "__file__": "a.py"})
    exec(register, {"shapes": shapes, "name": "interactive", "__name__": "__main__"})
    assert shapes.plugin_of("built_in") is shapes.plugin_of("interactive") is None


def test_unknown_names_are_accepted_only_where_parts_are_not_used(shapes: Registry) -> None:
    with accepting_unknown_parts():
        assert "square" in shapes
        with pytest.raises(UsageError):
            shapes["square"](side=2)
    assert "square" not in shapes
    assert list(shapes) == ["round"]


def test_a_removed_part_can_be_registered_again(shapes: Registry) -> None:
    shapes.remove("round")
    assert "round" not in shapes
    shapes.register("round")(lambda: "O")
    assert shapes["round"]() == "O"

"""Grammars that could be ambiguous or endless are rejected."""

from __future__ import annotations

import pytest
from small_world import TEXT

from bytewright.corpus.worldbook.notation import read_world_grammar
from bytewright.errors import FormatError


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("    2 slept", "    2 sat down", "can begin with 'sat'"),
        ("    3 Look at {person}.", "    3 {person} looked.", "begins with a slot"),
        ("    3 Look at {person}.", "    3 Here is nobody.", "can begin with 'Here is '"),
        ("    owl, fox", "    owl, fox, owl", "twice"),
        ("    hill, mill", "    hill, hill top", "its beginning"),
        ("on the {where=place}.", "on the {where=place}s.", "must be followed by"),
        ("{nest tale} That was all.", "{tale} That was all.", "without nest"),
        ("    3 Once {a animal}", "    3 Once {nest tale} {a animal}", "every alternative of tale nests"),
        ("{there=place-where}", "{there=animal-where}", "must differ"),
        ("    2 slept", "    2 slept {nowhere.else}", "not defined"),
        ("    2 slept", "    2 sle|pt", "unmatched"),
        ("    2 slept", "    2 sl{ept", "unmatched"),
        ("rule sums\n", "rule extra\n    Nothing.\nrule sums\n", "unused"),
        ("    1 sums", "    1 songs", "not defined"),
    ],
)
def test_a_mistake_is_rejected(old: str, new: str, problem: str) -> None:
    assert TEXT.count(old) == 1
    with pytest.raises(FormatError, match=problem):
        read_world_grammar(TEXT.replace(old, new))

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
        ("    3 Look at {person}.", "    3 {people} Look.", "before any text: people"),
        ("    2 Listen to the {animal}. {nest", "    2 {nest", "before any text: tale"),
        ("    3 Once {a animal}", "    3 Once {nest tale} {a animal}", "every alternative of tale nests"),
        ("{there=place-where}", "{there=animal-where}", "must differ"),
        ("    2 slept", "    2 slept {nowhere.else}", "not defined"),
        ("    2 slept", "    2 sle|pt", "unmatched"),
        ("    2 slept", "    2 sl{ept", "unmatched"),
        ("rule sums\n", "rule extra\n    Nothing.\nrule sums\n", "unused"),
        ("    1 sums", "    1 songs", "not defined"),
        ("    max_depth 1", "    max_depth one", "line 4: expected a limit such as max_depth 3"),
        ("    max_depth 1", "    max_death 1", "line 4: expected a limit"),
        ("    max_depth 1\n", "", "the limit max_depth is missing"),
        ("    trade\n", "    trades\n", "'trades' is not one of trade, animal"),
        ("    3 move", "    3 moves", "'moves' is not one of introduce, move, ask"),
        ("words trade\n    baker, engraver", "range trade\n    1600", "expected a range such as 1600-1855"),
        ("words trade\n    baker, engraver", "range trade\n    9-3", "expected a range such as 1600-1855"),
        ("left the {where}", "left the {wherever}", "no rule, lexicon or variable has the name wherever"),
        ("{there=place-where}", "{there=place-when}", "has the name when"),
        ("words name", "words names", "need the lexicons thing and name"),
    ],
)
def test_a_mistake_is_rejected(old: str, new: str, problem: str) -> None:
    assert TEXT.count(old) == 1
    with pytest.raises(FormatError, match=problem):
        read_world_grammar(TEXT.replace(old, new))

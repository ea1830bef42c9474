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
        ("    1 ask\n", "", "a rule and a weight each"),
        ("pairs thing", "zipf thing", "equal weights"),
        ("    max_things 2", "    max_things 3", "thing needs at least 4 words, but has 3"),
        ("    Ada, Bo", "    Ada", "name needs at least 2 words, but has 1"),
        ("    max_things 2", "    max_things 0", "max_things must be at least 1"),
        ("    stop_weight 2", "    stop_weight 0", "stop_weight must be at least 1"),
        ("    max_depth 1", "    max_depth 99", "deep; the limit is 200"),
        ("    hill, mill", "    hill", "place has one word"),
        ("    sat\n", "    sat by {where=name}\n", "where is drawn from place and name"),
        ("{#*1-2}", "{#*2-1}", "a range of numbers is empty"),
        ("Look at {person}.", "Look at the {thing.old} there.", "Thing.*old.* may only be used in move, ask"),
        ("Look at {person}.", "Look at the {thing} there.", "Thing.*same.* may only be used in move, ask"),
        ("Look at {person}.", "Look at {holder} there.", "Holder.*present.* may only be used in move, ask"),
        ("Look at {person}.", "Look at {holder.next} there.", "Holder.*next.* may only be used in move, ask"),
        ("Look at {person}.", "Look at {a thing.new} there.", "Thing.*new.* in the rule introduce"),
        ("Look at {person}.", "Look at {holder.first} there.", "Holder.*first.* in the rule introduce"),
        ("    1 Enough.", "    1 Enough. {move}", "may only be used in move, ask"),
        ("    Now {holder.first}", "    Now the {thing.old} of {holder.first}", "but is in introduce"),
        ("    Who had the", "    Who had {a thing.new} and the", "but is in ask"),
        (
            "had {a thing.new}.\n",
            "had {a thing.new}.\n    So {holder.first} had {a thing.new}. {nest x}\nrule x\n    Ah {turn}\n",
            "Turn.* may only be used outside the rules of turns, but is in x",
        ),
        ("    Now {holder.first} had {a thing.new}.", "    Now {holder.first} had it.", "needs {thing.new}"),
    ],
)
def test_a_mistake_is_rejected(old: str, new: str, problem: str) -> None:
    assert TEXT.count(old) == 1
    with pytest.raises(FormatError, match=problem):
        read_world_grammar(TEXT.replace(old, new))

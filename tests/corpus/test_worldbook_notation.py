"""Grammars that could be ambiguous or endless are rejected."""

from __future__ import annotations

import re
from collections import Counter
from importlib import resources
from itertools import islice
from pathlib import Path

import pytest
from small_world import SMALL, TEXT

from bytewright.corpus import worldbook
from bytewright.corpus.worldbook import Worldbook
from bytewright.corpus.worldbook.book import GRAMMAR_FILE
from bytewright.corpus.worldbook.fused import make_writer
from bytewright.corpus.worldbook.notation import read_world_grammar
from bytewright.corpus.worldbook.template_parts import show_part
from bytewright.errors import FormatError
from rejection import rejects

GRAMMAR = resources.files(worldbook).joinpath(GRAMMAR_FILE).read_text()


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("    2 slept", "    2 sat down", "can begin with 'sat'"),
        ("    3 Look at {person}.", "    3 {person} looked.", "begins with a slot"),
        ("    3 Look at {person}.", "    3 Here is nobody.", "can begin with 'Here is '"),
        ("    owl, fox", "    owl, fox, owl", "twice"),
        ("    hill, mill", "    hill, hill top", "its beginning"),
        ("on the {where=place}.", "on the {where=place}s.", "{where=place} must be followed by a space"),
        ("{nest tale} That was all.", "{tale} That was all.", "without nest"),
        ("    3 Look at {person}.", "    3 {people} Look.", "before any text: people"),
        ("    2 Listen to the {animal}. {nest", "    2 {nest", "before any text: tale"),
        (
            "    3 Once {a animal}",
            "    3 Once {nest tale} {a animal}",
            "every alternative of the rule tale nests",
        ),
        ("{there=place-where}", "{there=animal-where}", "{there=animal-where} must differ from where"),
        ("    2 slept", "    2 slept {nowhere.else}", "not defined"),
        ("    2 slept", "    2 sle|pt", "unmatched"),
        ("    2 slept", "    2 sl{ept", "unmatched"),
        ("rule sums\n", "rule extra\n    Nothing.\nrule sums\n", "the rule extra is not used"),
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
        ("    hill, mill", "    hill", "{there=place-where} must differ from where, but place has one word"),
        (
            "    sat\n",
            "    sat by {where=name}\n",
            "{where=name} draws a word of name, but where has words of place",
        ),
        ("{#*1-2}", "{#*2-1}", "{#*2-1} is an empty range of numbers"),
        ("Look at {person}.", "Look at the {thing.old} there.", "{thing.old} may only be used in move, ask"),
        ("Look at {person}.", "Look at the {thing} there.", "{thing} may only be used in move, ask"),
        ("Look at {person}.", "Look at {holder} there.", "{holder} may only be used in move, ask"),
        ("Look at {person}.", "Look at {holder.next} there.", "{holder.next} may only be used in move, ask"),
        (
            "Look at {person}.",
            "Look at {a thing.new} there.",
            "{a thing.new} may only be used in the rule introduce",
        ),
        (
            "Look at {person}.",
            "Look at {holder.first} there.",
            "{holder.first} may only be used in the rule introduce",
        ),
        ("    1 Enough.", "    1 Enough. {move}", "may only be used in move, ask"),
        (
            "    Now {holder.first}",
            "    Now the {thing.old} of {holder.first}",
            "in the rule introduce, {thing.old} may only be used in move, ask",
        ),
        (
            "    Who had the",
            "    Who had {a thing.new} and the",
            "in the rule ask, {a thing.new} may only be used in the rule introduce",
        ),
        (
            "had {a thing.new}.\n",
            "had {a thing.new}.\n    So {holder.first} had {a thing.new}. {nest x}\nrule x\n    Ah {turn}\n",
            "in the rule x, {turn} may only be used outside the rules of turns",
        ),
        ("    Now {holder.first} had {a thing.new}.", "    Now {holder.first} had it.", "needs {thing.new}"),
        ("Look at {person}.", "Look at {who=person}.", "{who=person} is not defined; expected {person}"),
        ("Look at {person}.", "Look at {a person}.", "{a person} is not defined; expected {person}"),
        ("{sat}", "{sat-where}", "{sat-where} is not defined; expected {sat}"),
        ("{sat}", "{Sat}", "{Sat} is not defined; expected {sat}"),
        ("{a animal}", "{A animal}", "{A animal} is not defined; expected {a animal}"),
    ],
)
def test_a_mistake_is_rejected(old: str, new: str, problem: str) -> None:
    assert TEXT.count(old) == 1
    with pytest.raises(FormatError, match=re.escape(problem)):
        read_world_grammar(TEXT.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "section", "problem"),
    [
        ("    owl, fox", "    owl, fox, owl", "zipf animal", "'owl' twice"),
        ("    max_things 2", "    max_things 0", "    max_things 0", "max_things must be at least 1"),
        ("    max_depth 1", "    max_depth 99", "    max_depth 99", "reduce max_depth"),
        ("    1 ask\n", "", "turns turns", "a rule and a weight each"),
        ("    1 sums", "    1 songs", "    1 songs", "rule songs is not defined"),
        ("{nest tale}", "{nest fable}", "    2 Listen to the", "rule fable is not defined"),
        ("    1 Enough.", "    1 Enough. (A|Ab)", "    1 Enough. (A|Ab)", "a choice (…|…) of the rule rest"),
        (
            "    1 Enough.",
            "    1 Enough. (|A)",
            "    1 Enough. (|A)",
            "between parentheses and bars is empty",
        ),
        (
            "    2 slept",
            "    2 sat down",
            "    2 sat down",
            "two alternatives of the rule sat can begin with",
        ),
        ("    3 Look at", "    3 {person} saw", "    3 {person} saw", "but one begins with a slot"),
        ("    2 slept", "    2 slept {where}", "    2 slept {where}", "{where} must come after {where=…}"),
        ("words place\n    hill, mill", "join place\n    Bird", "    Bird", "two lists of halves"),
        ("    tin + cup bell ring", "    tin + cup + bell", "    tin + cup + bell", "two lists of halves"),
        ("    hill, mill", "    ,", "    ,", "expected words separated by one comma each, found ','"),
        ("    hill, mill", "    hill,, mill", "    hill,,", "expected words separated by one comma each"),
        ("    2 slept", f"    {2**32} slept", f"    {2**32}", "the sum 4294967297; the limit is 4294967296"),
        ("    1 tale", f"    {2**64} tale", "genres genres", "the weights of genres have the sum"),
        ("    3 move", f"    {2**64} move", "turns turns", "the weights of turns have the sum"),
    ],
)
def test_an_error_names_the_file_and_the_line(old: str, new: str, section: str, problem: str) -> None:
    assert TEXT.count(old) == 1
    text = TEXT.replace(old, new)
    line = next(n for n, line in enumerate(text.splitlines(), 1) if line.startswith(section))
    with rejects(FormatError, path=Path("my.grammar")) as caught:
        read_world_grammar(text, "my.grammar")
    assert str(caught.value).startswith(f"my.grammar, line {line}: ")
    assert problem in str(caught.value)


def test_an_error_about_something_missing_names_the_file() -> None:
    with rejects(FormatError, path=Path("my.grammar")) as caught:
        read_world_grammar(TEXT.replace("words name", "words names"), "my.grammar")
    assert str(caught.value) == "my.grammar: turns need the lexicons thing and name"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("Once {a animal}", "Once {a animal} left the {where}", "{where} must come after {where=…}"),
        ("Listen to the {animal}", "Listen to the {Where}", "{Where} must come after {where=…}"),
        (
            "{sat} on the {where=place}",
            "{there=place-where} {sat} on the {where=place}",
            "{there=place-where}",
        ),
        ("    sat\n", "    sat by {where=place}, or\n", ""),
        ("on the {where=place}", "(at|on the {where=place})", "{where} must come after"),
        ("on the {where=place}", "(at {where=place}|on {where=place})", ""),
        ("    1 Enough.", "    1 Enough, {person.he}.", "{person.he} must come after {person}"),
        ("Here is {person},", "Here is", "{a person.trade} must come after {person}"),
        ("Here is {person},", "Here is {person.other},", "{person.other} must come after {person}"),
        ("Here is {person},", "Here is {person.name},", "{person.name} must come after {person}"),
        ("{nest tale} That", "{where=place} {nest tale} That", ""),
        ("Enough.", "Enough {found=place}.", ""),
        ("Good night.", "Good night, {found}. {found=place}.", "{found} must come after"),
        ("    Now {holder.first} had", "    Now at {found=place}, {holder.first} had", ""),
        ("    Who had the", "    Who at {found=place}, {found}, had the", ""),
        ("Good night.", "Good night, {person}, {person.Trade}.", ""),
    ],
)
def test_words_and_people_must_be_drawn_before_they_are_mentioned(old: str, new: str, problem: str) -> None:
    assert TEXT.count(old) == 1
    text = TEXT.replace(old, new)
    if not problem:
        book = Worldbook(SMALL.world, read_world_grammar(text))
        for document in islice(book.documents("train", 1), 200):
            assert book.parse(document.text) == document.derivation
        return
    with pytest.raises(FormatError, match=re.escape(problem)):
        read_world_grammar(text)


def test_a_word_drawn_by_every_turn_counts_as_drawn_and_one_of_some_turns_does_not() -> None:
    text = TEXT.replace("    Now ", "    Now at {found=place}, ").replace(
        "    The ", "    The {found=place} and the "
    )
    text = text.replace("Good night.", "Good night, {found}.")
    with pytest.raises(FormatError, match=re.escape("in the rule rest, {found} must come after")):
        read_world_grammar(text)
    read_world_grammar(text.replace("    Who ", "    Who at {found=place}, "))


def test_results_of_calculations_fit_into_64_bits() -> None:
    """{times} multiplies by 2^20 - 1 twice, in a rule of its own and with a result of 9 before it."""
    text = TEXT.replace("{#*1-2} times, less {#-1-1}", "{#+1-1} {times} {last}, and less {#-0-1}")
    text += "rule times\n    by {#*0-1048575} and {#*1-1048575}\nrule last\n    by {#*0-{high}}\n"
    highest = (2**63 - 2) // (9 * (2**20 - 1) ** 2)
    book = Worldbook(SMALL.world, read_world_grammar(text.replace("{high}", str(highest))))
    written, _ = make_writer(book.machine).write(0, 1, 0, 200, b"")
    assert written.decode() == "".join(each.text for each in islice(book.documents("train", 1), 200))
    for high, times in ((highest + 1, "{times}"), (1, "{times} {times}")):
        with pytest.raises(FormatError, match="which must be less than 2\\^63"):
            read_world_grammar(text.replace("{high}", str(high)).replace("{times}", times))


def test_slots_are_shown_as_the_grammar_writes_them() -> None:
    for text, grammar in ((TEXT, SMALL.grammar), (GRAMMAR, Worldbook().grammar)):
        rules = text[text.index("\nrule ") :]
        written = Counter(re.findall(r"{[^}]*}", re.sub(r"\s+", " ", re.sub(r" #.*", "", rules))))
        parts = [part for rule in grammar.rules.values() for each in rule.alternatives for part in each.parts]
        shown = Counter(show_part(part, grammar.facts) for part in parts if not isinstance(part, str))
        del shown["(…|…)"]
        assert shown == written

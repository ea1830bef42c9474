"""Changes to the beginning of what a template gives: an article, a capital letter, a space.

`{a thing}` must give "a kite" but "an umbrella", whatever comes first, be it literal text, a variable or
another rule. So the change travels to the first words: into the text, into the forms of a mention, or into a
copy of the rule that is called, kept under the rule's name with a mark before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from bytewright.corpus.storybook.grammar import Alternative, Call, Choice, Mention, Part, calls_of


def article(words: str) -> str:
    """Choose between "a" and "an" by the sound that the first letters make.

    >>> [article(words) for words in ("owl", "fox", "unicorn", "honest", "old goat", "one-eyed cat")]
    ['an', 'a', 'a', 'an', 'an', 'a']
    """
    if re.match(r"uni[a-z]*(orn|form)|use|one\b|eu", words, re.IGNORECASE):
        return "a"
    return "an" if re.match(r"[aeiou]|hour|honest", words, re.IGNORECASE) else "a"


def with_article(words: str) -> str:
    """Put the indefinite article before words."""
    return f"{article(words)} {words}"


def with_capital(words: str) -> str:
    """Make the first letter a capital and leave the others as they are."""
    return words[:1].upper() + words[1:]


def with_space(words: str) -> str:
    """Put a space before words."""
    return f" {words}"


ARTICLE, CAPITAL, SPACE = "&", "^", " "
CHANGES: Mapping[str, Callable[[str], str]] = {
    ARTICLE: with_article,
    CAPITAL: with_capital,
    SPACE: with_space,
}
"""Each change by its mark."""


def change(part: Part, mark: str) -> Part:
    """Change the beginning of one part.

    >>> change("owl", ARTICLE), change(Mention(0, ("he", "she")), CAPITAL), change(Call("end"), SPACE)
    ('an owl', Mention(variable=0, forms=('He', 'She')), Call(rule=' end'))
    """
    if isinstance(part, str):
        return CHANGES[mark](part)
    if isinstance(part, Mention):
        return Mention(part.variable, tuple(map(CHANGES[mark], part.forms)))
    return Call(f"{mark}{part.rule}")


def original_name(rule: str) -> str:
    """Give the name of a rule as it stands in the grammar, without the marks of changes."""
    return rule.lstrip("".join(CHANGES))


def add_changed_rules(rules: dict[str, Choice], may_be_empty: Iterable[str]) -> str | None:
    """Add the copies of rules that are called with a mark; name a rule that cannot be changed, if any.

    A rule with an empty alternative has no beginning that could be changed. Those in `may_be_empty` can yet
    stand after a space: the space then goes with the words.
    """
    allowed = {f"{SPACE}{name}" for name in may_be_empty}
    options = [option for rule in rules.values() for option in rule.alternatives]
    wanted = [name for option in options for name in calls_of(option.parts)]
    while wanted:
        name = wanted.pop()
        if name in rules:
            continue
        original = rules.get(name[1:])
        if original is None:  # changed twice: first make the one that is changed once
            wanted += [name, name[1:]]
            continue
        if name not in allowed and not all(option.parts for option in original.alternatives):
            return name[1:]
        changed = tuple(_changed(option, name[0]) for option in original.alternatives)
        rules[name] = Choice(name, changed)
        wanted += [called for option in changed for called in calls_of(option.parts)]
    return None


def _changed(option: Alternative, mark: str) -> Alternative:
    if not option.parts:
        return option
    return Alternative(option.weight, option.guard, (change(option.parts[0], mark), *option.parts[1:]))

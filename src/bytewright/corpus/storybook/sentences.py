"""Where a sentence ends, in a text and in a template alike.

A sentence ends with a full stop, a question mark or an exclamation mark outside quotation marks, or with a
closing quotation mark after one of these, unless the text goes on in lower case: `"Oh no!" cried the owl.` is
one sentence, and so is a speech of several sentences. A line end always ends a sentence.

The templates of single sentences are cut out of the grammar's beats by the same rule, so that a sentence can
be recognised by itself, whatever the story around it.
"""

from __future__ import annotations

from collections.abc import Sequence

from bytewright.corpus.storybook.grammar import Call, Grammar, Part, Parts

ENDS = frozenset(".!?")


def split_sentences(text: str) -> list[tuple[int, int]]:
    """Find where the sentences of a text begin and end.

    >>> text = 'It was late. "Go home! Now!" said the owl.'
    >>> [text[start:end] for start, end in split_sentences(text)]
    ['It was late.', '"Go home! Now!" said the owl.']
    """
    found: list[tuple[int, int]] = []
    start = 0
    quoted = False
    for at, character in enumerate(text):
        if character == "\n":
            quoted = False
        elif character == '"':
            quoted = not quoted
        if character == "\n" or (not quoted and _ends_here(text, at)):
            found.append((start, at if character == "\n" else at + 1))
            start = at + 1
            while start < len(text) and text[start] == " ":
                start += 1
    found.append((start, len(text)))
    return [(start, end) for start, end in found if start < end]


def _ends_here(text: str, at: int) -> bool:
    """Tell whether the character outside quotation marks, or closing them, is the last of a sentence."""
    after = text[at + 1 : at + 3]
    if text[at] in ENDS:
        return not after or after[0] in " \n"
    if text[at] == '"' and at and text[at - 1] in ENDS:
        return (
            not after or after[0] == "\n" or (after[0] == " " and (after[1:].isupper() or after[1:] == '"'))
        )
    return False


def sentence_templates(grammar: Grammar) -> list[Parts]:
    """Cut the beats of a grammar into the templates of single sentences."""
    templates: dict[Parts, None] = {}
    for name in sorted(grammar.beats):
        for option in grammar.rules[name].alternatives:
            templates.update(dict.fromkeys(_cut(option.parts, grammar)))
    return list(templates)


def _cut(parts: Parts, grammar: Grammar) -> list[Parts]:
    # A template becomes a text in which one letter stands for each mention and each call.
    units: list[Part] = []
    letters: list[str] = []
    for part in parts:
        units += list(part) if isinstance(part, str) else [part]
        letters += list(part) if isinstance(part, str) else [_stand_in(part, grammar)]
    return [_joined(units[start:end]) for start, end in split_sentences("".join(letters))]


def _stand_in(part: Part, grammar: Grammar) -> str:
    """Give a line end for whole sentences, otherwise a letter as large as the one that will stand there."""
    if isinstance(part, Call) and part.rule.lstrip() in grammar.beats:
        return "\n"
    while isinstance(part, Call):
        part = next(option.parts[0] for option in grammar.rules[part.rule].alternatives if option.parts)
    first = part if isinstance(part, str) else part.forms[0]
    return "A" if first[:1].isupper() or first[:1] == '"' else "a"


def _joined(units: Sequence[Part]) -> Parts:
    """Put the letters of literal texts together again."""
    made: list[Part] = []
    for unit in units:
        if made and isinstance(unit, str) and isinstance(made[-1], str):
            made[-1] += unit
        else:
            made.append(unit)
    return tuple(made)

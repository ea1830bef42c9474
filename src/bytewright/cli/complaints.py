"""What the parser of options complains of, in one sentence.

tyro draws a box around each complaint, with the help of every option that has to do with it. `one_sentence`
takes out of the box which option it is, what it must be and what was found; a box it does not know it gives
as it is, on one line. Nothing here knows the commands.
"""

from __future__ import annotations

import re

KINDS = {"INT": "a whole number", "FLOAT": "a number", "{None}": "None", "PATH": "a path", "STR": "a text"}
STYLE = re.compile(r"\x1b\[[0-9;]*m")
"""How a terminal is told of colours; tyro does so wherever it finds one."""


def one_sentence(box: str) -> str:
    r"""Say what is wrong.

    >>> one_sentence("╭─ Wrong ───╮\n│ Unrecognized options: --ot, 3 │\n╰───────╯")
    'there is no option --ot'
    """
    complaint, *hints = _parts(STYLE.sub("", box))
    text = " ".join(" ".join(complaint).split())
    if text.startswith("Missing from "):
        names = _names(complaint)
        return f"{_listed(names)} {'is' if len(names) == 1 else 'are'} missing"
    if match := re.match(r"Unrecognized options: (.*)", text):
        return _unknown(match[1], [name for hint in hints for name in _names(hint)])
    if match := re.match(r"Error parsing (\S+):", text):
        kinds = [_kind(name.rpartition(", ")[2].partition(" ")[2]) for hint in hints for name in _names(hint)]
        found = re.findall(r"'([^']*)'", text)
        if kinds and kinds[0] and found:
            return f"{match[1]} must be {kinds[0]}, found {found[-1]!r}"
    if match := re.match(r"invalid choice ('.*') for argument '(.*)'\. Expected one of \((.*)\)\.", text):
        choices = match[3].replace("'", "").rstrip(",").split(", ")  # a tuple of one ends in a comma
        if len(choices) == 1:
            return f"{match[2]} must be {choices[0]}, found {match[1]}"
        if "None" in choices:  # then their order differs from call to call
            choices = sorted(choices, key=lambda choice: (choice == "None", choice))
        return f"{match[2]} must be one of {', '.join(choices)}, found {match[1]}"
    if match := re.match(r"Missing value for argument '(.*?)'", text):
        return f"{match[1]} needs a value" if match[1].startswith("-") else f"{match[1].upper()} is missing"
    return text[:1].lower() + text[1:]


def _parts(box: str) -> list[list[str]]:
    """Give the lines of the complaint, then those of each hint: rules part them, walls are taken off."""
    inside = [line.strip("│|")[1:].rstrip() for line in box.splitlines() if line.startswith(("│", "|"))]
    parts: list[list[str]] = [[]]
    for line in inside or box.splitlines():
        if line and set(line) <= {"─", "-"}:
            parts.append([])
        else:
            parts[-1].append(line)
    return parts


def _names(lines: list[str]) -> list[str]:
    """Take the options out of a list of options and their help: the help stands further in, or lower."""
    if lines and lines[0].startswith("Argument helptext"):
        return [line.strip() for line in lines[1:2]]
    return [line.strip() for line in lines if re.match(r" {4}(-|[A-Z])\S*", line)]


def _unknown(given: str, similar: list[str]) -> str:
    options = [word for word in given.split(", ") if word.startswith("-")]
    if not options:
        return f"there is nothing that {given} could mean here"
    close = f"; did you mean {similar[0].split()[0]}?" if len(options) == 1 and similar else ""
    return f"there is no option {_listed(options, 'or')}{close}"


def _kind(spelled: str) -> str:
    kinds = [KINDS.get(kind, kind) for kind in spelled.split("|")]
    return _listed(sorted(kinds, key=lambda kind: kind == "None"), "or")


def _listed(words: list[str], last: str = "and") -> str:
    return f" {last} ".join(filter(None, [", ".join(words[:-1]), words[-1]]))

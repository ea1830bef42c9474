"""Describe a mistake in the options of a command in one sentence, from the error events of tyro."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, get_type_hints

import tyro

from bytewright.errors import find_closest

KINDS = {
    "INT": "a whole number",
    "FLOAT": "a number",
    "NUMBER": "a number",
    "SHARE": "a number",
    "ID": "whole numbers",
}
"""The description of a value by the placeholder of its option in the help text."""


def describe_option_error(event: Any, command: type, given: Sequence[str]) -> str | None:
    """Return one sentence for an error event of tyro, or None for an unknown kind of event.

    `given` is the command line after the name of the command.
    """

    def name_of(argument: Any) -> str:
        names = argument.lowered.name_or_flags
        if names[0].startswith("-"):
            return "/".join(names)
        metavar = str(argument.lowered.metavar)
        # tyro's metavar of a choice lists the values, such as {bash,zsh,fish}, and has no name.
        return names[0].rpartition(".")[2].upper() if metavar.startswith("{") else metavar

    match type(event).__name__:
        case "MissingArgs":
            missing = [argument.arg for argument in event.missing_arguments]
            names = [
                f"{name_of(argument)} {argument.lowered.metavar}"
                if name_of(argument)[0] == "-"
                else name_of(argument)
                for argument in missing
            ]
            return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} missing"
        case "UnrecognizedArgs":
            if unknown := _find_options(event.tokens):
                return _describe_unknown_options(unknown, command)
            return f"unexpected argument {event.tokens[0]!r}"
        case "InvalidChoice":
            choices = sorted(set(event.choices) - {"None"})
            listed = choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"
            return f"{name_of(event.argument)} must be {listed}, found {event.value!r}"
        case "BadValue":
            name = name_of(event.argument)
            if name.startswith("-"):
                return f"{name} needs a value"
            _, arguments = _list_options(command)
            # The argument was perhaps written like an option.
            written = [option for option in _find_options(given) if option.lstrip("-") in arguments]
            return _describe_unknown_options(written[:1], command) if written else f"{name} is missing"
        case "InstantiationFailure" if event.argument is not None:
            kinds = [kind for mark, kind in KINDS.items() if mark in event.argument.lowered.metavar]
            found = re.findall(r"'([^']*)'", event.message)
            if kinds and found:
                return f"{name_of(event.argument)} must be {kinds[0]}, found {found[-1]!r}"
            return f"{name_of(event.argument)}: {event.message.splitlines()[0]}"
    return None


def _find_options(tokens: Sequence[str]) -> list[str]:
    return [token.partition("=")[0] for token in tokens if token.startswith("-")]


def _describe_unknown_options(unknown: Sequence[str], command: type) -> str:
    """Return one sentence about options that a command lacks, for a single one with what to write instead."""
    sentence = f"there is no option {' or '.join(unknown)}"
    if len(unknown) > 1:
        return sentence
    options, arguments = _list_options(command)
    name = unknown[0].lstrip("-")
    if name in arguments:
        return f"{sentence}; give the value of {arguments[name]} alone, without an option name"
    if "set" in options:
        from bytewright.storage.config_reader import list_keys
        from bytewright.train.config import TrainConfig

        key = name.replace("-", "_")
        keys = [each for each in list_keys(TrainConfig) if key in (each, each.rpartition(".")[2])]
        if keys:
            return f"{sentence}; write {' or '.join(f'--set {each}=VALUE' for each in keys)}"
    close = find_closest(name, options)
    return f"{sentence}; did you mean --{close}?" if close else sentence


def _list_options(command: type) -> tuple[list[str], dict[str, str]]:
    """Return the names of a command's options, and its positional arguments by their names in lower case."""
    options: list[str] = []
    arguments: dict[str, str] = {}
    for field, hint in get_type_hints(command, include_extras=True).items():
        marks = getattr(hint, "__metadata__", ())
        if tyro.conf.Positional in marks:
            shown = next((mark.metavar for mark in marks if getattr(mark, "metavar", None)), field.upper())
            word = re.sub(r"[^A-Z]", "", shown)  # such as RUN in "RUN …"
            arguments |= {field: word, word.lower(): word}
        else:
            options.append(field.replace("_", "-"))
    return options, arguments

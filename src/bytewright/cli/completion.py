"""`bytewright completion`: print a script with which a shell completes commands, options and recipes.

The script lists everything, so pressing Tab does not start Python. Write it again after an update.
"""

from __future__ import annotations

import dataclasses
import importlib
import shlex
import types
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import tyro

from bytewright.cli.options import flag_of
from bytewright.shipped_recipes import list_recipes
from bytewright.storage.config_reader import describe_fields

Shell = Literal["bash", "zsh", "fish"]
RECIPE_COMMANDS = {"train": "train", "sweep": "sweep", "recipes": None}
"""The commands whose arguments are names of recipes, and the kind of recipe; None: any."""


@dataclass(frozen=True, kw_only=True)
class PrintCompletion:
    """Print a script that completes commands, options and names of recipes in your shell.

    Load it in the current shell, or write it to the folder from which the shell loads such scripts.

    For example:
      bytewright completion bash > ~/.local/share/bash-completion/completions/bytewright
      bytewright completion zsh > "${fpath[1]}/_bytewright"
      bytewright completion fish > ~/.config/fish/completions/bytewright.fish
      eval "$(bytewright completion bash)"
    """

    shell: Annotated[Shell, tyro.conf.Positional]
    """The shell."""

    def run(self) -> None:
        """Print the script."""
        writers = {"bash": write_bash, "zsh": write_zsh, "fish": write_fish}
        print(writers[self.shell](describe_commands()), end="")


@dataclass(frozen=True)
class Option:
    """An option of a command."""

    name: str
    summary: str
    choices: tuple[str, ...]
    takes_value: bool


@dataclass(frozen=True)
class CommandDescription:
    """A command: its words, what it does, its options, and values of its arguments other than files."""

    name: str
    summary: str
    options: tuple[Option, ...]
    values: tuple[str, ...]
    takes_files: bool


def describe_commands() -> list[CommandDescription]:
    """Return all commands of `bytewright`, in the order of its help."""
    from bytewright.cli.main import COMMANDS

    described = []
    for name, (module, class_name, summary) in COMMANDS.items():
        command = getattr(importlib.import_module(f"bytewright.cli.{module}"), class_name)
        hints, sentences = get_type_hints(command, include_extras=True), describe_fields(command)
        options, values = [Option("--help", "Show the help text.", (), False)], _recipes_for(name)
        takes_files = True
        for field in dataclasses.fields(command):
            hint = hints[field.name]
            if tyro.conf.Positional in getattr(hint, "__metadata__", ()):
                values += _list_choices(hint)
                takes_files = takes_files and not _list_choices(hint)
                continue
            flag = flag_of(field.name)
            sentence = sentences.get(field.name) or _find_help(hint)
            is_switch = field.default is False
            options.append(Option(flag, sentence.partition(". ")[0], _list_choices(hint), not is_switch))
        described.append(CommandDescription(name, summary, tuple(options), values, takes_files))
    return described


def _recipes_for(command: str) -> tuple[str, ...]:
    if command not in RECIPE_COMMANDS:
        return ()
    kind = RECIPE_COMMANDS[command]
    return tuple(recipe.name for recipe in list_recipes() if kind in (None, recipe.kind))


def _list_choices(hint: Any) -> tuple[str, ...]:
    """Return the values of a Literal inside a type."""
    if get_origin(hint) is Literal:
        return tuple(map(str, get_args(hint)))
    if get_origin(hint) in (Annotated, Union, types.UnionType):
        parts = get_args(hint)[:1] if get_origin(hint) is Annotated else get_args(hint)
        return tuple(choice for part in parts for choice in _list_choices(part))
    return ()


def _find_help(hint: Any) -> str:
    """Return the help text that a shared type of an option carries."""
    texts = [getattr(mark, "help", None) for mark in getattr(hint, "__metadata__", ())]
    return next((text for text in texts if text), "")


def _first_words(commands: list[CommandDescription]) -> dict[str, str]:
    """Return the first word of each command, with its summary, or with the commands of its group."""
    words: dict[str, list[str]] = {}
    for command in commands:
        first, _, second = command.name.partition(" ")
        words.setdefault(first, []).append(second or command.summary)
    return {word: ", ".join(parts) for word, parts in words.items()}


def _group_commands(commands: list[CommandDescription]) -> dict[str, list[CommandDescription]]:
    """Return the commands of two words by their first word."""
    groups: dict[str, list[CommandDescription]] = {}
    for command in commands:
        if " " in command.name:
            groups.setdefault(command.name.partition(" ")[0], []).append(command)
    return groups


# bash


def write_bash(commands: list[CommandDescription]) -> str:
    """Return the script for bash."""
    groups = _group_commands(commands)
    seconds = "".join(
        f"            {group}) words={shlex.quote(' '.join(c.name.split()[1] for c in members))} ;;\n"
        for group, members in groups.items()
    )
    cases = "".join(
        f"        {shlex.quote(command.name)})\n"
        f"            options={shlex.quote(' '.join(option.name for option in command.options))}\n"
        f"            values={shlex.quote(' '.join(command.values))}\n"
        + ("" if command.takes_files else "            files=\n")
        + f'            case "$previous" in\n{_bash_choices(command)}'
        f"            esac ;;\n"
        for command in commands
    )
    return f"""# Completion of bytewright for bash.
_bytewright() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
    local command="${{COMP_WORDS[1]}}" first=2 words= options= values= choices= files=yes
    COMPREPLY=()
    case "$command" in
        {"|".join(groups)}) command="$command ${{COMP_WORDS[2]}}"; first=3 ;;
    esac
    if (( COMP_CWORD == 1 )); then
        words={shlex.quote(" ".join([*_first_words(commands), "--help", "--version"]))}
    elif (( COMP_CWORD < first )); then
        case "${{COMP_WORDS[1]}}" in
{seconds}        esac
    fi
    if [[ -n $words ]]; then
        COMPREPLY=($(compgen -W "$words" -- "$current"))
        return
    fi
    case "$command" in
{cases}    esac
    if [[ -n $choices ]]; then
        COMPREPLY=($(compgen -W "$choices" -- "$current"))
    elif [[ $current == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$current"))
    else
        local IFS=$'\\n'
        COMPREPLY=($(IFS=' '; compgen -W "$values" -- "$current"
            [[ -n $files ]] && compgen -f -- "$current"))
    fi
}}
complete -o filenames -F _bytewright bytewright
"""


def _bash_choices(command: CommandDescription) -> str:
    return "".join(
        f"                {option.name}) choices={shlex.quote(' '.join(option.choices))} ;;\n"
        for option in command.options
        if option.choices
    )


# zsh


def write_zsh(commands: list[CommandDescription]) -> str:
    """Return the script for zsh."""
    groups = _group_commands(commands)
    firsts = "\n".join(
        f"            {_zsh_pair(word, summary)}" for word, summary in _first_words(commands).items()
    )
    seconds = "".join(
        f"            {group})\n                shown=(\n"
        + "".join(f"                    {_zsh_pair(c.name.split()[1], c.summary)}\n" for c in members)
        + "                ) ;;\n"
        for group, members in groups.items()
    )
    cases = "".join(
        f"        {shlex.quote(command.name)})\n            _arguments \\\n"
        + "".join(f"                {shlex.quote(_zsh_option(option))} \\\n" for option in command.options)
        + f"                {shlex.quote(_zsh_values(command))} ;;\n"
        for command in commands
    )
    return f"""#compdef bytewright
# Completion of bytewright for zsh.
_bytewright() {{
    local command="${{words[2]}}" first=3
    local -a shown
    case "$command" in
        {"|".join(groups)}) command="$command ${{words[3]}}"; first=4 ;;
    esac
    if (( CURRENT == 2 )); then
        shown=(
{firsts}
        )
        _describe command shown
        return
    elif (( CURRENT < first )); then
        case "${{words[2]}}" in
{seconds}        esac
        _describe command shown
        return
    fi
    words=("$command" "${{(@)words[first,-1]}}")
    (( CURRENT -= first - 2 ))
    case "$command" in
{cases}    esac
}}
if [[ "${{funcstack[1]}}" == _bytewright ]]; then
    _bytewright "$@"
else
    compdef _bytewright bytewright
fi
"""


def _zsh_pair(word: str, summary: str) -> str:
    escaped = summary.replace(":", r"\:")
    return shlex.quote(f"{word}:{escaped}")


def _zsh_option(option: Option) -> str:
    summary = option.summary.replace("[", "(").replace("]", ")").replace(":", r"\:")
    if not option.takes_value:
        return f"{option.name}[{summary}]"
    action = f"({' '.join(option.choices)})" if option.choices else "_files"
    return f"*{option.name}[{summary}]:value:{action}"


def _zsh_values(command: CommandDescription) -> str:
    if not command.values:
        return "*:file:_files"
    if not command.takes_files:
        return f"*:value:({' '.join(command.values)})"
    return f"*:value:_alternative 'names:name:({' '.join(command.values)})' 'files:file:_files'"


# fish


def write_fish(commands: list[CommandDescription]) -> str:
    """Return the script for fish."""
    groups = _group_commands(commands)
    lines = [
        "# Completion of bytewright for fish.",
        "function __bytewright_is",
        "    set -l words (commandline -opc)",
        '    test "$words[2..-1]" = "$argv"; or string match -q -- "$argv *" "$words[2..-1]"',
        "end",
        "function __bytewright_at",
        "    set -l words (commandline -opc)",
        '    test "$words[2..-1]" = "$argv"',
        "end",
        f"complete -c bytewright -f -n '__bytewright_at' -a {shlex.quote(' '.join(_first_words(commands)))}",
    ]
    for group, members in groups.items():
        for member in members:
            word = member.name.split()[1]
            lines.append(
                f"complete -c bytewright -f -n '__bytewright_at {group}' -a {word}"
                f" -d {shlex.quote(member.summary)}"
            )
    for command in commands:
        here = f"complete -c bytewright -n {shlex.quote(f'__bytewright_is {command.name}')}"
        if command.values:
            only = "" if command.takes_files else " -f"
            lines.append(f"{here}{only} -a {shlex.quote(' '.join(command.values))}")
        for option in command.options:
            line = f"{here} -l {option.name[2:]} -d {shlex.quote(option.summary)}"
            if option.choices:
                line += f" -x -a {shlex.quote(' '.join(option.choices))}"
            elif option.takes_value:
                line += " -r"
            lines.append(line)
    return "\n".join(lines) + "\n"

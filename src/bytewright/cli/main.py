"""The entry point of `bytewright`: selects the command, parses its options, and maps errors to exit codes.

Each command is a dataclass: its fields are the options, which tyro parses; its docstring is the help text;
`run()` executes it. Only the module of the selected command is imported, so that `--help` responds quickly.

Exit codes: 0 success; 1 failure; 2 wrong command or input; 130 after SIGINT and 143 after SIGTERM. Before the
last two, incomplete files are removed, and a training run saves a checkpoint. An error is one sentence on
stderr; a traceback is a bug.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import io
import itertools
import os
import shutil
import signal
import sys
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, cast

import bytewright
from bytewright.cli import Terminated
from bytewright.errors import (
    BytewrightError,
    LostRankError,
    OutputExistsError,
    ReportedError,
    UsageError,
    escape_controls,
    find_closest,
    first_line,
    is_out_of_memory,
)
from bytewright.torch_environment import keep_compiled_steps

INTERRUPTED, TERMINATED = 130, 143
LONGEST_SENTENCE = 2000
"""How many characters of an error are shown: it may quote a key of a hostile file."""


class Command(Protocol):
    """A command with parsed options."""

    def run(self) -> int | None:
        """Execute the command; return an exit code, or None for success."""
        ...


COMMANDS: Mapping[str, tuple[str, str, str]] = {
    "demo": ("train", "Demo", "train a small model on generated stories in four minutes"),
    "corpus get": ("texts.corpus", "GetCorpus", "download a public corpus"),
    "corpus stats": ("texts.corpus", "MeasureCorpus", "count the words and documents of a text file"),
    "corpus text": ("texts.corpus", "WriteText", "convert documents of any format to plain text"),
    "corpus storybook": ("texts.books", "WriteStorybook", "generate stories whose entropy is known"),
    "corpus storybook-tasks": (
        "models.exchange",
        "WriteStorybookTasks",
        "write questions about stories for lm-eval",
    ),
    "corpus worldbook": (
        "texts.books",
        "WriteWorldbook",
        "generate documents about a world of known entropy",
    ),
    "corpus check": ("texts.books", "CheckStories", "check which stories or documents follow their grammar"),
    "tokenizer train": ("texts.tokenizer", "TrainTokenizer", "learn a vocabulary from text"),
    "tokenizer encode": ("texts.tokenizer", "EncodeText", "convert text to token ids"),
    "tokenizer encode-pairs": (
        "texts.tokenizer",
        "EncodePairs",
        "convert prompts and completions to ids and a mask",
    ),
    "tokenizer decode": ("texts.tokenizer", "DecodeIds", "convert token ids back to text"),
    "tokenizer tokens": (
        "texts.tokenizer_inspect",
        "ListTokens",
        "list the tokens of a text with ids and bytes",
    ),
    "tokenizer inspect": ("texts.tokenizer_inspect", "InspectTokenizer", "print properties of a tokenizer"),
    "tokenizer compare": ("texts.tokenizer_inspect", "CompareTokenizers", "show where two tokenizers differ"),
    "tokenizer convert": (
        "texts.tokenizer",
        "ConvertTokenizer",
        "convert a tokenizer to another file format",
    ),
    "recipes": ("recipes", "ListRecipes", "list the recipes that come with Bytewright"),
    "train": ("train", "Train", "train a model from a recipe"),
    "resume": ("train", "Resume", "continue a run from its last checkpoint"),
    "generate": ("models.generate", "Generate", "generate text with a model"),
    "serve": ("models.serve", "Serve", "answer requests for completions over HTTP"),
    "studio": ("models.serve", "OpenStudio", "show runs, tokenizers and models on a local page"),
    "evaluate": ("models.evaluate", "Evaluate", "measure a model on a token file"),
    "next": ("models.interpret", "ShowNextTokens", "print the most probable next tokens after a prompt"),
    "losses": ("models.interpret", "TokenLosses", "print the loss of every token of a text"),
    "attention": ("models.interpret", "ShowAttention", "show the attention weights of a model"),
    "lens": ("models.interpret", "ShowLens", "show the predictions after each layer of a model"),
    "export": ("models.exchange", "Export", "write a model in the format of other tools"),
    "import": ("models.exchange", "ImportModel", "read a model that another tool wrote"),
    "sweep": ("sweep", "RunSweep", "run all experiments of a sweep file, and write a report"),
    "runs": ("sweep", "ListRuns", "list runs with their key figures"),
    "report": ("sweep", "WriteReport", "write a report about runs as one page"),
    "fit": ("sweep", "FitLaw", "fit a scaling law to the runs of a sweep"),
    "parts": ("recipes", "ListParts", "list the parts that recipes can name, with their options"),
    "account": ("account", "AccountFor", "predict what a model costs in parameters, FLOPs, memory and time"),
    "doctor": ("doctor", "Doctor", "check this machine and the installation"),
    "completion": ("completion", "PrintCompletion", "print a script that completes commands in a shell"),
}
"""The module, class and summary of each command, in the order in which a new user needs them."""


TRAINING_COMMANDS = ("demo", "train", "resume", "sweep")


def start() -> int:
    """Run the command of this process and return the exit code: the entry point of `bytewright`."""
    if " ".join(_command_path(sys.argv[1:])) in TRAINING_COMMANDS:
        # Imported here, so that other commands start faster.
        from bytewright.system import restart_without_malloc_caches

        restart_without_malloc_caches()
    return main()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller (`>&-`)
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # the terminal may lack some characters
    keep_compiled_steps()
    warnings.showwarning = _show_warning
    try:
        code = run_command(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader (`| head`) has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ReportedError, LostRankError) as error:
        # torchrun now terminates the other ranks, which end by themselves.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return error.exit_code if isinstance(error, ReportedError) else _fail(str(error), error.exit_code)
    except BytewrightError as error:
        return _fail(str(error), error.exit_code)
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), 1)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED, once=True)
    except Terminated:
        return _fail("terminated", TERMINATED, once=True)
    except BaseException as error:
        if is_out_of_memory(error):
            advice = "use a smaller batch, or split it with --set accumulate=N of train"
            return _fail(f"there is not enough memory ({first_line(error)}); {advice}", 1)
        if place := _place_in_plugin(error):
            return _fail(f"{place}: {type(error).__name__}: {first_line(error)}", UsageError.exit_code)
        raise


def _place_in_plugin(error: BaseException) -> str | None:
    """Return the line of the user's file that raised an error; None if none did, or none was loaded."""
    plugins = sys.modules.get("bytewright.plugins")
    return plugins.place_in_plugin(error) if plugins else None


def _show_warning(message: Warning | str, category: type[Warning], *place: Any, **others: Any) -> None:
    if category.__module__.startswith("bytewright.") and not _is_first_on_machine():
        return
    from bytewright.cli import console  # imported late: most commands show no warning

    console.show_warning(message, category, *place, **others)


def _is_first_on_machine() -> bool:
    """Return whether this process reports what all ranks of this machine find; without torchrun, it does."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def run_command(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; errors are raised."""
    path = _command_path(arguments)
    rest = list(arguments[len(path) :])
    name = " ".join(path)
    if name in COMMANDS:
        try:
            command = _parse(name, rest)
            load_plugins(getattr(command, "plugin", ()))
        except BytewrightError as error:
            if not _is_first_on_machine():
                raise ReportedError(str(error), exit_code=error.exit_code) from None
            raise
        try:
            return command.run() or 0
        except OutputExistsError as error:
            permission = "add --replace" if hasattr(command, "replace") else None
            raise UsageError(error.describe(permission), path=error.path, key=error.key) from None
    if rest and rest[0] in ("-h", "--help"):
        print(_overview(name))
        return 0
    if rest and rest[0] in ("-V", "--version") and not path:
        print(f"bytewright {bytewright.__version__}")
        return 0
    raise UsageError(_describe_unknown_command(name, rest))


def load_plugins(paths: Sequence[Path]) -> None:
    """Load the plugins of a command line, before any recipe or run is read."""
    if paths:
        from bytewright.plugins import load_plugin

        for path in paths:
            load_plugin(path)


def _command_path(arguments: Sequence[str]) -> list[str]:
    """Return the first arguments that name a command or a group of commands."""
    path: list[str] = []
    for word in arguments:
        wanted = [*path, word]
        if not any(name.split()[: len(wanted)] == wanted for name in COMMANDS):
            break
        path = wanted
    return path


def _parse(name: str, arguments: list[str]) -> Command:
    if os.environ.get("NO_COLOR"):  # tyro reads only its own variable, when it is imported
        os.environ.setdefault("PYTHON_TYRO_ANSI_CODES", "False")
    import tyro

    from bytewright.cli.option_errors import describe_option_error

    module_name, class_name, _ = COMMANDS[name]
    command = getattr(importlib.import_module(f"bytewright.cli.{module_name}"), class_name)

    def reject(event: object) -> None:
        if sentence := describe_option_error(event, command, arguments):
            raise UsageError(f"{sentence} (see bytewright {name} --help)")

    # The hook is not part of tyro's stable interface. Without it, tyro prints its own error messages.
    errors = getattr(tyro, "_errors", None)
    with (
        errors.on_parse_error(reject) if errors else contextlib.nullcontext(),
        _wrapped_description(inspect.cleandoc(command.__doc__)) as description,
    ):
        parsed = tyro.cli(
            command,
            prog=f"bytewright {name}",
            description=description,
            # Without the others: tyro's help leaves out positional arguments that have a value.
            args=["--help"] if {"-h", "--help"} & set(arguments) else arguments,
            config=(tyro.conf.FlagCreatePairsOff,),
        )
    return cast("Command", parsed)


@contextlib.contextmanager
def _wrapped_description(text: str) -> Iterator[str]:
    """Yield a placeholder; if the block prints help, print it with `text` wrapped to the terminal instead.

    tyro wraps the texts of options, but joins the lines of a description.
    """
    placeholder, shown = "@description@", _HelpText()
    try:
        with contextlib.redirect_stdout(shown):
            yield placeholder
    finally:
        print(shown.getvalue().replace(placeholder, wrap_help(text)), end="")


class _HelpText(io.StringIO):
    """Collects help text; tyro formats it as for standard output."""

    def isatty(self) -> bool:
        return sys.__stdout__ is not None and sys.__stdout__.isatty()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8" if sys.__stdout__ is None else sys.__stdout__.encoding


def wrap_help(text: str, width: int | None = None) -> str:
    r"""Return a help text with paragraphs filled to the width of the terminal; indented lines stay lines.

    >>> print(wrap_help("One two\nthree four.\n\nFor example:\n  run --some-option x", width=16))
    One two three
    four.
    <BLANKLINE>
    For example:
      run
          --some-option
          x
    """
    width = width or shutil.get_terminal_size().columns
    fill = functools.partial(textwrap.fill, break_long_words=False, break_on_hyphens=False)
    paragraphs: list[str] = []
    for paragraph in text.split("\n\n"):
        lines = paragraph.splitlines()
        plain = list(itertools.takewhile(lambda line: not line.startswith(" "), lines))
        filled = [fill(" ".join(plain), width)] if plain else []
        filled += [fill(line, width, subsequent_indent=" " * 6) for line in lines[len(plain) :]]
        paragraphs.append("\n".join(filled))
    return "\n\n".join(paragraphs)


def _overview(group: str) -> str:
    """Return the help text that lists the commands of `group`, or all commands if it is empty."""
    listed = {name: COMMANDS[name][2] for name in COMMANDS if name.startswith(group)}
    width, columns = max(map(len, listed)), shutil.get_terminal_size().columns
    indent = " " * (width + 4)
    lines = [
        textwrap.fill(f"  {name:<{width}}  {summary}", max(columns, width + 30), subsequent_indent=indent)
        for name, summary in listed.items()
    ]
    return "\n".join(
        [
            f"usage: {' '.join(['bytewright', group]).strip()} COMMAND [OPTIONS]",
            "",
            "Language models from raw bytes, with every part built from scratch.",
            "",
            "commands:",
            *lines,
            "",
            "examples:",
            "  bytewright demo",
            "  bytewright tokenizer train stories.txt --out stories-10k --vocab-size 10000",
            "  bytewright tokenizer encode stories-10k stories.txt --out stories.npy",
            "  bytewright train tiny --make-data",
            "  bytewright generate runs/tiny --prompt 'Once upon a time'",
            "",
            "`bytewright COMMAND --help` describes a command; `bytewright -V` prints the version.",
        ]
    )


def _describe_unknown_command(group: str, rest: list[str]) -> str:
    words = sorted({name[len(group) :].split()[0] for name in COMMANDS if name.startswith(group)})
    options = ["--help"] if group else ["--help", "--version"]
    program = f"bytewright {group}".strip()
    if not rest:
        return f"{program} needs a command: {', '.join(words)} (see {program} --help)"
    close = find_closest(rest[0], [*words, *options])
    suggestion = f"did you mean {close!r}?" if close else f"there are {', '.join(words)}"
    what = "option" if rest[0].startswith("-") else "command"
    return f"{program} has no {what} {rest[0]!r}; {suggestion} (see {program} --help)"


def _terminate(number: int, frame: FrameType | None) -> None:
    # After these errors the process ends anyway; torchrun may terminate it before `main` has reported them.
    if not isinstance(sys.exc_info()[1], ReportedError | LostRankError):
        raise Terminated


def _fail(sentence: str, code: int, *, once: bool = False) -> int:
    """Print why a command failed and return its exit code; `once`: on one rank of a machine only."""
    if once and not _is_first_on_machine():
        return code
    sentence = escape_controls(sentence)
    if len(sentence) > LONGEST_SENTENCE:
        sentence = sentence[:LONGEST_SENTENCE] + "…"
    print(f"bytewright: {sentence}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(start())

"""The entry point of `bytewright`: finds the command, parses its options, and turns errors into exit codes.

Each command is a dataclass in a module of its own: its fields are its options, which tyro parses; its
docstring is its help; and `run()` does it. Only the module of the command that was asked for is imported, so
`--help` answers at once.

Exit codes: 0 done; 1 it failed; 2 the command or its input was wrong; 130 after SIGINT and 143 after SIGTERM,
both after removing what was half-written and, where a model is being trained, after a save. An error is one
sentence on stderr; a traceback is a bug of ours.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import inspect
import io
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import NoReturn, Protocol, cast

import bytewright
from bytewright.cli.complaints import one_sentence
from bytewright.errors import BytewrightError, UsageError, escape_controls, first_line, is_out_of_memory
from bytewright.torch_environment import keep_compiled_steps

INTERRUPTED, TERMINATED = 130, 143
LONGEST_SENTENCE = 2000
"""Characters of an error that are shown: it may quote a key of a hostile file."""


class Command(Protocol):
    """What every command is once its options are parsed."""

    def run(self) -> int | None:
        """Do it; return an exit code, or None when all is well."""
        ...


COMMANDS: Mapping[str, tuple[str, str, str]] = {
    "demo": ("demo", "Demo", "from nothing to a model that tells stories: four minutes"),
    "corpus get": ("corpus", "GetCorpus", "download a public corpus"),
    "corpus stats": ("corpus", "MeasureCorpus", "count what is in a file of text"),
    "corpus text": ("corpus", "WriteText", "write documents of any format as plain text"),
    "corpus storybook": ("corpus", "WriteStorybook", "write stories whose entropy is known"),
    "corpus check": ("corpus", "CheckStories", "parse stories back, and say which are sound"),
    "tokenizer train": ("tokenizer", "TrainTokenizer", "learn a vocabulary from text"),
    "tokenizer encode": ("tokenizer", "EncodeText", "turn text into token ids"),
    "tokenizer decode": ("tokenizer", "DecodeIds", "turn token ids back into text"),
    "tokenizer inspect": ("tokenizer_inspect", "InspectTokenizer", "look at one tokenizer"),
    "tokenizer compare": ("tokenizer_inspect", "CompareTokenizers", "see where two tokenizers differ"),
    "tokenizer convert": ("tokenizer", "ConvertTokenizer", "read one file format, write another"),
    "train": ("train", "Train", "train a model as a recipe says"),
    "resume": ("train", "Resume", "continue a run exactly where it stopped"),
    "generate": ("generate", "Generate", "let a model write"),
    "evaluate": ("train", "Evaluate", "measure a model on a token file"),
    "export": ("exchange", "Export", "write a model in the form that other tools load"),
    "import": ("exchange", "ImportModel", "read a model that another tool wrote"),
    "sweep": ("sweep", "RunSweep", "carry out all runs of a question, and report"),
    "runs": ("sweep", "Runs", "list runs with their key figures"),
    "report": ("sweep", "Report", "write runs up as one page"),
    "account": ("account", "AccountFor", "say what a model costs, before anything runs"),
    "doctor": ("doctor", "Doctor", "say what this machine has, and what is missing"),
}
"""Each command's module, class and summary, in the order in which a newcomer needs them."""


class Terminated(BaseException):
    """SIGTERM arrived: unwind as for Ctrl-C, so that nothing half-written stays."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller (`>&-`): nobody listens
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may lack characters that we print
    keep_compiled_steps()
    try:
        code = _run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader (`| head`) has seen enough; there is nobody left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except BytewrightError as error:
        return _fail(str(error), error.exit_code)
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), 1)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        sentence = f"there is not enough memory ({first_line(error)})"
        return _fail(f"{sentence}; a smaller batch needs less, and so does --set accumulate=N of train", 1)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except Terminated:
        return _fail("terminated", TERMINATED)


def _run(arguments: list[str]) -> int:
    path = _command_path(arguments)
    rest = arguments[len(path) :]
    name = " ".join(path)
    if name in COMMANDS:
        return _parse(name, rest).run() or 0
    if rest and rest[0] in ("-h", "--help"):
        print(_overview(name))
        return 0
    if rest and rest[0] in ("-V", "--version") and not path:
        print(f"bytewright {bytewright.__version__}")
        return 0
    raise UsageError(_complaint(name, rest))


def _command_path(arguments: list[str]) -> list[str]:
    """Take the words that name a command, or a group of them, from the front of the arguments."""
    path: list[str] = []
    for word in arguments:
        wanted = [*path, word]
        if not any(name.split()[: len(wanted)] == wanted for name in COMMANDS):
            break
        path = wanted
    return path


def _parse(name: str, arguments: list[str]) -> Command:
    if os.environ.get("NO_COLOR"):  # tyro does not know it, and asks for its own as it is imported
        os.environ.setdefault("PYTHON_TYRO_ANSI_CODES", "False")
    import tyro

    module_name, class_name, _ = COMMANDS[name]
    command = getattr(importlib.import_module(f"bytewright.cli.{module_name}"), class_name)
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            parsed = tyro.cli(
                command,
                prog=f"bytewright {name}",
                description=inspect.cleandoc(command.__doc__),
                args=arguments,
                config=(tyro.conf.FlagCreatePairsOff,),
            )
    except SystemExit as leaving:
        if not leaving.code:  # --help
            raise
        raise UsageError(f"{one_sentence(complaint.getvalue())} (see bytewright {name} --help)") from None
    return cast("Command", parsed)


def _overview(group: str) -> str:
    """List the commands that start with `group`, which may be empty."""
    listed = {name: COMMANDS[name][2] for name in COMMANDS if name.startswith(group)}
    width = max(map(len, listed))
    lines = [f"  {name:<{width}}  {summary}" for name, summary in listed.items()]
    return "\n".join(
        [
            f"usage: {' '.join(['bytewright', group]).strip()} COMMAND [OPTIONS]",
            "",
            "Language models from raw bytes, every part built from scratch.",
            "",
            "commands:",
            *lines,
            "",
            "examples:",
            "  bytewright demo",
            "  bytewright tokenizer train stories.txt --out stories-10k --vocab-size 10000",
            "  bytewright tokenizer encode stories-10k stories.txt --out stories.npy",
            "  bytewright train recipes/tiny.toml --out runs/tiny",
            "  bytewright generate runs/tiny --prompt 'Once upon a time'",
            "",
            "`bytewright COMMAND --help` describes a command; `bytewright -V` prints the version.",
        ]
    )


def _complaint(group: str, rest: list[str]) -> str:
    words = sorted({name[len(group) :].split()[0] for name in COMMANDS if name.startswith(group)})
    options = ["--help"] if group else ["--help", "--version"]
    program = f"bytewright {group}".strip()
    if not rest:
        return f"{program} needs a command: {', '.join(words)} (see {program} --help)"
    close = difflib.get_close_matches(rest[0], [*words, *options], n=1)
    suggestion = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(words)}"
    what = "option" if rest[0].startswith("-") else "command"
    return f"{program} has no {what} {rest[0]!r}; {suggestion} (see {program} --help)"


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated


def _fail(sentence: str, code: int) -> int:
    sentence = escape_controls(sentence)
    if len(sentence) > LONGEST_SENTENCE:
        sentence = sentence[:LONGEST_SENTENCE] + "…"
    print(f"bytewright: {sentence}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())

"""Run several command lines, one after the other, on every rank that torchrun starts; a script for tests.

Usage: `torchrun … run_commands.py FILE OUT`, where FILE holds a JSON list of argument lists, or a list per
rank of such lists. Each rank writes its exit codes and its output to `OUT-RANK.json`. Starting processes
takes far longer than training the tiny models of tests, so the commands share them.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path

from bytewright.cli.main import main


def run() -> None:
    """Run all commands of this rank."""
    commands = json.loads(Path(sys.argv[1]).read_text())
    rank = int(os.environ["RANK"])
    results = []
    for arguments in commands[rank] if isinstance(commands[0][0], list) else commands:
        with (
            contextlib.redirect_stderr(io.StringIO()) as errors,
            contextlib.redirect_stdout(io.StringIO()) as out,
        ):
            code = main(arguments)
        results.append({"code": code, "out": out.getvalue(), "err": errors.getvalue()})
    Path(f"{sys.argv[2]}-{rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    run()

"""Without lm-evaluation-harness, the module that needs it raises an error that states how to install it."""

from __future__ import annotations

import subprocess
import sys

from conftest import HANG_SECONDS

HIDE_AND = "import sys; sys.modules['lm_eval'] = None; "


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", HIDE_AND + program]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)


def test_the_module_exits_with_the_sentence() -> None:
    done = run_python("import runpy; runpy.run_module('bytewright.interop.lm_eval', run_name='__main__')")
    assert done.returncode == 2
    assert done.stderr.startswith("bytewright: ")
    assert "pip install lm-eval" in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_import_raises_the_error() -> None:
    done = run_python("import bytewright.interop.lm_eval")
    assert "bytewright.errors.UsageError: the package lm-eval" in done.stderr.splitlines()[-1]

"""`bytewright doctor`: what this machine has, and what is missing, with the remedy.

It looks and changes nothing. A finding is *missing* only if something of Bytewright will not work without it;
a machine without a GPU is in good health.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from bytewright.system import total_memory, usable_cores, usable_memory
from bytewright.torch_environment import ISA_VARIABLES, amx_faults

REQUIRED_PACKAGES = ("torch", "numpy", "safetensors", "rich", "tyro", "regex", "jaxtyping")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for: what was found, and what to do if it is missing."""

    name: str
    found: str
    remedy: str | None = None


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """Say what this machine has (cores, memory, Python, torch, GPU, native extension) and what is missing.

    Exits with 1 if something that Bytewright needs is missing.

    For example:
      bytewright doctor
      bytewright doctor --json
    """

    json: bool = False
    """Print the findings as JSON."""

    def run(self) -> int:
        """Look at everything and print it."""
        findings = examine()
        missing = [finding for finding in findings if finding.remedy is not None]
        if self.json:
            import json

            print(json.dumps({"findings": [asdict(finding) for finding in findings], "healthy": not missing}))
        else:
            _print(findings, missing)
        return 1 if missing else 0


def examine() -> list[Finding]:
    """Look at the machine, from the hardware up."""
    return [
        Finding("system", f"{platform.system()} {platform.release()} on {platform.machine()}"),
        _cores(),
        _amx(),
        _memory(),
        Finding("disk", f"{_gigabytes(shutil.disk_usage(Path.cwd()).free)} free in this folder"),
        _python(),
        *(_package(name) for name in REQUIRED_PACKAGES),
        _gpu(),
        _native_extension(),
    ]


def _cores() -> Finding:
    return Finding("cores", f"{usable_cores()} usable of {os.cpu_count()}")


def _amx() -> Finding:
    found = (
        "advertised, but its instructions fault" if amx_faults() else "not advertised, or without a defect"
    )
    limits = [f"; limit of oneDNN: {name}={os.environ[name]}" for name in ISA_VARIABLES if name in os.environ]
    return Finding("AMX", found + "".join(limits))


def _memory() -> Finding:
    total, usable = total_memory(), usable_memory()
    limited = f", limited to {_gigabytes(usable)} here" if usable < total else ""
    return Finding("memory", _gigabytes(total) + limited)


def _python() -> Finding:
    remedy = None if sys.version_info >= (3, 11) else "install Python 3.11 or newer"
    return Finding("python", f"{platform.python_version()} ({sys.executable})", remedy)


def _package(name: str) -> Finding:
    try:
        return Finding(name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "not installed", f"pip install {name}, or run make setup in the repository")


def _gpu() -> Finding:
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a library that torch needs is not there
        return Finding("gpu", f"unknown, since torch cannot be imported ({error})", "make torch importable")
    if torch.cuda.is_available():
        devices = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
        return Finding("gpu", ", ".join(f"{it.name} ({_gigabytes(it.total_memory)})" for it in devices))
    if torch.backends.mps.is_available():
        return Finding("gpu", "Apple GPU (mps)")
    return Finding("gpu", "none: everything works on the CPU, training slowly")


def _native_extension() -> Finding:
    try:
        native = importlib.import_module("bytewright._native")
    except ImportError as error:
        return Finding(
            "native extension", f"cannot be imported ({error})", "run make setup (needs a Rust toolchain)"
        )
    return Finding("native extension", Path(str(native.__file__)).name)


def _gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB"


def _print(findings: list[Finding], missing: list[Finding]) -> None:
    from rich.text import Text

    from bytewright.cli import console

    out = console.stdout()
    table = console.table("", "", "")
    table.columns[1].justify = "left"
    for finding in findings:
        mark = Text("ok", "green") if finding.remedy is None else Text("missing", "red")
        table.add_row(finding.name, finding.found, mark)
    out.print(table)
    for finding in missing:
        out.print(f"{finding.name} is missing: {finding.remedy}")
    if not missing:
        out.print("Nothing is missing.")

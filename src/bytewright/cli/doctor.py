"""`bytewright doctor`: check this machine and the installation, and print remedies for problems.

The command changes nothing. A finding is a problem only if some part of Bytewright does not work because of
it; a missing GPU or optional package is not a problem.
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

from bytewright.cli import console
from bytewright.system import total_memory, usable_cores, usable_memory
from bytewright.torch_environment import ISA_VARIABLES, amx_faults

CRATES = Path(__file__).parents[3] / "crates"
"""The Rust sources of a checkout; an installed package does not have them."""
REQUIRED_PACKAGES = ("torch", "numpy", "safetensors", "rich", "tyro", "regex", "jaxtyping")
OPTIONAL_PACKAGES = {
    "serve": (("h11", "prometheus-client", "starlette", "uvicorn"), "serve and studio need"),
    "cluster": (("dask", "distributed"), "--cluster needs"),
    "corpus": (("pyarrow", "zstandard"), "Parquet and Zstandard files need"),
    "tensorboard": (("tensorboard",), "runs with tensorboard = true need"),
    "gguf": (("gguf",), "export --to gguf needs"),
    "lm-eval": (("lm-eval",), "lm-evaluation-harness needs"),
}
"""The optional packages, mostly by the extra that installs them, and what needs them."""


@dataclass(frozen=True)
class Finding:
    """One result of the examination; `remedy` is set if it is a problem."""

    name: str
    found: str
    remedy: str | None = None


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """Check this machine (cores, memory, GPU) and the installation (Python, packages, native extension).

    Exits with 1 if something that Bytewright needs is missing or outdated.

    For example:
      bytewright doctor
      bytewright doctor --json
    """

    json: bool = False
    """Print the findings as JSON."""

    def run(self) -> int:
        """Examine everything and print the findings."""
        findings = examine()
        problems = [finding for finding in findings if finding.remedy is not None]
        if self.json:
            import json

            listed = [asdict(finding) for finding in findings]
            print(json.dumps({"findings": listed, "healthy": not problems}))
        else:
            print_findings(findings, problems)
        return 1 if problems else 0


def examine() -> list[Finding]:
    """Return findings about the hardware, then about the software."""
    return [
        Finding("system", f"{platform.system()} {platform.release()} on {platform.machine()}"),
        Finding("cores", f"{usable_cores()} usable of {os.cpu_count()}"),
        _check_amx(),
        _check_memory(),
        Finding("disk", f"{_format_gigabytes(shutil.disk_usage(Path.cwd()).free)} free in this folder"),
        _check_python(),
        *(_check_package(name) for name in REQUIRED_PACKAGES),
        *(_check_optional(name) for name in OPTIONAL_PACKAGES),
        _check_gpu(),
        _check_native_extension(),
    ]


def _check_amx() -> Finding:
    has_defect = "advertised, but its instructions fault"
    found = has_defect if amx_faults() else "not advertised, or without a defect"
    limits = [f"; limit of oneDNN: {name}={os.environ[name]}" for name in ISA_VARIABLES if name in os.environ]
    return Finding("AMX", found + "".join(limits))


def _check_memory() -> Finding:
    total, usable = total_memory(), usable_memory()
    limited = f", limited to {_format_gigabytes(usable)} here" if usable < total else ""
    return Finding("memory", _format_gigabytes(total) + limited)


def _check_python() -> Finding:
    remedy = None if sys.version_info >= (3, 11) else "install Python 3.11 or newer"
    return Finding("python", f"{platform.python_version()} ({sys.executable})", remedy)


def _check_package(name: str) -> Finding:
    try:
        return Finding(name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "not installed", f"pip install {name}, or run make setup in the repository")


def _check_optional(name: str) -> Finding:
    packages, needed_by = OPTIONAL_PACKAGES[name]
    missing = [package for package in packages if not _is_installed(package)]
    found = f"missing: {' '.join(missing)}; only {needed_by} it" if missing else "installed"
    return Finding(f"{name} (optional)", found)


def _is_installed(package: str) -> bool:
    try:
        return bool(importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        return False


def _check_gpu() -> Finding:
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a library that torch needs is missing
        return Finding("gpu", f"unknown, because torch cannot be imported ({error})", "make torch importable")
    if torch.cuda.is_available():
        devices = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
        return Finding(
            "gpu",
            ", ".join(f"{device.name} ({_format_gigabytes(device.total_memory)})" for device in devices),
        )
    if torch.backends.mps.is_available():
        return Finding("gpu", "Apple GPU (mps)")
    return Finding("gpu", "none: everything works on the CPU, but training is slow")


def _check_native_extension() -> Finding:
    try:
        native = importlib.import_module("bytewright._native")
    except ImportError as error:
        remedy = "run make setup (needs a Rust toolchain)"
        return Finding("native extension", f"cannot be imported ({error})", remedy)
    file = Path(str(native.__file__))
    if (changed := find_newer_source(file, CRATES)) is not None:
        return Finding("native extension", f"{file.name} is older than {changed}", "run make setup")
    return Finding("native extension", file.name)


def find_newer_source(extension: Path, crates: Path) -> Path | None:
    """Return a Rust source of a checkout that is newer than the extension; None for an installed package."""
    if not crates.is_dir():
        return None
    newest = max((path for path in crates.rglob("*.rs")), key=lambda path: path.stat().st_mtime, default=None)
    if newest is None or newest.stat().st_mtime <= extension.stat().st_mtime:
        return None
    return newest.relative_to(crates.parent)


def _format_gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB"


def print_findings(findings: list[Finding], problems: list[Finding]) -> None:
    """Print all findings as a table, then the remedies."""
    from rich.text import Text

    marks = {True: Text("ok", "green"), False: Text("problem", "red")}
    rows = [(finding.name, finding.found, marks[finding.remedy is None]) for finding in findings]
    console.print_table(("", "", ""), rows, left=(0, 1))
    for finding in problems:
        console.print_line(f"{finding.name}: {finding.remedy}")
    if not problems:
        console.print_line("No problems found.")

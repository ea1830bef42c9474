"""The folders depend only leftwards: this reads the import statements and keeps it so."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import HANG_SECONDS

SOURCE = Path(__file__).parents[1] / "src"

LAYERS = [
    {"described", "errors", "durations", "end_of_text", "host"},
    {"disk"},
    {"packed"},
    {"manifest"},
    {"durable"},
    {"checked"},
    {"_native"},
    {"torch_environment"},
    {"kernels"},
    {"corpus", "tokenizer", "model"},
    {"data", "account"},
    {"generate"},
    {"train"},
    {"lab"},
    {"demo"},
    {"cli"},
    {"__main__"},
]
"""From left to right; a package may import its own modules and those of the sets before its own."""

# The order alone would allow these. `generate` handles ids, except in `generate/text.py`; the others must not
# need the native extension, which `tokenizer` may.
FORBIDDEN = {
    "data": {"_native", "corpus", "tokenizer"},
    "account": {"_native", "corpus", "tokenizer"},
    "train": {"_native"},
    "generate": {"_native", "corpus", "tokenizer"},
    "corpus": {"_native"},
    "model": {"_native"},
}

# The order alone would forbid this. `encode_file` ends in a token file; that this makes no circle is what
# forbids `data` to import `tokenizer` above.
EXCEPTIONS = {("tokenizer", "data")}

RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}


def modules() -> list[Path]:
    found = sorted((SOURCE / "bytewright").rglob("*.py"))
    assert found, "no source files: this test would pass on anything"
    return found


def package_of(path: Path) -> str:
    """`src/bytewright/tokenizer/train.py -> tokenizer`, and `src/bytewright/durable.py -> durable`."""
    return path.relative_to(SOURCE / "bytewright").with_suffix("").parts[0]


def imported_packages(path: Path) -> set[str]:
    """The parts of bytewright that a file imports, anywhere in it: `{"errors", "tokenizer"}`."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import; name the module in full"
            if node.module == "bytewright":
                modules.update(f"bytewright.{alias.name}" for alias in node.names)
            else:
                modules.add(node.module or "")
    return {module.split(".")[1] for module in modules if module.startswith("bytewright.")}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_imports_only_what_stands_to_its_left(path: Path) -> None:
    package = package_of(path)
    if package == "__init__":
        only = {"torch_environment"}
        assert imported_packages(path) == only, f"importing bytewright must import nothing of it but {only}"
        return
    assert package in RANK, f"{package} has no place in the design's order; give it one"
    for imported in imported_packages(path) - {package}:
        assert imported in RANK, f"{path} imports bytewright.{imported}, which is nowhere in the order"
        leftwards = RANK[imported] < RANK[package] or (package, imported) in EXCEPTIONS
        assert leftwards, f"{package} must not import {imported}, which does not stand to its left"
        if path.relative_to(SOURCE / "bytewright") == Path("generate/text.py") and imported == "tokenizer":
            continue
        assert imported not in FORBIDDEN.get(package, set()), f"{package} must not import {imported}"


def test_only_the_entry_points_import_the_command_line() -> None:
    entry_points = {"cli", "__main__"}
    assert all("cli" not in imported_packages(p) for p in modules() if package_of(p) not in entry_points)


@pytest.mark.parametrize("package", ["model", "train", "data", "generate", "account"])
def test_the_model_and_its_training_do_not_need_the_native_extension(package: str) -> None:
    """A box with a GPU may have only the ids, and no compiler to build the tokenizer with."""
    if not (SOURCE / "bytewright" / package).is_dir():
        pytest.skip(f"bytewright.{package} is not built yet")
    program = f"import sys; sys.modules['bytewright._native'] = None; import bytewright.{package}"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=HANG_SECONDS)

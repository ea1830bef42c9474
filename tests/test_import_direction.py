"""Imports have one direction: a package imports only packages before it in `ORDER`."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"


def _names(text: str) -> list[str]:
    return text.split()


ORDER = {
    "bytewright": _names("""
        errors formatting registry system executors shipped_recipes
        storage plugins _native torch_environment data corpus tokenizer model optim parallel account generate
        train experiments laws interop report serve studio demo cli __main__
    """),
    "bytewright.train": _names("""
        config step evaluate metrics metrics_log outcome recipe checkpoint_list checkpoint
        run_files saved_model setup session run run_model
    """),
    "bytewright.train.session": _names("""
        part_check console costs engine timing recorder resume_policy initial_weights ranks loop start
    """),
    "bytewright.experiments": _names("""
        records recognition loss_metric evaluation corpora groups results inputs axis_values sweep_file
        listing sweep plan execute
    """),
    "bytewright.experiments.evaluation": _names("stories world_eval document_eval"),
    "bytewright.account": _names("""
        devices parameters shapes tracing flops generation textbook optimizers memory ranks
        time predict summary
    """),
}
"""The parts of bytewright, and the modules of its largest packages, each after everything it imports."""

REFERENCE = _names("""
    tokenizer.reference model.layers model.attention model.transformer model.loss optim.reference optim.clip
    generate.reference
""")
"""The modules that define results."""

FUSED = _names("""
    _native model.fused model.kernels model.cuda_graph optim.fused generate.decoder generate.packed_weights
    generate.fused_step generate.device_steps generate.generator generate.prompt_chunks
    generate.row_sampling generate.slots
""")
"""The modules that compute the same results faster; they import the reference modules, never the reverse."""

MODULES = [
    ".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in (SOURCE / "bytewright").rglob("*.py")
]


@functools.cache
def imported_modules(source: str) -> frozenset[str]:
    """Return the full names of the modules that a source text imports anywhere.

    >>> source = "import os; from bytewright import errors; from bytewright.data import get_batch"
    >>> sorted(imported_modules(source))
    ['bytewright.data', 'bytewright.errors', 'os']
    """
    modules: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import; write the full name of the module"
            package = SOURCE / str(node.module).replace(".", "/")
            for alias in node.names:
                is_module = (package / alias.name).is_dir() or (package / f"{alias.name}.py").is_file()
                modules.add(f"{node.module}.{alias.name}" if is_module else str(node.module))
    return frozenset(modules)


def find_violations(module: str, source: str) -> list[str]:
    """List the imports of a module that point in the wrong direction."""
    found = []
    for package, order in ORDER.items():
        if not module.startswith(package + ".") or module == f"{package}.__init__":
            continue
        own = module.removeprefix(package + ".").split(".")[0]
        for imported in imported_modules(source):
            name = imported.removeprefix(package + ".").split(".")[0]
            if imported.startswith(package + ".") and name != own and name not in order[: order.index(own)]:
                found.append(f"{module} imports {imported}, but {name} does not stand before {own}")
    return found


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_modules_before_it(module: str) -> None:
    source = (SOURCE / module.replace(".", "/")).with_suffix(".py").read_text()
    assert not find_violations(module, source)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("bytewright.model.layers", "from bytewright.train import run"),
        ("bytewright.data.sampler", "def late():\n    import bytewright.tokenizer.train"),
        ("bytewright.train.config", "from bytewright.train.run import Run"),
        ("bytewright.train.session.recorder", "from bytewright.train.session.loop import Trainer"),
        ("bytewright.train.checkpoint", "from bytewright.train.session import ranks"),
        ("bytewright.experiments.records", "from bytewright.experiments import sweep"),
        ("bytewright.experiments.evaluation.stories", "from bytewright.experiments.execute import run_sweep"),
        ("bytewright.account.memory", "from bytewright.account.predict import training_costs"),
        ("bytewright.report.tables", "from bytewright.cli.main import main"),
    ],
)
def test_a_seeded_violation_is_found(module: str, source: str) -> None:
    assert module in MODULES
    assert len(find_violations(module, source)) == 1


def test_a_module_without_a_place_in_the_order_is_found() -> None:
    with pytest.raises(ValueError, match="helpers"):
        find_violations("bytewright.helpers.text", "import bytewright.errors")


def test_importing_bytewright_imports_only_the_settings_for_torch() -> None:
    source = (SOURCE / "bytewright" / "__init__.py").read_text()
    assert {name for name in imported_modules(source) if name.startswith("bytewright")} == {
        "bytewright.torch_environment"
    }


def find_fused_imports(source: str) -> set[str]:
    """Return the fused modules that a source text imports, directly or through other modules."""
    pending, seen = set(imported_modules(source)), set()
    while pending:
        name = pending.pop()
        seen.add(name)
        path = SOURCE / name.replace(".", "/")
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if name.startswith("bytewright.") and file.is_file():
                pending |= imported_modules(file.read_text()) - seen
    fused = tuple(f"bytewright.{name}" for name in FUSED)
    return {name for name in seen if f"{name}.".startswith(tuple(f"{prefix}." for prefix in fused))}


@pytest.mark.parametrize("module", REFERENCE)
def test_a_reference_module_imports_no_fused_one(module: str) -> None:
    source = (SOURCE / "bytewright" / module.replace(".", "/")).with_suffix(".py").read_text()
    assert not find_fused_imports(source)


@pytest.mark.parametrize(
    "source",
    [
        "from bytewright.model.fused import linear_cross_entropy",
        "def late():\n    from bytewright.model.kernels import attention",
        "from bytewright.model import TransformerLM",  # the package selects the fused implementation
        "from bytewright.generate.generator import generate",
        "import bytewright._native",
    ],
)
def test_a_seeded_import_of_fused_code_is_found(source: str) -> None:
    assert find_fused_imports(source)


def test_only_the_text_module_of_generate_imports_the_tokenizer() -> None:
    modules = [name for name in MODULES if name.startswith("bytewright.generate.")]
    for module in set(modules) - {"bytewright.generate.text"}:
        source = (SOURCE / module.replace(".", "/")).with_suffix(".py").read_text()
        assert not {name for name in imported_modules(source) if name.startswith("bytewright.tokenizer")}


@pytest.mark.parametrize("package", ["data", "model", "optim", "parallel", "account", "generate", "train"])
def test_the_model_and_its_training_do_not_need_the_native_extension(package: str) -> None:
    """A machine with a GPU may have token files only, and no Rust compiler."""
    program = f"import sys; sys.modules['bytewright._native'] = None; import bytewright.{package}"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def find_imported_tests(source: str) -> set[str]:
    """Return the test modules that a source text imports."""
    return {name for name in imported_modules(source) if name.split(".")[-1].startswith("test_")}


def test_no_test_module_is_imported() -> None:
    """Shared helpers are in `tests/support`, or in a module without tests next to the tests that use it."""
    files = Path(__file__).parent.rglob("*.py")
    found = {str(path): names for path in files if (names := find_imported_tests(path.read_text()))}
    assert not found


def test_a_seeded_import_of_a_test_module_is_found() -> None:
    assert find_imported_tests("from test_execute import SweepRunner") == {"test_execute"}
    assert find_imported_tests("def late():\n    import train.test_loop") == {"train.test_loop"}

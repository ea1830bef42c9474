"""Environment variables are set before torch is imported, unless the user has set them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import bytewright
from bytewright import torch_environment
from bytewright.model import kernels
from bytewright.torch_environment import (
    KERNELS,
    PRODUCT,
    amx_faults,
    digest,
    keep_compiled_steps,
    lacks_palette,
    prepare,
    product_faults,
)
from conftest import RunCommand

SETTINGS = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "GOMP_SPINCOUNT": "2000"}
ISA_LIMIT = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}

# Highest leaf of CPUID, EDX of leaf 7, XCR0, EAX of leaf 0x1D subleaf 1, as recorded. The faulty processor is
# composed: what Emerald Rapids reports, with the leaves cut off before the palette.
EMERALD_RAPIDS = (0x20, 0xBFD1_4410, 0x6_02E7, 0x400_2000)
WITHOUT_PALETTE = (0x1C, 0xBFD1_4410, 0x6_02E7, 0)
ZEN_4 = (0x1C, 0x10, 0xE7, 0)

# Stops at the first import of torch and prints what torch would read.
AT_IMPORT = """
import importlib, json, os, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print(json.dumps(dict(os.environ)))
            sys.stdout.flush()
            os._exit(0)
sys.meta_path.insert(0, Finder())
package = importlib.import_module(sys.argv[1])
for name in package.__all__:  # imported on first use
    getattr(package, name)
"""


def environment_at_import(module: str, given: dict[str, str]) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    command = [sys.executable, "-c", AT_IMPORT, module]
    done = subprocess.run(command, env=inherited | given, capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "module",
    ["model.kernels", "model", "data.sampler", "account", "train", "generate", "experiments.execute", "demo"],
)
def test_importing_a_package_sets_the_variables_before_torch_is_imported(module: str) -> None:
    assert SETTINGS.items() <= environment_at_import(f"bytewright.{module}", {}).items()


def test_variables_of_the_user_are_not_changed() -> None:
    given = {"GOMP_SPINCOUNT": "7", "PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}
    assert given.items() <= environment_at_import("bytewright.train", given).items()


def test_tests_import_bytewright_before_torch() -> None:
    modules = list(sys.modules)
    assert modules.index("bytewright.torch_environment") < modules.index("torch")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, SETTINGS | ISA_LIMIT),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}, SETTINGS | ISA_LIMIT),
        ({"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}, {"GOMP_SPINCOUNT": "2000"} | ISA_LIMIT),
        ({"GOMP_SPINCOUNT": "7"}, SETTINGS | ISA_LIMIT),
        ({"OMP_WAIT_POLICY": "active"}, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"} | ISA_LIMIT),
        ({"ONEDNN_MAX_CPU_ISA": "AVX2"}, SETTINGS),
        ({"DNNL_MAX_CPU_ISA": "AVX2"}, SETTINGS),
    ],
)
def test_only_variables_that_the_user_has_not_set_are_set(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], expected: dict[str, str]
) -> None:
    monkeypatch.setattr(torch_environment, "amx_faults", lambda: True)
    environment = dict(given)
    prepare(environment)
    assert environment == expected | given


@pytest.mark.parametrize("faults", [True, False])
def test_onednn_is_limited_where_amx_faults(monkeypatch: pytest.MonkeyPatch, faults: bool) -> None:
    monkeypatch.setattr(torch_environment, "amx_faults", lambda: faults)
    environment: dict[str, str] = {}
    prepare(environment)
    assert ("ONEDNN_MAX_CPU_ISA" in environment) is faults


@pytest.mark.parametrize(
    ("report", "faults"),
    [
        (WITHOUT_PALETTE, True),
        ((0x20, 0xBFD1_4410, 0x6_02E7, 0), True),  # the leaf exists, but describes nothing
        (EMERALD_RAPIDS, False),
        ((0x1C, 0xBFD1_4410, 0x2E7, 0), False),  # the operating system has not enabled tiles
        ((0x1C, 0xBF91_4410, 0x6_02E7, 0), False),  # tiles without bf16
        (ZEN_4, False),
    ],
)
def test_amx_without_a_tile_palette_is_found(report: tuple[int, int, int, int], faults: bool) -> None:
    assert lacks_palette(*report) is faults


def test_the_native_extension_reports_what_the_processor_has(monkeypatch: pytest.MonkeyPatch) -> None:
    native = pytest.importorskip("bytewright._native")
    report = native.read_amx()
    if report is not None and Path("/proc/cpuinfo").exists():
        block = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
        assert (report[1] >> 22 & 1 == 1) >= (" amx_bf16" in block)  # Linux hides what it has not enabled
    monkeypatch.setattr(native, "read_amx", lambda: WITHOUT_PALETTE)
    assert amx_faults()
    monkeypatch.setattr(native, "read_amx", lambda: EMERALD_RAPIDS)
    assert not amx_faults()
    monkeypatch.setattr(native, "read_amx", lambda: None)  # another architecture
    assert not amx_faults()


def test_without_the_extension_a_child_process_decides_once_per_kind_of_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty, works = "import os, signal; os.kill(os.getpid(), signal.SIGILL)", "pass"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def write_cpuinfo(model: str, flags: str, frequency: int) -> Path:
        path = tmp_path / "cpuinfo"
        block = f"model name\t: {model}\ncpu MHz\t\t: {frequency}\nflags\t\t: {flags}\n"
        path.write_text(f"processor\t: 0\n{block}\nprocessor\t: 1\n{block}\n")
        return path

    assert not product_faults(write_cpuinfo("old", "fpu avx2", 1000), faulty), "AMX is not advertised"
    one = write_cpuinfo("one", "fpu amx_bf16 amx_tile", 1000)
    assert not product_faults(one, "raise SystemExit(1)"), (
        "without torch there is no answer, and none is kept"
    )
    assert product_faults(one, faulty)
    one = write_cpuinfo("one", "fpu amx_bf16 amx_tile", 2000)
    assert product_faults(one, works), "the answer is kept whatever the frequency is at the moment"
    other = write_cpuinfo("other", "fpu amx_bf16 amx_tile", 1000)
    assert not product_faults(other, works), "another kind of processor is tried for itself"
    assert not product_faults(other, faulty)
    for answer in tmp_path.glob("cache/bytewright/amx-*"):
        answer.write_bytes(b"\xff")
    assert product_faults(other, faulty), "a damaged answer is not read"
    assert not product_faults(tmp_path / "missing", faulty), "not Linux"


def test_the_product_of_the_child_process_is_correct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.setrlimit", lambda *_: None)
    names: dict[str, Tensor] = {}
    exec(PRODUCT, names)
    assert names["product"].dtype == torch.bfloat16
    assert names["product"].eq(256).all()


def test_the_doctor_reports_amx_that_faults_and_the_limit(
    run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bytewright.cli.doctor.amx_faults", lambda: True)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
    found = {it["name"]: it["found"] for it in json.loads(run("doctor", "--json").out)["findings"]}
    assert "fault" in found["AMX"]
    assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16" in found["AMX"]


def test_only_commands_let_torch_keep_compiled_steps(
    run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = "TORCHINDUCTOR_AUTOGRAD_CACHE_ALLOW_CUSTOM_AUTOGRAD"
    monkeypatch.delenv(variable, raising=False)
    environment: dict[str, str] = {}
    prepare(environment)
    assert variable not in environment
    run("--version")
    assert os.environ[variable] == "1"
    monkeypatch.setenv(variable, "0")
    run("--version")
    assert os.environ[variable] == "0"


def test_the_cache_tag_is_added_to_the_tag_of_the_user() -> None:
    ours = f"bytewright {digest(KERNELS)}"
    for given, expected in [({}, ours), ({"TORCH_COMPILE_CACHE_KEY_TAG": "mine"}, f"mine {ours}")]:
        environment = dict(given)
        for _ in range(2):  # a command that starts another
            keep_compiled_steps(environment)
            assert environment["TORCH_COMPILE_CACHE_KEY_TAG"] == expected


def test_the_cache_tag_depends_on_the_text_of_the_kernels(tmp_path: Path) -> None:
    assert KERNELS.samefile(Path(bytewright.__file__).parent / "model" / "kernels")
    shutil.copytree(KERNELS, tmp_path / "kernels")
    before = digest(tmp_path / "kernels")
    assert before == digest(KERNELS)
    kernel = tmp_path / "kernels" / "attention.py"
    kernel.write_text(kernel.read_text().replace("return dqkv", "return -dqkv"))
    assert digest(tmp_path / "kernels") != before


def test_generation_does_not_import_the_compiler_of_torch() -> None:
    """The import takes two to three seconds, longer than a short text."""
    generate = """
import sys
from bytewright.generate import SamplingConfig, generate
from bytewright.model import ModelConfig, TransformerLM
from bytewright.model.transformer import weight_shapes
config = ModelConfig(vocab_size=40, context_length=8, d_model=16, num_layers=1, num_heads=2)
assert weight_shapes(config)
(written,) = generate(TransformerLM(config), [[1, 2]], SamplingConfig(max_new_tokens=3))
assert len(written.ids) == 3
print("torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", generate], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_supported_gpu_has_the_mark_of_a_constant_result() -> None:
    def marked() -> bool:
        return True

    torch.compiler.assume_constant_result(marked)  # type: ignore[no-untyped-call]
    assert vars(marked) == vars(kernels._is_supported_gpu)

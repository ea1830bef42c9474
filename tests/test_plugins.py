"""A plugin is executed once and registers its parts or nothing; a run records the plugins that it uses."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import hashlib
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch.overrides import _get_current_function_mode_stack

from bytewright import plugins
from bytewright.errors import FormatError, StorageError, UsageError
from bytewright.experiments.evaluation.stories import SamplingPlan
from bytewright.experiments.plan import check_same_sampling
from bytewright.plugins import (
    check_loaded,
    check_recorded,
    errors_of_part,
    find_plugins,
    load_plugin,
    plugin_digests,
    read_plugins,
    unload_plugin,
    write_plugins,
)
from bytewright.registry import losses
from bytewright.storage import atomic, filesystem
from bytewright.train.run import Run
from bytewright.train.run_files import RunWriter, check_new_run
from rejection import rejects
from runs import make_config

SOURCE = """
from bytewright.registry import losses, samplers

@losses.register("odd")
def odd(hidden, output_weight, targets, *, scale: float = 2.0):
    return scale * hidden.mean()
"""
SETTINGS = {"loss.name": "odd", "seed": 0}

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Write]:
    written = []

    def write_plugin(source: str = SOURCE, name: str = "lab.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
        written.append(path)
        return path

    yield write_plugin
    for path in written:
        unload_plugin(path)
    assert "odd" not in losses


def test_a_loaded_plugin_registers_its_parts(write: Write) -> None:
    plugin = load_plugin(write())
    assert losses["odd"].__name__ == "odd"
    assert plugin.parts == {"loss.name": ("odd",)}
    assert plugin.sha256 == hashlib.sha256(SOURCE.encode()).hexdigest()


def test_loading_a_plugin_or_a_copy_of_it_again_has_no_effect(write: Write) -> None:
    first = load_plugin(write())
    part = losses["odd"]
    assert load_plugin(write()) is first
    assert load_plugin(write(name="copy.py")) is first
    assert losses["odd"] is part


def test_a_changed_plugin_replaces_its_parts(write: Write) -> None:
    load_plugin(write())
    load_plugin(write(SOURCE.replace('"odd"', '"odd_too"')))
    assert "odd" not in losses
    assert "odd_too" in losses


def test_a_module_that_was_imported_before_is_not_executed_again(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(name="imported_lab.py")
    monkeypatch.syspath_prepend(str(path.parent))
    module = importlib.import_module("imported_lab")
    monkeypatch.delitem(sys.modules, "imported_lab")
    assert losses.plugin_of("odd") == path.resolve()
    assert plugin_digests(SETTINGS) == {"loss.name": hashlib.sha256(SOURCE.encode()).hexdigest()}
    load_plugin(path)
    assert losses["odd"] is module.odd


@pytest.mark.parametrize(
    ("source", "line", "cause"),
    [
        ("x = (", 1, SyntaxError),
        ("\n\nimport no_such_module\n", 3, ModuleNotFoundError),
        ("def f():\n    return 1 / 0\nf()\n", 2, ZeroDivisionError),
        ("import json\n\njson.loads('{')\n", 3, json.JSONDecodeError),
        ("raise SystemExit('bye')", 1, SystemExit),
        ("import asyncio\nraise asyncio.CancelledError('bye')", 2, asyncio.CancelledError),
        ('from bytewright.registry import losses\nlosses.register("a b")', 2, UsageError),
        (SOURCE + "\nlosses.register('odd')(print)\n", 8, UsageError),
    ],
)
def test_an_error_in_a_plugin_names_file_and_line(
    write: Write, source: str, line: int, cause: type[BaseException]
) -> None:
    path = write(source)
    with rejects(UsageError, path=path, key="plugin", found=line) as caught:
        load_plugin(path)
    assert f"{path}, line {line}: " in str(caught.value)
    assert type(caught.value.__cause__) is cause
    assert "odd" not in losses  # nothing remains of a file that fails


def test_a_plugin_that_registers_nothing_is_executed_with_a_warning(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("from bytewright.registry import losses\n\ndef odd(hidden):\n    return hidden.mean()\n")
    with pytest.warns(plugins.PluginWarning, match="registers no new part"):
        assert load_plugin(path).parts == {}
    imported = write(SOURCE, name="imported_parts.py")
    monkeypatch.syspath_prepend(str(imported.parent))
    load_plugin(write("import imported_parts\n", name="importer.py"))  # without a warning
    monkeypatch.delitem(sys.modules, "imported_parts")
    assert losses.plugin_of("odd") == imported.resolve()


def test_a_signal_that_arrives_while_a_plugin_is_executed_is_not_an_error_of_it(write: Write) -> None:
    with pytest.raises(KeyboardInterrupt):
        load_plugin(write("raise KeyboardInterrupt"))


@pytest.mark.parametrize("change", ["device('meta')", "dtype(torch.float64)"])
def test_a_plugin_that_changes_the_defaults_of_torch_is_rejected(write: Write, change: str) -> None:
    path = write(f"import torch\ntorch.set_default_{change}\n")
    with rejects(UsageError, path=path, key="plugin"):
        load_plugin(path)
    assert torch.get_default_device().type == "cpu"
    stack = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    assert not stack, "every operation of torch would call Python"
    assert torch.zeros(1).dtype == torch.float32


def test_a_part_that_changes_the_defaults_of_torch_is_rejected(write: Write) -> None:
    path = write("from bytewright.registry import losses\nlosses.register('odd')(print)\n")
    load_plugin(path)
    with (
        rejects(UsageError, key="plugin", found=("meta", "torch.float32")) as caught,
        errors_of_part(losses, "odd", "failed in a trial"),
    ):
        torch.set_default_device("meta")
    assert "the loss 'odd' changes" in str(caught.value)
    assert torch.get_default_device().type == "cpu"


def test_a_missing_file_and_a_folder_are_rejected(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.py", tmp_path):
        with pytest.raises(UsageError) as caught:
            load_plugin(path)
        assert caught.value.path == path


def test_two_plugins_with_the_same_file_name_are_both_loaded_and_copied(write: Write, tmp_path: Path) -> None:
    other = """
from bytewright.registry import samplers

@samplers.register("even")
def even(probabilities):
    return probabilities
"""
    load_plugin(write())
    load_plugin(write(other, name="other/lab.py"))
    run = tmp_path / "run"
    run.mkdir()
    write_plugins(run, SETTINGS | {"sampler.name": "even"})
    first, second = read_plugins(run)
    assert first.copy.read_text() == SOURCE
    assert second.copy.read_text() == other
    check_loaded(run)


def test_a_run_records_only_the_plugins_that_its_config_uses(write: Write, tmp_path: Path) -> None:
    load_plugin(write())
    assert find_plugins({"loss.name": "cross_entropy", "optimizer.name": "adamw"}) == []
    run = tmp_path / "run"
    run.mkdir()
    write_plugins(run, {"loss.name": "cross_entropy"})
    assert list(run.iterdir()) == []
    assert read_plugins(run) == []
    check_loaded(run)


def test_the_record_of_a_killed_start_is_replaced(write: Write, tmp_path: Path) -> None:
    run = _record(write, tmp_path)  # without config.json: the process was killed before the run began
    check_new_run(run)
    unload_plugin(write())
    RunWriter.create(run, make_config(tmp_path)).close()
    assert Run(run).plugins == []
    assert not (run / "plugins").exists()
    assert Run(run).config == make_config(tmp_path)


@pytest.mark.fault
def test_a_full_disk_leaves_no_run_without_the_record_of_its_plugins(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_plugin(write())
    config = make_config(tmp_path, loss={"name": "odd"})
    num_failures = 0
    for limit in range(200):
        count = 0

        def fail(operation: str, *paths: Path, limit: int = limit) -> None:
            nonlocal count
            count += 1
            if count > limit:
                raise OSError(errno.ENOSPC, "no space left on device")

        monkeypatch.setattr(filesystem, "before_operation", fail)
        path = tmp_path / f"run-{limit}"
        try:
            RunWriter.create(path, config).close()
            failed = False
        except StorageError:
            failed = True
        monkeypatch.undo()
        num_failures += failed
        if Run(path).exists:
            assert Run(path).plugin_digests == plugin_digests(SETTINGS)
            assert Run(path).plugins[0].copy.read_text() == SOURCE
        if not failed:
            break
    assert num_failures > 5
    assert Run(path).exists


def _record(write: Write, tmp_path: Path) -> Path:
    load_plugin(write())
    run = tmp_path / "run"
    run.mkdir()
    write_plugins(run, SETTINGS)
    check_loaded(run)
    return run


def test_a_run_whose_plugin_is_not_loaded_is_rejected(write: Write, tmp_path: Path) -> None:
    run = _record(write, tmp_path)
    unload_plugin(write())
    with pytest.raises(UsageError, match=f"add --plugin {write()}") as caught:
        check_loaded(run)
    assert (caught.value.path, caught.value.key) == (run, "loss.name")
    write(SOURCE + "# changed")
    with pytest.raises(UsageError, match=f"add --plugin {run / 'plugins' / 'lab.py'}"):
        check_loaded(run)
    check_loaded(run, of_model_only=True)  # a loss is not a part of the model


def test_a_changed_plugin_is_rejected_and_its_recorded_copy_accepted(write: Write, tmp_path: Path) -> None:
    run = _record(write, tmp_path)
    changed = load_plugin(write(SOURCE.replace("2.0", "3.0")))
    with pytest.raises(UsageError) as caught:
        check_loaded(run)
    assert caught.value.expected == hashlib.sha256(SOURCE.encode()).hexdigest()
    assert caught.value.found == changed.sha256
    unload_plugin(changed.path)
    copy = run / "plugins" / "lab.py"
    load_plugin(copy)
    check_loaded(run)
    unload_plugin(copy)


def test_a_lost_record_is_rejected(write: Write, tmp_path: Path) -> None:
    run = _record(write, tmp_path)
    load_plugin(write())
    check_recorded(run, SETTINGS)
    (run / "plugins.json").unlink()
    with pytest.raises(FormatError) as caught:
        check_recorded(run, SETTINGS)
    assert (caught.value.path, caught.value.key) == (run / "plugins.json", "loss.name")


@pytest.mark.parametrize(
    "records",
    [
        None,
        [1],
        [{"path": "a.py", "sha256": "0", "copy": "a.py"}],
        [{"path": "a.py", "sha256": "0", "copy": "../a.py", "parts": {}}],
        [{"path": "a.py", "sha256": "0", "copy": "a.py", "parts": {"loss.name": 1}}],
        [{"path": "a.py", "sha256": "0", "copy": "a.py", "parts": {"seed": "1"}}],
    ],
)
def test_a_malformed_record_is_rejected(tmp_path: Path, records: object) -> None:
    atomic.write_document(tmp_path / plugins.PLUGINS, {"plugins": records})
    with pytest.raises(FormatError):
        check_loaded(tmp_path)


def test_texts_of_another_version_of_a_sampler_are_rejected(write: Write, tmp_path: Path) -> None:
    source = """
from bytewright.registry import samplers

@samplers.register("test_keep")
def keep(probabilities):
    return probabilities
"""
    load_plugin(write(source))
    plan = SamplingPlan(sampler="test_keep")
    outcome = {
        "sampling": dataclasses.asdict(plan),
        "plugins": plugin_digests({"sampler.name": "test_keep"}),
    }
    check_same_sampling(plan, outcome, tmp_path)
    load_plugin(write(source + "# changed"))
    with rejects(UsageError, path=tmp_path, found=outcome["plugins"]):
        check_same_sampling(plan, outcome, tmp_path)
    of_earlier_versions = dataclasses.asdict(SamplingPlan())
    del of_earlier_versions["sampler"], of_earlier_versions["sampler_options"]
    check_same_sampling(SamplingPlan(), {"sampling": of_earlier_versions}, tmp_path)

"""Checkpoints are loaded bit for bit; damaged files and files of other models are rejected."""

from __future__ import annotations

import copy
import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from bytewright.errors import FormatError, StorageError, UsageError
from bytewright.model import ModelConfig, TransformerLM
from bytewright.optim.fused import FusedAdamW
from bytewright.optim.reference import SGD, AdamW, CombinedOptimizer, Muon
from bytewright.storage import atomic
from bytewright.train.checkpoint import CheckpointFolder, plain_state_dict
from bytewright.train.run_files import find_checkpoint
from bytewright.train.saved_model import load_checkpoint, load_model, save_checkpoint
from rejection import rejects
from runs import equal

CONFIG = ModelConfig(
    vocab_size=20, context_length=8, d_model=16, num_layers=1, num_heads=2, implementation="reference"
)


def make(seed: int, kind: type = AdamW) -> tuple[TransformerLM, Any]:
    torch.manual_seed(seed)
    model = TransformerLM(CONFIG)
    optimizer = kind(model.parameters(), lr=0.01)
    for _ in range(2):
        ids = torch.randint(20, (2, 8))
        optimizer.zero_grad()
        torch.autograd.backward(model(ids).square().mean())
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("kind", [AdamW, FusedAdamW, torch.optim.AdamW])
@pytest.mark.parametrize("where", ["path", "string", "file object"])
def test_a_checkpoint_gives_back_model_optimizer_and_iteration(
    tmp_path: Path, kind: type, where: str
) -> None:
    model, optimizer = make(0, kind)
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    stream = io.BytesIO()
    targets: dict[str, Any] = {"path": tmp_path / "c", "string": str(tmp_path / "c"), "file object": stream}
    save_checkpoint(model, optimizer, 123, targets[where])
    stream.seek(0)
    other_model, other_optimizer = make(1, kind)
    assert load_checkpoint(targets[where], other_model, other_optimizer) == 123
    assert equal(dict(other_model.state_dict()), dict(weights))
    assert equal(other_optimizer.state_dict(), state)


@pytest.mark.parametrize("iteration", [-1, 10**18])
def test_an_iteration_out_of_range_is_not_saved(tmp_path: Path, iteration: int) -> None:
    with rejects(UsageError, key="iteration", found=iteration):
        save_checkpoint(*make(0), iteration, tmp_path / "c")
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_of_a_compiled_model_has_plain_names(tmp_path: Path) -> None:
    model, optimizer = make(0)
    compiled = torch.compile(model, backend="eager")
    assert isinstance(compiled, torch.nn.Module)
    save_checkpoint(compiled, optimizer, 1, tmp_path / "c")
    other, other_optimizer = make(1)
    load_checkpoint(tmp_path / "c", other, other_optimizer)
    assert equal(dict(other.state_dict()), dict(model.state_dict()))


def test_a_checkpoint_of_another_model_is_rejected_with_the_weight(tmp_path: Path) -> None:
    model, optimizer = make(0)
    save_checkpoint(model, optimizer, 1, tmp_path / "c")
    larger = TransformerLM(dataclasses.replace(CONFIG, num_layers=2))
    with rejects(FormatError, path=tmp_path / "c", key="layers.1.ln1.weight"):
        load_checkpoint(tmp_path / "c", larger, optimizer)
    wider = TransformerLM(dataclasses.replace(CONFIG, vocab_size=21))
    with rejects(FormatError, expected=(21, 16), found=(20, 16)):
        load_checkpoint(tmp_path / "c", wider, optimizer)


def two_together(model: TransformerLM, *, second_lr: Any = 0.01) -> CombinedOptimizer:
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    gains = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    return CombinedOptimizer([Muon(matrices), AdamW(gains, lr=second_lr)])


@pytest.mark.parametrize("kind", [SGD, two_together, torch.optim.SGD])
def test_a_rejected_optimizer_state_changes_no_weight(tmp_path: Path, kind: Any) -> None:
    save_checkpoint(*make(0), 1, tmp_path / "c")
    CheckpointFolder(tmp_path).save(*make(0), {"step": 5})
    model, _ = make(1)
    optimizer = kind(model) if kind is two_together else kind([{"params": [p]} for p in model.parameters()])
    before = copy.deepcopy((dict(model.state_dict()), optimizer.state_dict()))
    with pytest.raises((FormatError, ValueError)):
        load_checkpoint(tmp_path / "c", model, optimizer)
    with pytest.raises((FormatError, ValueError)):
        CheckpointFolder(tmp_path).read(5).load_into(model, optimizer)
    assert equal((dict(model.state_dict()), optimizer.state_dict()), before)


def test_rejected_weights_do_not_change_the_optimizer(tmp_path: Path) -> None:
    model, optimizer = make(0)
    save_checkpoint(model, optimizer, 1, tmp_path / "c")
    _, other = make(1)
    before = copy.deepcopy(other.state_dict())
    longer = TransformerLM(dataclasses.replace(CONFIG, norm="none"))
    with rejects(FormatError, path=tmp_path / "c"):
        load_checkpoint(tmp_path / "c", longer, other)
    assert equal(other.state_dict(), before)


def test_optimizers_together_take_over_all_their_states_or_none() -> None:
    model, _ = make(0)
    saved = two_together(model, second_lr=0.5).state_dict()
    saved["param_groups"][0]["lr"] = 0.7
    saved["state"].popitem()
    together = two_together(model)
    before = copy.deepcopy(together.state_dict())
    with rejects(FormatError, found=2):
        together.load_state_dict(saved)
    assert equal(together.state_dict(), before)


def test_a_rejected_optimizer_state_names_its_file(tmp_path: Path) -> None:
    save_checkpoint(*make(0), 1, tmp_path / "c")
    model, _ = make(1)
    with rejects(FormatError, path=tmp_path / "c"):
        load_checkpoint(tmp_path / "c", model, two_together(model))


def test_files_that_are_not_checkpoints_are_rejected(tmp_path: Path) -> None:
    model, optimizer = make(0)
    with rejects(StorageError, path=tmp_path / "nothing"):
        load_checkpoint(tmp_path / "nothing", model, optimizer)
    (tmp_path / "text").write_bytes(b"not a checkpoint at all")
    with rejects(FormatError, path=tmp_path / "text"):
        load_checkpoint(tmp_path / "text", model, optimizer)
    safetensors.torch.save_file({"weight": torch.ones(2)}, tmp_path / "other")
    with rejects(FormatError, path=tmp_path / "other"):
        load_checkpoint(tmp_path / "other", model, optimizer)


def test_every_truncation_of_a_checkpoint_is_rejected(tmp_path: Path) -> None:
    model, optimizer = make(0)
    stream = io.BytesIO()
    save_checkpoint(model, optimizer, 1, stream)
    whole = stream.getvalue()
    for length in [0, 1, 7, 8, 9, 100, len(whole) // 2, len(whole) - 1]:
        with pytest.raises(FormatError):
            load_checkpoint(io.BytesIO(whole[:length]), model, optimizer)


def test_the_last_few_and_the_best_checkpoints_are_kept(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints")
    model, optimizer = make(0)
    for step in (10, 20, 30, 40):
        folder.save(model, optimizer, {"step": step, "best_step": 10})
        folder.prune(2, 10)
    assert folder.steps() == [10, 30, 40]
    assert find_checkpoint(tmp_path).name == "step-000010"
    assert find_checkpoint(tmp_path, which="last").name == "step-000040"
    assert find_checkpoint(folder.at(30)) == folder.at(30)


def test_the_leftovers_of_a_killed_writer_are_removed(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    leftover = tmp_path / ".step-000005.0123abcd.bytewright-tmp"
    leftover.mkdir()
    (leftover / "model.safetensors").write_bytes(b"half")
    folder.prune(1, None)
    assert list(tmp_path.iterdir()) == []


def test_a_changed_byte_in_a_checkpoint_folder_is_detected(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    model, optimizer = make(0)
    folder.save(model, optimizer, {"step": 5})
    for name in ("model.safetensors", "optimizer.safetensors", "state.json"):
        path = folder.at(5) / name
        whole = path.read_bytes()
        path.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
        with rejects(FormatError, path=path):
            folder.read(5)
        path.write_bytes(whole)
    assert folder.read(5).rest == {"step": 5}


def test_a_damaged_last_checkpoint_names_the_previous_step(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    assert folder.read_last() is None
    for step, before in ((100, 0), (200, 100)):
        folder.save(*make(0), {"step": step})
        (folder.at(step) / "model.safetensors").write_bytes(b"half")
        with rejects(FormatError, path=folder.at(step), expected=before):
            folder.read_last()
    (folder.at(200) / "model.safetensors").unlink()
    with rejects(StorageError, path=folder.at(200), expected=100):
        folder.read_last()


def test_a_model_is_built_from_its_checkpoint_alone(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints")
    model, optimizer = make(0)
    folder.save(model, optimizer, {"step": 5})
    for path in (folder.at(5), str(folder.at(5)), tmp_path, str(tmp_path)):
        loaded = load_model(path)
        assert loaded.config == CONFIG
        assert equal(dict(loaded.state_dict()), dict(model.state_dict()))


def test_the_model_of_a_run_is_its_best_or_its_last(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints")
    models = {step: make(step)[0] for step in (10, 20)}
    for step, model in models.items():
        folder.save(model, make(0)[1], {"step": step, "best_step": 10})
    assert equal(dict(load_model(tmp_path).state_dict()), dict(models[10].state_dict()))
    assert equal(dict(load_model(tmp_path, which="last").state_dict()), dict(models[20].state_dict()))
    with pytest.raises(UsageError) as caught:
        find_checkpoint(tmp_path, which="first")
    assert (caught.value.key, caught.value.found) == ("which", "first")
    with pytest.raises(UsageError) as caught:
        load_model(tmp_path / "nowhere")
    assert caught.value.path == tmp_path / "nowhere"


def test_load_checkpoint_rejects_a_folder(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints")
    model, optimizer = make(0)
    folder.save(model, optimizer, {"step": 5})
    for path in (tmp_path, folder.at(5)):
        with rejects(UsageError, path=path):
            load_checkpoint(str(path), model, optimizer)


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"vocab_size": 10**8}, {"expected": (10**8, 16)}),
        ({"d_model": 2**28, "ffn": "silu"}, {}),
        ({"d_model": 10**300}, {"key": "d_model"}),
        ({"num_layers": 10**8}, {"expected": 10**8}),
        ({"rope_theta": 10**400}, {"path": "step-000005/manifest.json"}),
        ({"context_length": 10**8}, {"key": "context_length", "found": 10**8}),
        ({"unheard_of": 1}, {"key": "unheard_of"}),
    ],
)
def test_a_manifest_with_wrong_sizes_allocates_no_memory(
    tmp_path: Path, changes: dict[str, Any], fields: dict[str, Any]
) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints")
    folder.save(*make(0), {"step": 5})
    manifest = folder.at(5) / "manifest.json"
    root = atomic.read_document(manifest)
    root["about"]["model"] |= changes
    manifest.write_text(json.dumps(root))
    fields = {**fields, "path": folder.path / fields.get("path", "step-000005")}
    with rejects(FormatError, **fields):
        load_model(folder.at(5))


def test_a_model_with_an_edited_manifest_is_not_built(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints")
    folder.save(*make(0), {"step": 5})
    manifest = folder.at(5) / "manifest.json"
    sound = manifest.read_text()
    assert '"rope_theta": 10000.0' in sound
    manifest.write_text(sound.replace('"rope_theta": 10000.0', '"rope_theta": 10001.0'))
    with rejects(FormatError, path=manifest):
        load_model(folder.at(5))


def test_layers_that_only_the_manifest_claims_are_not_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of a million is named in the file; without a count, all would be built to be compared."""
    folder = CheckpointFolder(tmp_path / "checkpoints")
    model, optimizer = make(0)
    with_last = plain_state_dict(model) | {"layers.999999.attn.q_proj.weight": torch.zeros(1)}
    monkeypatch.setattr("bytewright.train.checkpoint.plain_state_dict", lambda model: with_last)
    monkeypatch.setattr(model, "config", dataclasses.replace(CONFIG, num_layers=10**6))
    folder.save(model, optimizer, {"step": 5})
    with pytest.raises(FormatError) as caught:
        load_model(folder.at(5))
    assert caught.value.expected == 10**6


@pytest.mark.parametrize(
    "break_it",
    [
        lambda state: state.pop("state"),
        lambda state: state["state"].pop(0),
        lambda state: state["state"].update({0: 7}),
        lambda state: state["state"][0].pop("step"),
        lambda state: state["state"][0].update(step="1"),
        lambda state: state["param_groups"][0].pop("betas"),
        lambda state: state["param_groups"][0].update(betas=("a", "b")),
        lambda state: state["param_groups"][0].update(lr=None),
        lambda state: state.update(param_groups={}),
    ],
)
def test_an_invalid_optimizer_state_is_rejected(break_it: Any) -> None:
    _, optimizer = make(0)
    state = optimizer.state_dict()
    break_it(state)
    with pytest.raises(FormatError):
        optimizer.load_state_dict(state)


def test_the_error_of_an_unreadable_checkpoint_does_not_suggest_removal(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints")
    weights = folder.save(*make(0), {"step": 5}) / "model.safetensors"
    weights.unlink()
    with rejects(StorageError, path=folder.at(5), expected=0):
        folder.read_last()
    weights.symlink_to(weights)  # a circle, which cannot be read
    with pytest.raises(StorageError) as caught:
        folder.read_last()
    assert "remove" not in str(caught.value)


def test_a_folder_without_checkpoints_is_rejected(tmp_path: Path) -> None:
    with rejects(UsageError, path=tmp_path):
        find_checkpoint(tmp_path)

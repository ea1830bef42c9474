"""Fuzz targets for the readers of models: checkpoints, run configs, and folders of `transformers`.

The manifest of a checkpoint matches the damaged file; otherwise the checksum would reject every input. A
reader must return a working model, or a state with which an optimizer can continue.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from targets import Script, Target, check_message, edit, mutate

from bytewright.errors import BytewrightError
from bytewright.model import ModelConfig, TransformerLM
from bytewright.model.hf_llama import read_llama, write_llama
from bytewright.optim.fused import FusedAdamW
from bytewright.storage import atomic
from bytewright.storage.manifest import Entry, dump_manifest
from bytewright.train.checkpoint import CheckpointFolder
from bytewright.train.recipe import read_config
from bytewright.train.saved_model import load_checkpoint, load_model, save_checkpoint

NAMES = ["llama-config", "llama-weights", "checkpoint-about", "checkpoint-state", "checkpoint-weights"]
NAMES += ["saved-checkpoint", "run-config"]

SMALL = ModelConfig(vocab_size=11, context_length=4, d_model=8, num_layers=1, num_heads=2, d_ff=8)
RUN = {"model": SMALL.to_dict(), "data": {"train": "train.npy"}, "budget": {"steps": 5}, "batch_size": 4}


def check(read: Callable[[], Any]) -> None:
    """Read a file; use the result, or check the error message."""
    try:
        found = read()
    except BytewrightError as error:
        check_message(error)
        return
    if isinstance(found, TransformerLM):
        assert found(torch.zeros(1, 1, dtype=torch.long)).shape == (1, 1, found.config.vocab_size)


def mutate_file(path: Path, sound: bytes, data: bytes) -> bytes:
    """Mutate a file; an input that starts with H edits only the JSON header of a safetensors file."""
    if path.suffix != ".safetensors" or data[:1] != b"H":
        return mutate(sound, data, is_json=path.suffix == ".json")
    length = 8 + int.from_bytes(sound[:8], "little")
    header, script = json.loads(sound[8:length]), Script(data[1:])
    while not script.is_used_up:
        header = edit(header, script)
    encoded = json.dumps(header).encode()
    return len(encoded).to_bytes(8, "little") + encoded + sound[length:]


def make_pair() -> tuple[TransformerLM, FusedAdamW]:
    """Return a model and an optimizer after one step."""
    model = TransformerLM(SMALL)
    optimizer = FusedAdamW(model.parameters())
    take_step(model, optimizer)
    return model, optimizer


def take_step(model: TransformerLM, optimizer: FusedAdamW) -> None:
    """Apply one update."""
    torch.autograd.backward(model(torch.zeros(1, 2, dtype=torch.long)).float().square().mean())
    optimizer.step()
    optimizer.zero_grad()


def make_targets(folder: Path) -> dict[str, Target]:
    """Write valid files into `folder` and return a target for each of them."""
    model, optimizer = make_pair()
    llama, run_config = folder / "llama", folder / "config.json"
    write_llama(model, llama)
    run_config.write_text(json.dumps(RUN))
    checkpoints = CheckpointFolder(folder / "checkpoints")
    step = checkpoints.save(model, optimizer, {"step": 1})
    saved = io.BytesIO()
    save_checkpoint(model, optimizer, 1, saved)

    def target(path: Path, read: Callable[[], Any]) -> Target:
        sound = path.read_bytes()

        def run(data: bytes) -> None:
            path.write_bytes(mutate_file(path, sound, data))
            check(read)

        return run

    def with_matching_manifest(name: str, read: Callable[[], Any]) -> Target:
        """Return a target that damages one file of the checkpoint, or the manifest's `about`."""
        opened = atomic.open_folder(step)
        about = dict(opened.about)
        sounds = {path.name: path.read_bytes() for path in step.iterdir() if path.name != "manifest.json"}

        def run(data: bytes) -> None:
            files, changed = dict(sounds), about
            if name == "about":
                broken = mutate(json.dumps(about).encode(), data, is_json=True)
                try:
                    changed = json.loads(broken)
                    dump_manifest(changed, {})
                except ValueError:  # a manifest cannot contain this value
                    return
                if not isinstance(changed, dict):
                    return
            else:
                files[name] = mutate_file(step / name, sounds[name], data)
                (step / name).write_bytes(files[name])
            entries = {
                file: Entry(len(contents), hashlib.sha256(contents).hexdigest())
                for file, contents in files.items()
            }
            (step / "manifest.json").write_bytes(dump_manifest(changed, entries))
            check(read)

        return run

    def resume_from_checkpoint() -> None:
        model, optimizer = make_pair()
        checkpoints.read(1).load_into(model, optimizer)
        take_step(model, optimizer)

    def load_saved(data: bytes) -> None:
        model, optimizer = make_pair()
        broken = mutate_file(Path("saved.safetensors"), saved.getvalue(), data)

        def read() -> None:
            load_checkpoint(io.BytesIO(broken), model, optimizer)
            take_step(model, optimizer)

        check(read)

    made = {
        "llama-config": target(llama / "config.json", lambda: read_llama(llama)),
        "llama-weights": target(llama / "model.safetensors", lambda: read_llama(llama)),
        "checkpoint-about": with_matching_manifest("about", lambda: load_model(step)),
        "checkpoint-state": with_matching_manifest("state.json", resume_from_checkpoint),
        "checkpoint-weights": with_matching_manifest("model.safetensors", lambda: load_model(step)),
        "saved-checkpoint": load_saved,
        "run-config": target(run_config, lambda: read_config(run_config)),
    }
    assert list(made) == NAMES
    return made

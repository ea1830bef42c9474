"""Checkpoints: a model, its optimizer and the progress of a run, saved and loaded bit for bit without pickle.

A run has a folder per checkpoint (`checkpoints/step-000500/`, written atomically): `model.safetensors`, which
any tool can read, `optimizer.safetensors`, and `state.json` with everything else that a resume needs.
`CheckpointFolder` keeps the last few of them and the best. An invalid file raises `FormatError` and changes
neither the model nor the optimizer. `saved_model` loads models, and writes checkpoints as single files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import safetensors
import safetensors.torch
import torch
from torch import Tensor
from torch.nn import Module

from bytewright.errors import FormatError, StorageError, UsageError
from bytewright.model import ModelConfig, TransformerLM
from bytewright.model.transformer import Shape, too_few_for_layers, weight_shapes
from bytewright.optim.saved_state import load_state
from bytewright.parallel.rows import Rows
from bytewright.storage import atomic
from bytewright.storage.filesystem import WRONG_PATH
from bytewright.train.checkpoint_list import FORMAT, STATE, CheckpointList, open_checkpoint

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The safetensors names of the types that a model or an optimizer may store."""

Named = dict[str, Tensor | Rows]
"""Tensors by name: whole ones, or the rows of this rank."""


@runtime_checkable
class Writable(Protocol):
    """Anything that accepts bytes: an open file, a `BytesIO`, a socket's file."""

    def write(self, data: Any, /) -> Any:
        """Write the bytes."""


def pack(tree: object, prefix: str = "") -> tuple[dict[str, Tensor], Any]:
    """Split a tree of dicts, lists, numbers and tensors into tensors, named by path, and a JSON skeleton.

    >>> tensors, skeleton = pack({"lr": 0.1, "state": {0: {"m": torch.zeros(2)}}})
    >>> list(tensors)
    ['state.0.m']
    >>> unpack(tensors, skeleton, "example")["state"][0]["m"]
    tensor([0., 0.])
    """
    tensors: dict[str, Tensor] = {}

    def take(node: object, place: str) -> Any:
        match node:
            case Tensor():
                if place in tensors:  # {"a.b": x} next to {"a": {"b": y}}
                    message = f"the state cannot be saved: two tensors would be called {place!r}"
                    raise UsageError(message, key=place)
                if node.dtype not in DTYPES or node.layout is not torch.strided:
                    raise _cannot_save(place, f"tensor of {node.dtype} and {node.layout}")
                tensors[place] = node
                return {"tensor": place}
            case dict():
                for key in node:
                    if not isinstance(key, str | int):
                        raise _cannot_save(place, f"dict with a key of type {type(key).__name__}")
                return {"dict": [[key, take(value, _join(place, key))] for key, value in node.items()]}
            case tuple():
                return {"tuple": [take(value, _join(place, i)) for i, value in enumerate(node)]}
            case list():
                return [take(value, _join(place, i)) for i, value in enumerate(node)]
            case float() if not math.isfinite(node):
                return {"float": repr(node)}
            case None | bool() | int() | float() | str():
                return node
        raise _cannot_save(place, type(node).__name__)

    skeleton = take(tree, prefix)
    return tensors, skeleton


def _cannot_save(place: str, found: str) -> UsageError:
    message = (
        f"{place or 'the state'} is a {found}, which a checkpoint cannot hold; use tensors, numbers, strings,"
        " None, and lists, tuples and dicts of them"
    )
    return UsageError(message, key=place, found=found)


def check_savable(optimizer: Stateful) -> None:
    """Raise `UsageError` if a checkpoint cannot hold the state of `optimizer`."""
    pack(optimizer.state_dict(), "optimizer")


def unpack(tensors: Mapping[str, Tensor], skeleton: Any, source: str) -> Any:
    """Return the tree that `pack` split; `source` names the file in an error."""
    try:
        return _unpack(tensors, skeleton, source)
    except RecursionError:
        raise FormatError.at(source, "is nested too deeply to be a saved state") from None


def _unpack(tensors: Mapping[str, Tensor], skeleton: Any, source: str) -> Any:
    match skeleton:
        case {"tensor": str() as place, **rest} if not rest:
            if place not in tensors:
                raise FormatError.at(source, f"the tensor {place!r} is missing", key=place)
            return tensors[place]
        case {"dict": list() as items, **rest} if not rest:
            tree = {}
            for item in items:
                if not isinstance(item, list) or len(item) != 2 or not isinstance(item[0], str | int):
                    raise FormatError.at(source, f"{str(item)[:60]!r} is not a key and a value", found=item)
                tree[item[0]] = _unpack(tensors, item[1], source)
            return tree
        case {"tuple": list() as items, **rest} if not rest:
            return tuple(_unpack(tensors, item, source) for item in items)
        case {"float": "nan" | "inf" | "-inf" as word, **rest} if not rest:
            return float(word)
        case list():
            return [_unpack(tensors, item, source) for item in skeleton]
        case None | bool() | int() | float() | str():
            return skeleton
    raise FormatError.at(source, f"{str(skeleton)[:60]!r} is not part of a saved state", found=skeleton)


def write_tensors(
    stream: Writable, tensors: Mapping[str, Tensor | Rows], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors in the safetensors format: eight bytes of length, a JSON header, the data in its order.

    Names are sorted, so equal tensors give equal bytes. Tensors may share memory; each is written completely.
    Rows that are shared out over ranks are gathered when they are written; the others call `send_rows`.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        if tensor.dtype not in DTYPES:
            message = f"{name!r} is of {tensor.dtype}, which cannot be saved"
            raise UsageError(message, key=name, found=tensor.dtype)
        end = offset + math.prod(tensor.shape) * tensor.dtype.itemsize
        header[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    encoded = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    encoded += b" " * (-len(encoded) % 8)  # the data starts aligned
    stream.write(len(encoded).to_bytes(8, "little"))
    stream.write(encoded)
    for name in sorted(tensors):
        given = tensors[name]
        tensor = given.gather_on_main() if isinstance(given, Rows) else given
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        stream.write(flat.view(torch.uint8).numpy().data)


def send_rows(tensors: Mapping[str, Tensor | Rows]) -> None:
    """Send the rows of this rank to rank 0, which calls `write_tensors` with tensors of the same names."""
    for name in sorted(tensors):
        tensor = tensors[name]
        if isinstance(tensor, Rows):
            tensor.gather()


def read_tensors(data: bytes, source: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a safetensors file."""
    try:
        tensors = safetensors.torch.load(data)
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise FormatError.at(source, f"is not a safetensors file ({error})") from None
    return tensors, header.get("__metadata__") or {}


def _join(place: str, key: object) -> str:
    return f"{place}.{key}" if place else str(key)


@runtime_checkable
class Stateful(Protocol):
    """Anything with a state dict: our optimizers, or torch's."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Replace the state."""


@dataclass(frozen=True, kw_only=True)
class SavedState:
    """The contents of a checkpoint, read and checked for damage, but not loaded into a model yet."""

    source: str
    """The file or folder, for errors."""
    weights: Mapping[str, Tensor]
    optimizer: Any
    """The state dict of the optimizer."""
    rest: dict[str, Any]
    """The progress of the run, and its data and config."""

    def check_model(self, config: ModelConfig) -> None:
        """Raise unless the weights are those of a model of `config`; call it before the model is built."""
        check_model_weights(config, self.weights, self.source)

    def load_into(self, model: Module, optimizer: Stateful, rows: StateRows | None = None) -> None:
        """Load both, or raise and change neither; of a sharded model, only the rows of this rank."""
        check_weights(shapes_of(model), self.weights, self.source)
        try:
            # The optimizer checks its own state; the weights were checked above, so nothing fails after it.
            load_state(optimizer, self.optimizer if rows is None else rows.cut_state(self.optimizer))
        except FormatError as error:
            raise FormatError.at(self.source, error) from None
        if rows is None:
            getattr(model, "_orig_mod", model).load_state_dict(self.weights)
        else:
            rows.load_weights(self.weights, model)


@dataclass(frozen=True)
class StateRows:
    """The rows of weights and optimizer state that this rank stores of a sharded model."""

    weights: Mapping[str, Rows]
    optimizer: Sequence[Mapping[str, Rows]]
    """The state tensors by name, for each parameter in the order of the optimizer."""

    def list_tensors(self, model: Module, optimizer: Stateful) -> tuple[Named, Named, Any]:
        """Return weights and state by the names in a checkpoint, and the skeleton of the state."""
        weights = {name: self.weights.get(name, tensor) for name, tensor in plain_state_dict(model).items()}
        state, skeleton = pack(optimizer.state_dict())
        of_tensor = {id(rows.local): rows for one in self.optimizer for rows in one.values()}
        return weights, {name: of_tensor.get(id(tensor), tensor) for name, tensor in state.items()}, skeleton

    def send(self, model: Module, optimizer: Stateful) -> None:
        """Send the rows of this rank to rank 0, which saves a checkpoint."""
        weights, state, _ = self.list_tensors(model, optimizer)
        send_rows(weights)
        send_rows(state)

    def cut_state(self, state_dict: Any) -> Any:
        """Return a saved state of the optimizer with the rows of this rank."""
        if not isinstance(state_dict, Mapping) or not isinstance(state_dict.get("state"), Mapping):
            return state_dict  # the optimizer rejects it

        def cut(value: Any, rows: Rows | None) -> Any:
            fits = rows is not None and isinstance(value, Tensor) and tuple(value.shape) == rows.shape
            return rows.cut(value) if rows is not None and fits else value

        own = dict(enumerate(self.optimizer))
        state = {
            number: {name: cut(value, own[number].get(name)) for name, value in values.items()}
            if number in own and isinstance(values, Mapping)
            else values
            for number, values in state_dict["state"].items()
        }
        return {**state_dict, "state": state}

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, Tensor], model: Module) -> None:
        """Copy the rows of this rank from whole weights, one tensor after the other."""
        for name, tensor in plain_state_dict(model).items():
            rows = self.weights.get(name)
            if rows is None:
                tensor.copy_(weights[name])
            else:
                rows.fill(weights[name])


def plain_state_dict(model: Module) -> dict[str, Tensor]:
    """Return the state dict of the plain module, also for a compiled one."""
    prefix = "_orig_mod."  # torch.compile puts it before every name
    return {name.removeprefix(prefix): tensor for name, tensor in model.state_dict().items()}


def shapes_of(model: Module) -> dict[str, Shape]:
    """Return the shape of every weight of a module, by its name."""
    return {name: tuple(tensor.shape) for name, tensor in plain_state_dict(model).items()}


def load_weights(model: Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Copy `weights` into `model`; raise if one is missing, unknown or of another shape."""
    check_weights(shapes_of(model), weights, source)
    getattr(model, "_orig_mod", model).load_state_dict(weights)


def check_weights(expected: Mapping[str, Shape], weights: Mapping[str, Tensor], source: str) -> None:
    """Raise if `weights` differ from `expected` in names or shapes."""
    for name in expected:
        if name not in weights:
            raise FormatError.at(source, f"the weight {name!r} of this model is missing", key=name)
    for name, weight in weights.items():
        if name not in expected:
            raise FormatError.at(source, f"holds a weight {name!r}, which this model does not have", key=name)
        shape, found = expected[name], tuple(weight.shape)
        if found != shape:
            message = f"the weight {name!r} has the shape {found}, this model expects {shape}"
            raise FormatError.at(source, message, key=name, expected=shape, found=found)


def check_model_weights(config: ModelConfig, weights: Mapping[str, Tensor], source: str) -> None:
    """Raise unless `weights` are those of a model of `config`; memory is proportional to the weights."""
    if too_few_for_layers(weights, config):
        message = f"has fewer layers than the {config.num_layers} of its config"
        raise FormatError.at(source, message, expected=config.num_layers)
    check_weights(weight_shapes(config), weights, source)


@dataclass(frozen=True)
class CheckpointFolder(CheckpointList):
    """The checkpoints of a run, with their tensors."""

    def save(
        self,
        model: TransformerLM,
        optimizer: Stateful,
        state: Mapping[str, Any],
        rows: StateRows | None = None,
    ) -> Path:
        """Write the checkpoint of `state["step"]`, atomically; an existing one is replaced.

        The tensors of a sharded model are gathered one by one; the other ranks call `StateRows.send`.
        """
        target = self.at(state["step"])
        weights, tensors, skeleton = (rows or StateRows({}, ())).list_tensors(model, optimizer)
        about = {"kind": FORMAT, "step": state["step"], "model": model.config.to_dict()}
        with atomic.write_folder(target, about=about, replace=True, within=self.path.parent) as folder:
            with folder.write_stream("model.safetensors") as stream:
                write_tensors(stream, weights, {"format": "pt"})
            with folder.write_stream("optimizer.safetensors") as stream:
                write_tensors(stream, tensors)
            folder.write_json(STATE, {**state, "optimizer": skeleton})
        return target

    def read(self, step: int, *, mapped: bool = False) -> SavedState:
        """Read the checkpoint of `step`, checked against its manifest.

        With `mapped`, tensors are views of the mapped files, which occupy no memory until they are copied.
        """
        folder = open_checkpoint(self.at(step))
        state = self.read_state(step)
        tensors = read_file(folder, "optimizer.safetensors", mapped=mapped)
        return SavedState(
            source=str(folder.path),
            weights=read_file(folder, "model.safetensors", mapped=mapped),
            optimizer=unpack(tensors, state.pop("optimizer"), str(folder.path)),
            rest=state,
        )

    def read_last(self, *, mapped: bool = False) -> SavedState | None:
        """Read the last checkpoint, if any; if it is damaged, the error states how to continue without it."""
        steps = self.steps()
        if not steps:
            return None
        try:
            return self.read(steps[-1], mapped=mapped)
        except (FormatError, StorageError) as error:
            if isinstance(error, StorageError) and error.errno not in WRONG_PATH:
                raise  # it may be intact, but unreadable now
            damaged, previous = self.at(steps[-1]), steps[-2] if len(steps) > 1 else 0
            message = f"{error}; to continue from step {previous}, remove {damaged}"
            raise type(error)(message, path=damaged, expected=previous) from None


def read_file(folder: atomic.Folder, name: str, *, mapped: bool = False) -> dict[str, Tensor]:
    """Return the tensors of a file, checked against the manifest; with `mapped`, as views of the file."""
    if not mapped:
        return read_tensors(folder.read_bytes(name), str(folder.path / name))[0]
    path = folder.check(name)
    try:
        return safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise FormatError.at(path, f"is not a safetensors file ({error})") from None

"""Nested state (what a `state_dict` gives) as tensors and JSON, and back, without pickle.

`pack` takes a tree of dicts, lists, tuples, numbers and tensors apart into named tensors and a skeleton that
JSON can hold; `unpack` joins them again, to the same types. `write_tensors` streams tensors in the
safetensors format without a second copy in memory; `read_tensors` reads them. A file is untrusted: whatever
is wrong with it is a `FormatError`. This module knows nothing of what the state means.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from bytewright.errors import FormatError, UsageError

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
"""What safetensors calls the types that a model or an optimizer may keep."""


@runtime_checkable
class Writable(Protocol):
    """Anything that takes bytes: an open file, a `BytesIO`, a socket's file."""

    def write(self, data: Any, /) -> Any:
        """Take the bytes."""


def pack(tree: object, prefix: str = "") -> tuple[dict[str, Tensor], Any]:
    """Take a tree apart into tensors, named by their place, and a skeleton for JSON.

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
                if place in tensors:  # {"a.b": x} beside {"a": {"b": y}}
                    raise TypeError(f"cannot save the state: two tensors would be called {place!r}")
                tensors[place] = node
                return {"tensor": place}
            case dict():
                return {"dict": [[key, take(value, _join(place, key))] for key, value in node.items()]}
            case tuple():
                return {"tuple": [take(value, _join(place, i)) for i, value in enumerate(node)]}
            case list():
                return [take(value, _join(place, i)) for i, value in enumerate(node)]
            case float() if not math.isfinite(node):
                return {"float": repr(node)}
            case None | bool() | int() | float() | str():
                return node
        raise TypeError(f"cannot save {place or 'the state'}: it is a {type(node).__name__}")

    skeleton = take(tree, prefix)
    return tensors, skeleton


def unpack(tensors: Mapping[str, Tensor], skeleton: Any, source: str) -> Any:
    """Put a tree together again; `source` names the file in an error."""
    try:
        return _unpack(tensors, skeleton, source)
    except RecursionError:
        raise FormatError(f"{source}: is nested too deeply to be a saved state") from None


def _unpack(tensors: Mapping[str, Tensor], skeleton: Any, source: str) -> Any:
    match skeleton:
        case {"tensor": str() as place, **rest} if not rest:
            if place not in tensors:
                raise FormatError(f"{source}: the tensor {place!r} is missing")
            return tensors[place]
        case {"dict": list() as items, **rest} if not rest:
            tree = {}
            for item in items:
                if not isinstance(item, list) or len(item) != 2 or not isinstance(item[0], str | int):
                    raise FormatError(f"{source}: {str(item)[:60]!r} is not a key and a value")
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
    raise FormatError(f"{source}: {str(skeleton)[:60]!r} is no part of a saved state")


def write_tensors(
    stream: Writable, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors in the safetensors format: eight bytes of length, a JSON header, the data in its order.

    Names are sorted, so equal tensors give equal bytes. Tensors may share memory; each is written whole.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        if tensor.dtype not in DTYPES:
            raise UsageError(f"{name!r} is of {tensor.dtype}, which cannot be saved")
        end = offset + tensor.numel() * tensor.element_size()
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
        flat = tensors[name].detach().cpu().contiguous().reshape(-1)
        stream.write(flat.view(torch.uint8).numpy().data)


def read_tensors(data: bytes, source: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read tensors and metadata out of safetensors bytes."""
    try:
        tensors = safetensors.torch.load(data)
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise FormatError(f"{source}: is not a safetensors file ({error})") from None
    return tensors, header.get("__metadata__") or {}


def _join(place: str, key: object) -> str:
    return f"{place}.{key}" if place else str(key)

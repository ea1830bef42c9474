"""`pack` and `unpack` are inverse; invalid files and skeletons are rejected."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from bytewright.errors import FormatError, UsageError
from bytewright.train.checkpoint import pack, read_tensors, unpack, write_tensors
from rejection import rejects
from runs import equal

numbers = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text())
tensors = st.lists(st.floats(width=32, allow_nan=False)).map(torch.tensor)
trees = st.recursive(
    st.one_of(numbers, tensors),
    lambda node: st.one_of(
        st.lists(node),
        st.lists(node).map(tuple),
        st.dictionaries(st.one_of(st.text(alphabet="abcä\n"), st.integers()), node),
    ),
    max_leaves=10,
)


@given(tree=trees)
def test_any_state_survives_packing(tree: Any) -> None:
    assert equal(unpack(*pack(tree), "test"), tree)


def test_two_tensors_with_the_same_name_are_rejected() -> None:
    with pytest.raises(UsageError):
        pack({"a.b": torch.ones(1), "a": {"b": torch.zeros(1)}})


@pytest.mark.parametrize(
    "skeleton",
    [
        {"tensor": "missing"},
        {"tensor": 3},
        {"dict": [["key"]]},
        {"dict": [[None, 1]]},
        {"dict": {}},
        {"float": "1e5"},
        {"unknown": 1},
        {},
    ],
)
def test_a_hostile_skeleton_is_rejected(skeleton: Any) -> None:
    with pytest.raises(FormatError):
        unpack({}, skeleton, "state.json")


def test_a_skeleton_nested_too_deeply_is_rejected() -> None:
    skeleton: list[Any] = []
    for _ in range(5000):
        skeleton = [skeleton]
    with rejects(FormatError, path=Path("state.json")):
        unpack({}, skeleton, "state.json")


def test_our_writer_gives_files_that_the_library_reads() -> None:
    shared = torch.arange(6, dtype=torch.float32)
    tensors = {
        "b": shared.view(2, 3).T,
        "a": shared[:2],
        "scalar": torch.tensor(7),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "flags": torch.tensor([True, False]),
        "ids": torch.tensor([3, 65535], dtype=torch.uint16),
        "empty": torch.zeros(0, 4),
    }
    stream = io.BytesIO()
    write_tensors(stream, tensors, {"note": "ü"})
    loaded = safetensors.torch.load(stream.getvalue())
    assert equal(loaded, {name: tensors[name] for name in loaded})
    assert loaded.keys() == tensors.keys()
    assert read_tensors(stream.getvalue(), "x")[1] == {"note": "ü"}


def test_unsupported_types_and_empty_metadata_cause_no_traceback() -> None:
    with rejects(UsageError, key="angle", found=torch.complex64):
        write_tensors(io.BytesIO(), {"angle": torch.zeros(2, dtype=torch.complex64)})
    header = b'{"__metadata__":null}'
    assert read_tensors(len(header).to_bytes(8, "little") + header, "x") == ({}, {})


def test_numbers_that_json_lacks_survive() -> None:
    tree = {"a": math.inf, "b": -math.inf, "c": math.nan}
    assert equal(unpack({}, pack(tree)[1], "x"), tree)

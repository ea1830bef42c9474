"""Datasets: folders of token files (shards) that are read as one array.

`index.json` lists the shards in order. It is written last and atomically, so every listed shard is complete.
The manifest of a dataset has the same fields as that of one token file with all ids. Its `sha256` is that of
the concatenated ids. A dataset therefore trains exactly as one file, and a run can be resumed with either.

`TokenFile.open` opens a dataset if its path is a folder. Shards are mapped when they are read, at most
`MAX_MAPPED_SHARDS` at a time. So the limit of open files does not limit the number of shards.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bytewright.data.tokenfile import (
    CHUNK,
    MAX_COUNT,
    Ids,
    Manifest,
    TokenFile,
    check_vocabulary,
    hash_ids,
    map_ids,
)
from bytewright.errors import BytewrightError, FormatError, StorageError, UsageError
from bytewright.storage import atomic
from bytewright.storage.json_reader import Json
from bytewright.storage.manifest import is_plain_name

INDEX = "index.json"
FORMAT = "bytewright dataset 1"
MAX_INDEX_BYTES = 2**28
MAX_MAPPED_SHARDS = 256


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One token file of a dataset."""

    name: str
    num_tokens: int
    num_documents: int
    sha256: str

    @classmethod
    def parse(cls, json: Json) -> Shard:
        """Return the checked entry of an index."""
        json.check_keys(*cls.__dataclass_fields__)
        if not is_plain_name(json["name"].as_text()):
            raise json["name"].error("a plain file name")
        return cls(
            name=json["name"].as_text(),
            num_tokens=json["num_tokens"].as_integer(0, MAX_COUNT),
            num_documents=json["num_documents"].as_integer(0, MAX_COUNT),
            sha256=json["sha256"].as_sha256(),
        )


class ShardedIds:
    """The ids of several shards as one read-only array: length, type, slices and index arrays.

    Slices and index arrays return copies, except for a slice within one shard.
    """

    ndim = 1

    def __init__(self, folder: Path, shards: Sequence[Shard], dtype: np.dtype[Any]) -> None:
        self._paths = [folder / shard.name for shard in shards]
        self._ends = np.cumsum([shard.num_tokens for shard in shards], dtype=np.int64)
        self.dtype = dtype
        self._map = functools.lru_cache(MAX_MAPPED_SHARDS)(self._map_shard)

    def _map_shard(self, number: int) -> Ids:
        return map_ids(self._paths[number])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def shape(self) -> tuple[int]:
        """The length, as of an array."""
        return (len(self),)

    @property
    def nbytes(self) -> int:
        """The bytes of all ids."""
        return len(self) * self.dtype.itemsize

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.asarray(self[:], dtype=dtype)

    def __iter__(self) -> Iterator[int]:
        for start in range(0, len(self), CHUNK):
            yield from self[start : start + CHUNK].tolist()

    def tolist(self) -> list[int]:
        """Return all ids as a list."""
        return list(self)

    def tobytes(self) -> bytes:
        """Return the bytes of all ids."""
        return bytes(np.asarray(self).data)

    def __getitem__(self, places: Any) -> Any:
        """Return the ids of a slice without step, of an array of positions, or at one position."""
        if isinstance(places, slice):
            start, stop, step = places.indices(len(self))
            if step != 1:
                raise IndexError("a slice of a dataset has no step")
            return self._read_slice(start, max(start, stop))
        numbers = np.asarray(places)
        if numbers.size and numbers.dtype.kind not in "iu":  # booleans would be positions 0 and 1
            raise IndexError(f"the positions of ids must be integers, but are {numbers.dtype}")
        flat = numbers.reshape(-1).astype(np.int64)
        flat = np.where(flat < 0, flat + len(self), flat)
        if flat.size and not (flat.min() >= 0 and flat.max() < len(self)):
            raise IndexError(f"a position is outside the {len(self)} ids of the dataset")
        ids = self._gather(flat).reshape(numbers.shape)
        return ids if numbers.ndim else ids[()]

    def _read_slice(self, start: int, stop: int) -> npt.NDArray[Any]:
        first = int(np.searchsorted(self._ends, start, side="right"))
        pieces: list[npt.NDArray[Any]] = []
        while start < stop:
            end = int(self._ends[first])
            begin = end - len(self._map(first))
            pieces.append(self._map(first)[start - begin : min(stop, end) - begin])
            start, first = min(stop, end), first + 1
        return pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, self.dtype), *pieces])

    def _gather(self, places: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        ids = np.empty(len(places), dtype=self.dtype)
        shards = np.searchsorted(self._ends, places, side="right")
        order = np.argsort(shards, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(shards[order])) + 1)
        for group in groups if len(places) else ():
            number = int(shards[group[0]])
            array = self._map(number)
            ids[group] = array[places[group] - (self._ends[number] - len(array))]
        return ids


def open_dataset(folder: Path, *, verify: bool = False) -> TokenFile:
    """Open the dataset in a folder; with `verify`, read it completely and check every id.

    The size of every shard is checked in any case.
    """
    manifest, shards = read_index(folder)
    dtype = np.dtype(manifest.dtype).newbyteorder("<")
    for number, shard in enumerate(shards, start=1):
        _check_shard(folder, shard, f"shard {number} of {len(shards)}", dtype)
    tokens = ShardedIds(folder, shards, dtype)
    if verify:
        _verify(folder, shards, manifest)
    return TokenFile(path=folder, tokens=tokens, manifest=manifest)


def read_index(folder: Path) -> tuple[Manifest, list[Shard]]:
    """Return the manifest of all ids, and the shards in order."""
    path = folder / INDEX
    if not path.exists():
        message = (
            f"{folder}: is a folder without {INDEX}; give a token file, or a dataset that"
            " `bytewright tokenizer encode --cluster` has completed"
        )
        raise UsageError(message, path=folder, expected=INDEX)
    root = Json(atomic.read_document(path, max_bytes=MAX_INDEX_BYTES), path)
    root["format"].expect(FORMAT)
    root.check_keys("format", "shards", *Manifest.__dataclass_fields__)
    fields = {key: value for key, value in root.as_object().items() if key != "shards"}
    manifest = Manifest.parse(Json(fields, path))
    shards = [Shard.parse(each) for each in root["shards"].elements()]
    for key in ("num_tokens", "num_documents"):
        total = sum(getattr(shard, key) for shard in shards)
        if total != getattr(manifest, key):
            raise root[key].error(f"{total}, the sum over all shards")
    if manifest.mask_sha256 is not None:
        raise root["mask_sha256"].error("absent: datasets have no masks")
    return manifest, shards


def _check_shard(folder: Path, shard: Shard, which: str, dtype: np.dtype[Any]) -> None:
    path = folder / shard.name
    remedy = "encode the same texts into this folder again, which writes only what is missing"
    try:
        ids = map_ids(path)
    except StorageError as error:
        if os.path.exists(path):  # False, not an error, if the name is too long
            raise
        raise FormatError.at(path, f"{which} is missing; {remedy}") from error
    except BytewrightError as error:
        raise FormatError(f"{error} ({which}); {remedy}", path=path) from error
    if (len(ids), ids.dtype) != (shard.num_tokens, dtype):
        problem = f"has {len(ids)} ids ({ids.dtype}), but the index states {shard.num_tokens} ({dtype})"
        raise FormatError.at(path, f"{which} {problem}; {remedy}", expected=shard.num_tokens, found=len(ids))


def _verify(folder: Path, shards: Sequence[Shard], manifest: Manifest) -> None:
    whole, start = hashlib.sha256(), 0
    for number, shard in enumerate(shards, start=1):
        path, own = folder / shard.name, hashlib.sha256()
        ids = map_ids(path)
        check_vocabulary(path, ids, hash_ids(ids, own, whole), manifest, first=start)
        if (found := own.hexdigest()) != shard.sha256:
            message = (
                f"{path}: shard {number} of {len(shards)} has the SHA-256 {found[:12]}…, but the index states"
                f" {shard.sha256[:12]}…; encode the same texts into this folder again, which replaces it"
            )
            raise FormatError(message, path=path, key="sha256", expected=shard.sha256, found=found)
        start += shard.num_tokens
    if (found := whole.hexdigest()) != manifest.sha256:
        path, expected = folder / INDEX, manifest.sha256
        message = f"{path}: its shards have the SHA-256 {found[:12]}…, but it states {expected[:12]}…"
        raise FormatError(
            f"{message}; encode the texts again", path=path, key="sha256", expected=expected, found=found
        )


def write_index(folder: Path, shards: Iterable[tuple[str, Manifest]], sha256: str) -> None:
    """Write the index of complete shards, given by name and manifest; `sha256` is that of all their ids."""
    listed = list(shards)
    first = listed[0][1]
    whole = Manifest(
        tokenizer_fingerprint=first.tokenizer_fingerprint,
        vocabulary_size=first.vocabulary_size,
        dtype=first.dtype,
        num_tokens=sum(manifest.num_tokens for _, manifest in listed),
        num_documents=sum(manifest.num_documents for _, manifest in listed),
        sha256=sha256,
    )
    entries = [
        {
            "name": name,
            "num_tokens": manifest.num_tokens,
            "num_documents": manifest.num_documents,
            "sha256": manifest.sha256,
        }
        for name, manifest in listed
    ]
    atomic.write_document(folder / INDEX, {"format": FORMAT, **whole.to_plain(), "shards": entries})

"""Token files: ids as one `.npy` array that `np.load(path, mmap_mode="r")` reads, and a manifest next to it.

The manifest of `stories.npy` is `stories.npy.json`: the fingerprint of the tokenizer, the number of ids, and
their SHA-256. Opening checks the array's header and size against it, without unpickling. `verify=True` also
reads all ids and checks their SHA-256 and that each is in the vocabulary.

A file can have a mask, which selects the tokens whose prediction counts in the loss. The mask is a second
`.npy` array of booleans after the ids; a second `np.load` of the open file reads it. Its manifest then also
has `mask_sha256` and `num_counted`.

Two files cannot be replaced atomically. While the array is being replaced, its manifest therefore describes
both the old and the new array. A reader that finds this state, after a writer was killed, decides by the
SHA-256 which array exists. A token file is always exactly the old or exactly the new one.

A folder of token files is a dataset (`dataset`). `TokenFile.open` opens both.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from bytewright.errors import BytewrightError, FormatError, TokenizerError, shorten
from bytewright.storage import atomic, filesystem
from bytewright.storage.json_reader import Json
from bytewright.storage.manifest import manifest_path_of
from bytewright.system import Background, usable_cores

if TYPE_CHECKING:
    from bytewright.data.dataset import ShardedIds

FORMAT = "bytewright token file 1"
MAX_MANIFEST_BYTES = 2**20
MAX_COUNT = 2**60
"""The largest number of tokens or documents that is accepted from a manifest."""
CHUNK = 2**21
"""Number of ids that are converted, hashed or checked at a time; bounds the memory."""
SYNC_AHEAD = 2**24
"""Bytes after which a background fsync starts, so that the final fsync is short."""

Ids = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]
Mask = npt.NDArray[np.uint8]

# An `.npy` header is a magic string, a version, a length and a Python literal, padded with spaces. Ours has a
# fixed length, so that the count can be filled in at the end. Headers are matched against the literal that
# NumPy writes; nothing is evaluated.
_MAGIC = b"\x93NUMPY"
_VERSION = b"\x01\x00"
_HEADER_BYTES = 128
_LITERAL = re.compile(
    rb"\{'descr': '(<u2|<u4|\|b1)', 'fortran_order': False, 'shape': \((0|[1-9]\d{0,18}),\), \} *\n"
)


def dtype_for(vocabulary_size: int) -> np.dtype[np.uint16] | np.dtype[np.uint32]:
    """Return the smaller type that holds every id of the vocabulary.

    >>> dtype_for(65536), dtype_for(65537)
    (dtype('uint16'), dtype('uint32'))
    """
    return np.dtype("<u2") if vocabulary_size <= 2**16 else np.dtype("<u4")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The properties of the ids that are known without reading them."""

    tokenizer_fingerprint: str
    vocabulary_size: int
    dtype: str
    num_tokens: int
    num_documents: int
    sha256: str
    mask_sha256: str | None = None
    """SHA-256 of the mask; None if all tokens count."""
    num_counted: int | None = None
    """Number of tokens whose prediction counts; None if all do."""
    floor_bits_per_byte: float | None = None
    """The information content of the text, if it was generated: the expected minimum loss of any model."""

    def to_plain(self) -> dict[str, object]:
        """Return the fields that are not None."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def digests(self, name: str) -> dict[str, str]:
        """Return the SHA-256 of the ids under `name`, and of the mask, if any, under `name` + "_mask"."""
        return {name: self.sha256} | ({} if self.mask_sha256 is None else {f"{name}_mask": self.mask_sha256})

    @classmethod
    def parse(cls, json: Json) -> Manifest:
        """Return the checked description of an array in a manifest."""
        json.check_keys("format", *cls.__dataclass_fields__)

        has_mask = "mask_sha256" in json.as_object() or "num_counted" in json.as_object()
        has_floor = "floor_bits_per_byte" in json.as_object()
        vocabulary_size = json["vocabulary_size"].as_integer(1, 2**32)
        dtype = dtype_for(vocabulary_size).name
        if json["dtype"].value != dtype:
            raise json["dtype"].error(f"{shorten(dtype)} for a vocabulary of {vocabulary_size}")
        return cls(
            tokenizer_fingerprint=json["tokenizer_fingerprint"].as_sha256(),
            vocabulary_size=vocabulary_size,
            dtype=dtype,
            num_tokens=json["num_tokens"].as_integer(0, MAX_COUNT),
            num_documents=json["num_documents"].as_integer(0, MAX_COUNT),
            sha256=json["sha256"].as_sha256(),
            mask_sha256=json["mask_sha256"].as_sha256() if has_mask else None,
            num_counted=json["num_counted"].as_integer(0, MAX_COUNT) if has_mask else None,
            floor_bits_per_byte=json["floor_bits_per_byte"].as_number() if has_floor else None,
        )


@dataclass(frozen=True, kw_only=True)
class TokenFile:
    """A token file or dataset open for reading; `tokens` and `mask` are read-only arrays on mapped files."""

    path: Path
    tokens: Ids | ShardedIds
    manifest: Manifest
    mask: Mask | None = None
    """1 for each token whose prediction counts, 0 for others; None if all count."""

    @classmethod
    def open(cls, path: atomic.StrPath, *, verify: bool = False) -> TokenFile:
        """Open a token file, or the dataset in a folder; with `verify`, read it and check every id.

        Without `verify`, ids of a forged file can be outside the vocabulary.
        """
        path = Path(path)
        if os.path.isdir(path):  # False, not an error, if the path is too long
            from bytewright.data.dataset import open_dataset  # it imports this module

            return open_dataset(path, verify=verify)
        tokens, mask, described, is_settled = _read_both(path)
        fitting = _find_fitting(path, tokens, mask, described)
        if verify or not is_settled:
            fitting = _check_ids(path, tokens, fitting)
            fitting = fitting if mask is None else _check_mask(path, mask, fitting)
        return cls(path=path, tokens=tokens, manifest=fitting[0], mask=mask)

    def __len__(self) -> int:
        return len(self.tokens)

    def require_tokenizer(self, fingerprint: str) -> None:
        """Raise unless the ids were made by the tokenizer with this fingerprint."""
        key, path, found = "tokenizer_fingerprint", self.path, self.manifest.tokenizer_fingerprint
        if found != fingerprint:
            problem = (
                f"was encoded with tokenizer {found[:12]}…, but {fingerprint[:12]}… is used here;"
                " encode the text again, or name the other tokenizer"
            )
            raise TokenizerError.at(path, problem, key=key, expected=fingerprint, found=found)


class TokenFileWriter:
    """Writes a token file chunk by chunk, in bounded memory.

    The file appears when the `with` block ends. If the block raises an error, nothing changes. With `masked`,
    every `append` gets a mask; it is kept in memory until the end, one byte per token.

    With more than two cores, one thread hashes the ids while another writes them; the slower one bounds the
    speed. On an AMD EPYC with SHA instructions, SHA-256 takes 1.7 GB of ids per second, and writing 1.2
    (tmpfs) to 1.6 (disk).

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = f"{folder}/stories.npy"
    ...     with TokenFileWriter(path, tokenizer_fingerprint="0" * 64, vocabulary_size=300) as writer:
    ...         writer.append([7, 8, 299], num_documents=1)
    ...     np.load(path, mmap_mode="r").tolist()
    [7, 8, 299]
    """

    def __init__(
        self,
        path: atomic.StrPath,
        *,
        tokenizer_fingerprint: str,
        vocabulary_size: int,
        masked: bool = False,
        floor_bits_per_byte: float | None = None,
    ) -> None:
        self.path = Path(path)
        self._mask: list[Mask] | None = [] if masked else None
        self.num_tokens = 0
        self.num_documents = 0
        self._tokenizer_fingerprint = tokenizer_fingerprint
        self._vocabulary_size = vocabulary_size
        self._floor = floor_bits_per_byte
        self._dtype = dtype_for(vocabulary_size)
        self._digest = hashlib.sha256()
        self._num_unsynced = 0
        self._syncing: Future[None] | None = None
        self._stack = contextlib.ExitStack()
        self._stream: BinaryIO

    def __enter__(self) -> TokenFileWriter:
        atomic.check_target(manifest_path_of(self.path), replace=True)
        self._stream = self._stack.enter_context(atomic.write_stream(self.path))
        # Hashing in a thread of its own needs a spare core; with 0 threads, `submit` hashes at once.
        self._hasher = self._stack.enter_context(Background(1 if usable_cores() > 2 else 0))
        self._syncer = self._stack.enter_context(Background(1))
        self._stream.write(_header(self._dtype, 0))
        return self

    def append(
        self, ids: npt.ArrayLike, *, num_documents: int = 0, mask: npt.ArrayLike | None = None
    ) -> None:
        """Write ids, which end `num_documents` documents; `mask` selects those that count."""
        array = np.asarray(ids)
        if self._mask is not None:
            flags = np.asarray(mask, dtype=np.bool_).view(np.uint8)
            if mask is None or flags.shape != array.shape:
                message = f"the mask must have one value for each of {array.size} ids"
                raise TokenizerError(message, key="mask", expected=array.shape, found=flags.shape)
            self._mask.append(flags)
        elif mask is not None:
            raise TokenizerError("a mask needs a writer with masked=True", key="mask")
        if array.size and (array.ndim != 1 or array.dtype.kind not in "iu"):
            message = f"ids must be a list of integers, not an array {array.shape} of {array.dtype}"
            raise TokenizerError(message, key="ids", found=array.dtype)
        for start in range(0, array.size, CHUNK):
            self._append_chunk(array[start : start + CHUNK])
        self.num_documents += num_documents

    def _append_chunk(self, chunk: npt.NDArray[np.integer]) -> None:
        if chunk.max() >= self._vocabulary_size or (chunk.dtype.kind == "i" and chunk.min() < 0):
            place = int(np.argmax((chunk < 0) | (chunk >= self._vocabulary_size)))
            expected, found, path = self._vocabulary_size, int(chunk[place]), self.path
            position = self.num_tokens + place
            problem = f"token id {found} at position {position} is outside the vocabulary ({expected})"
            raise TokenizerError.at(path, problem, expected=expected, found=found)
        data = np.ascontiguousarray(chunk, dtype=self._dtype).data
        hashing = self._hasher.submit(self._digest.update, data)  # while the system copies the same bytes
        self._stream.write(data)
        hashing.result()
        self.num_tokens += len(chunk)
        self._num_unsynced += data.nbytes
        if self._num_unsynced >= SYNC_AHEAD and (self._syncing is None or self._syncing.done()):
            self._wait_for_sync()
            self._syncing = self._syncer.submit(os.fsync, self._stream.fileno())
            self._num_unsynced = 0

    def _wait_for_sync(self) -> None:
        """Wait for the background fsync and raise its error; the kernel reports an error only once."""
        if self._syncing is not None:
            with atomic.explain("write", self.path):
                self._syncing.result()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._stack.__exit__(kind, error, trace)
            return
        mask = None if self._mask is None else np.concatenate([np.empty(0, np.uint8), *self._mask])
        new = Manifest(
            tokenizer_fingerprint=self._tokenizer_fingerprint,
            vocabulary_size=self._vocabulary_size,
            dtype=self._dtype.name,
            num_tokens=self.num_tokens,
            num_documents=self.num_documents,
            sha256=self._digest.hexdigest(),
            mask_sha256=None if mask is None else hashlib.sha256(mask.data).hexdigest(),
            num_counted=None if mask is None else int(mask.sum(dtype=np.int64)),
            floor_bits_per_byte=self._floor,
        )
        manifest_path = manifest_path_of(self.path)
        with self._stack:  # the array is renamed to its path at the end of this block
            self._wait_for_sync()
            if mask is not None:
                self._stream.write(_header(np.dtype(np.bool_), len(mask)))
                self._stream.write(mask.data)
            self._stream.seek(0)
            self._stream.write(_header(self._dtype, self.num_tokens))
            with atomic.explain("write", self.path):  # a full disk must fail before the manifest changes
                self._stream.flush()
                os.fsync(self._stream.fileno())
            either = dict.fromkeys([*_manifests_if_any(self.path), new])
            atomic.write_document(
                manifest_path, {"format": FORMAT, "either": [each.to_plain() for each in either]}
            )
        atomic.write_document(manifest_path, {"format": FORMAT, **new.to_plain()})


def _header(dtype: np.dtype[Any], num_tokens: int) -> bytes:
    literal = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': ({num_tokens},), }}"
    start = _MAGIC + _VERSION + (_HEADER_BYTES - 10).to_bytes(2, "little")
    return start + literal.encode().ljust(_HEADER_BYTES - 11) + b"\n"


def _map_arrays(path: Path) -> tuple[Ids, Mask | None, os.stat_result]:
    """Memory-map the ids and the mask, if any, of a file; also return the status of the file."""
    with atomic.explain("read", path), filesystem.open_to_read(path) as file:
        dtype, num_tokens = _read_header(file, path)
        if dtype.kind != "u":
            message = f"{path}: holds booleans; a token file begins with ids of '<u2' or '<u4'"
            raise FormatError(message, path=path, key="header", found=dtype.str)
        offset = file.tell()
        status = os.fstat(file.fileno())
        end = offset + num_tokens * dtype.itemsize
        mask_offset = None
        file.seek(min(end, status.st_size))
        if file.read(len(_MAGIC)) == _MAGIC:
            file.seek(end)
            mask_dtype, num_flags = _read_header(file, path)
            if mask_dtype.kind != "b" or num_flags != num_tokens:
                message = (
                    f"{path}: a mask of {num_tokens} booleans may follow the ids, found {num_flags} values"
                    f" of type {mask_dtype.name}"
                )
                raise FormatError(message, path=path, key="mask", expected=num_tokens, found=num_flags)
            mask_offset = file.tell()
            end = mask_offset + num_flags
        if status.st_size != end:
            message = f"{path}: has {status.st_size} bytes, but the {num_tokens} ids of its header need {end}"
            raise FormatError(message, path=path, key="size", expected=end, found=status.st_size)
        ids: Ids = np.memmap(file, dtype=dtype, mode="r", offset=offset, shape=(num_tokens,))
        mask: Mask | None = None
        if mask_offset is not None:
            mask = np.memmap(file, dtype=np.uint8, mode="r", offset=mask_offset, shape=(num_tokens,))
        return ids, mask, status


def map_ids(path: Path) -> Ids:
    """Return the ids of a token file as a mapped array; its manifest is not read."""
    return _map_arrays(path)[0]


def _read_header(file: BinaryIO, path: Path) -> tuple[np.dtype[Any], int]:
    """Return the type and the length of the array at the position of an open file."""
    start = file.read(10)
    if start[:6] != _MAGIC:
        message = (
            f"{path}: is not an .npy file: it begins with {start[:6]!r}; if it is a text, encode it with"
            " `bytewright tokenizer encode`"
        )
        raise FormatError(message, path=path, key="magic", expected=_MAGIC, found=start[:6])
    literal = file.read(int.from_bytes(start[8:10], "little"))
    match = _LITERAL.fullmatch(literal)
    if start[6:8] != _VERSION or not match:
        message = (
            f"{path}: its header is {shorten(literal)}; expected version 1.0 with a one-dimensional array"
            " of '<u2' or '<u4'"
        )
        raise FormatError(message, path=path, key="header", found=literal)
    return np.dtype(match[1].decode()), int(match[2])


def _find_fitting(path: Path, tokens: Ids, mask: Mask | None, described: list[Manifest]) -> list[Manifest]:
    """Return the manifests with the size and type of the arrays; raise if there is none."""
    found, expected = (len(tokens), tokens.dtype.name), (described[-1].num_tokens, described[-1].dtype)
    fitting = [each for each in described if (each.num_tokens, each.dtype) == found]
    if not fitting:
        message = (
            f"{path}: holds {found[0]} ids of type {found[1]}, but its manifest states"
            f" {expected[0]} of type {expected[1]}"
        )
        raise FormatError(message, path=path, key="num_tokens", expected=expected[0], found=found[0])
    fitting = [each for each in fitting if (each.mask_sha256 is None) == (mask is None)]
    if not fitting:
        words = ("no mask", "a mask") if mask is None else ("a mask", "no mask")
        message = f"{path}: has {words[0]}, but its manifest describes {words[1]}; encode the data again"
        raise FormatError(message, path=path, key="mask_sha256", expected=words[1], found=words[0])
    return fitting


def _check_ids(path: Path, tokens: Ids, described: list[Manifest]) -> list[Manifest]:
    """Return the manifests that describe the ids; raise if there is none, or if an id is too large."""
    digest = hashlib.sha256()
    highest, sha256 = hash_ids(tokens, digest), digest.hexdigest()
    intact = [each for each in described if each.sha256 == sha256]
    if not intact:
        expected = described[-1].sha256
        message = (
            f"{path}: the SHA-256 of its ids is {sha256[:12]}…, but its manifest states {expected[:12]}…;"
            " the file was damaged or changed"
        )
        raise FormatError(message, path=path, key="sha256", expected=expected, found=sha256)
    check_vocabulary(path, tokens, highest, intact[0])
    return intact


def check_vocabulary(path: Path, ids: Ids, highest: int, manifest: Manifest, first: int = 0) -> None:
    """Raise if the highest id of a file is outside the vocabulary; its first id has the position `first`."""
    size = manifest.vocabulary_size
    if highest >= size:
        position = first + int(np.argmax(ids))
        message = f"token id {highest} at position {position} is outside the vocabulary ({size})"
        raise FormatError.at(path, message, expected=size, found=highest)


def _check_mask(path: Path, mask: Mask, described: list[Manifest]) -> list[Manifest]:
    """Return the manifests that describe a mask; raise if there is none."""
    digest, num_counted = hashlib.sha256(mask.data).hexdigest(), int(mask.sum(dtype=np.int64))
    fitting = [each for each in described if (each.mask_sha256, each.num_counted) == (digest, num_counted)]
    if not fitting or mask.max(initial=0) > 1:
        expected = described[-1].mask_sha256
        message = (
            f"{path}: its mask of {num_counted} counted tokens (SHA-256 {digest[:12]}…) is not the one of its"
            f" manifest ({described[-1].num_counted}, {str(expected)[:12]}…); the file was damaged"
        )
        raise FormatError(message, path=path, key="mask_sha256", expected=expected, found=digest)
    return fitting


def _read_both(path: Path) -> tuple[Ids, Mask | None, list[Manifest], bool]:
    """Map the arrays and read their manifest; retry if a writer replaced the arrays in between."""
    while True:
        ids, mask, status = _map_arrays(path)
        described, is_settled = _read_manifests(path)
        with atomic.explain("read", path):
            if os.path.samestat(path.stat(), status):
                return ids, mask, described, is_settled


def _read_manifests(path: Path) -> tuple[list[Manifest], bool]:
    """Return the described arrays, and whether there is only one (several while the array is replaced)."""
    file = manifest_path_of(path)
    if path.exists() and not file.exists():
        message = f"{path}: has no manifest {file.name} next to it; `bytewright tokenizer encode` writes both"
        raise FormatError(message, path=path)
    root = Json(atomic.read_document(file, max_bytes=MAX_MANIFEST_BYTES), file)
    root["format"].expect(FORMAT)
    if "either" not in root.as_object():
        return [Manifest.parse(root)], True
    root.check_keys("format", "either")
    manifests = [Manifest.parse(each) for each in root["either"].elements()]
    if not manifests:
        raise root["either"].error("an array of at least one")
    return manifests, False


def _manifests_if_any(path: Path) -> list[Manifest]:
    try:
        return _read_manifests(path)[0]
    except BytewrightError:
        return []  # there is no valid token file to preserve


def hash_ids(ids: Ids, *digests: hashlib._Hash) -> int:
    """Add ids to SHA-256 digests; return the highest id, or -1 if there are none."""
    highest = -1
    for start in range(0, len(ids), CHUNK):
        chunk = ids[start : start + CHUNK]
        for digest in digests:
            digest.update(chunk.data)
        highest = max(highest, int(chunk.max()))
    return highest

"""Write files of documents in parallel, each with a manifest of its world and its exact information content.

`SEPARATOR` follows each document: a line end, the end token, a line end. The fused generator runs on threads,
because it releases the GIL. The same arguments yield the same bytes for any number of threads, and a smaller
file is a prefix of a larger one.

The manifest of `world.txt` is `world.txt.json` (see `books.write_texts`).
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from decimal import Decimal, InvalidOperation
from importlib import resources
from itertools import count

from bytewright.corpus import SEPARATOR
from bytewright.corpus.books import MAX_MANIFEST_BYTES, WORLDBOOK_FORMAT, bits_per_byte, write_texts
from bytewright.corpus.worldbook.book import GRAMMAR_FILE, SPLITS, Split, Worldbook
from bytewright.corpus.worldbook.world import World
from bytewright.errors import FormatError, UsageError, wrong_value
from bytewright.executors import map_in_order
from bytewright.formatting import Progress
from bytewright.storage import atomic
from bytewright.storage.filesystem import StrPath
from bytewright.storage.json_reader import Json, read_document
from bytewright.storage.manifest import manifest_path_of
from bytewright.system import usable_cores

DOCUMENTS_PER_TASK = 512

Task = tuple[bytes, list[tuple[int, float]]]
"""The text of neighbouring documents, and the length and the bits of each."""


@dataclass(frozen=True, kw_only=True)
class WorldManifest:
    """The properties of a file of documents."""

    world: World
    split: Split
    seed: int
    grammar_sha256: str
    num_documents: int
    num_bytes: int
    bits: float
    """The sum of -log2 of the probabilities of the documents, their ends included."""
    sha256: str

    @property
    def bits_per_byte(self) -> float:
        """The floor: the expected minimum loss of any model on this file."""
        return bits_per_byte(self.bits, self.num_bytes, self.num_documents)

    def to_plain(self) -> dict[str, object]:
        """Return the fields for a JSON document."""
        fields = asdict(self)
        fields["world"]["exponent"] = str(self.world.exponent)
        return {"format": WORLDBOOK_FORMAT, **fields}


def write_worldbook(
    path: StrPath,
    size: int,
    *,
    world: World,
    seed: int = 1,
    split: Split = "train",
    num_threads: int = 1,
    progress: Progress | None = None,
) -> WorldManifest:
    """Write the first documents of a split, as many as fit into `size` bytes; at least one must fit."""
    bits: list[float] = []
    digest = hashlib.sha256()
    with write_texts(path) as stream, closing(_generate(world, seed, split, num_threads)) as tasks:
        num_bytes = 0
        for text, documents in tasks:
            end = 0
            for length, cost in documents:
                if num_bytes + end + length > size:
                    break
                end += length
                bits.append(cost)
            stream.write(text[:end])
            digest.update(text[:end])
            num_bytes += end
            if end < len(text):
                break
            if progress:
                progress(num_bytes, size)
        if not bits:
            expected = f"at least {documents[0][0]} bytes, the length of the first document"
            raise wrong_value("size", expected, size)
    manifest = WorldManifest(
        world=world,
        split=split,
        seed=seed,
        grammar_sha256=grammar_digest(),
        num_documents=len(bits),
        num_bytes=num_bytes,
        bits=math.fsum(bits),
        sha256=digest.hexdigest(),
    )
    atomic.write_document(manifest_path_of(path), manifest.to_plain())
    return manifest


def grammar_digest() -> str:
    """Return the SHA-256 of the grammar file."""
    return hashlib.sha256(resources.files(__package__).joinpath(GRAMMAR_FILE).read_bytes()).hexdigest()


def _generate(world: World, seed: int, split: Split, num_threads: int) -> Generator[Task, None, None]:
    from bytewright.corpus.worldbook.fused import make_writer  # only writing needs the native extension

    writer = make_writer(Worldbook(world).machine)
    separator = SEPARATOR.encode()

    def work(first: int) -> Task:
        return writer.write(SPLITS.index(split), seed, first, DOCUMENTS_PER_TASK, separator)

    starts = count(0, DOCUMENTS_PER_TASK)
    num_threads = min(num_threads, usable_cores())
    with (
        ThreadPoolExecutor(num_threads) as executor,
        closing(map_in_order(executor, work, starts, num_workers=num_threads)) as tasks,
    ):
        yield from tasks


def read_world_manifest(path: StrPath) -> WorldManifest | None:
    """Return the manifest of a text file; None without one. The size of the text must agree."""
    file = manifest_path_of(path)
    if not file.is_file():
        return None
    document = Json(read_document(file, max_bytes=MAX_MANIFEST_BYTES), file)
    if document.get("format").value != WORLDBOOK_FORMAT:
        return None
    document.check_keys("format", *WorldManifest.__dataclass_fields__)
    document["world"].check_keys(*World.__dataclass_fields__)
    manifest = WorldManifest(
        world=_read_world(document["world"]),
        split=_one_of(document["split"], SPLITS),
        seed=document["seed"].as_integer(),
        grammar_sha256=document["grammar_sha256"].as_sha256(),
        num_documents=document["num_documents"].as_integer(),
        num_bytes=document["num_bytes"].as_integer(),
        bits=document["bits"].as_number(),
        sha256=document["sha256"].as_sha256(),
    )
    with atomic.explain("read", path):
        found = os.path.getsize(path)
    if found != manifest.num_bytes:
        message = (
            f"{path} has {found} bytes, but its manifest {file} describes {manifest.num_bytes};"
            " generate the text again, or remove the manifest"
        )
        raise FormatError(message, path=path, expected=manifest.num_bytes, found=found)
    return manifest


def _read_world(json: Json) -> World:
    try:
        exponent = Decimal(json["exponent"].as_text())
    except InvalidOperation:
        raise json["exponent"].error("a number such as 1.25 as text") from None
    seed, num_people = (json[name].as_integer() for name in ("seed", "num_people"))
    try:
        return World(seed=seed, exponent=exponent, num_people=num_people)
    except UsageError as error:
        raise json[str(error.key)].error(str(error.expected)) from None


def _one_of(json: Json, allowed: Iterable[Split]) -> Split:
    for each in allowed:
        if json.value == each:
            return each
    raise json.error(f"one of {', '.join(allowed)}")

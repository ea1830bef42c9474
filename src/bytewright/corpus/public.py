"""Public corpora that others train on, by name: where each file is, how long it is, and its SHA-256.

The addresses name one revision, so the files cannot change under us. The sums were not measured here: they
are those that several independent users of these files have published, and they agree with one another (and
with the size) wherever they could be compared. Each corpus keeps its own licence, which `about` names.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bytewright.corpus.download import BLOCK, Progress, download, matches, require_space
from bytewright.errors import FormatError
from bytewright.storage import atomic
from bytewright.storage.manifest import Entry

HUB = "https://huggingface.co/datasets"
TINY_STORIES = f"{HUB}/roneneldan/TinyStories/resolve/f54c09fd23315a6f9c86f9dc80f725de7d8f9c64"
OPEN_WEB_TEXT = f"{HUB}/stanford-cs336/owt-sample/resolve/488afadefc224407de5645a3c8c53b64ed923537"


@dataclass(frozen=True, kw_only=True)
class PublicFile:
    """One file: where it is, what comes from there, and the text that it becomes (unpacked, if it is .gz)."""

    url: str
    sent: Entry
    text: Entry

    @property
    def is_packed(self) -> bool:
        """Whether it has to be unpacked."""
        return self.url.endswith(".gz")

    @property
    def name(self) -> str:
        """The name of the text file on disk."""
        return self.url.rpartition("/")[2].removesuffix(".gz")


@dataclass(frozen=True, kw_only=True)
class PublicCorpus:
    """What a corpus is, and its files."""

    about: str
    files: tuple[PublicFile, ...]


def _plain(url: str, num_bytes: int, sha256: str) -> PublicFile:
    return PublicFile(url=url, sent=Entry(num_bytes, sha256), text=Entry(num_bytes, sha256))


CORPORA: Mapping[str, PublicCorpus] = {
    "tinystories": PublicCorpus(
        about="TinyStories, version 2 (Eldan and Li, 2023): children's stories written by GPT-4;"
        " licence CDLA-Sharing-1.0",
        files=(
            _plain(
                f"{TINY_STORIES}/TinyStoriesV2-GPT4-valid.txt",
                22_502_601,
                "6874bae9a4c1a4e7edcf0e53b86c17817e9cf881fc75ff2368da457b80c0585d",
            ),
            _plain(
                f"{TINY_STORIES}/TinyStoriesV2-GPT4-train.txt",
                2_227_753_162,
                "6418d412de72888f52b5142c761ac21a582f7d1166f0bfbdb5f03ccfdec90443",
            ),
        ),
    ),
    "openwebtext": PublicCorpus(
        about="a sample of OpenWebText (Gokaslan and Cohen, 2019): pages that people linked to; the texts"
        " belong to their authors",
        files=(
            PublicFile(
                url=f"{OPEN_WEB_TEXT}/owt_valid.txt.gz",
                sent=Entry(111_785_382, "bc73db5da2f19c360836b9c8a88094e13346ec83798c2f40060be39135768c80"),
                text=Entry(289_998_753, "2406f278e71829d273b315e9b403285baea7022b26a96d2728dd8b776ea40660"),
            ),
            PublicFile(
                url=f"{OPEN_WEB_TEXT}/owt_train.txt.gz",
                sent=Entry(4_591_240_837, "b19ae88cfbc4016b304c348522455fe38ebac48fffed955adcc7191a89e38ccf"),
                text=Entry(
                    11_920_511_059, "bbeb7f291a981ecfd5cf44b84d0f654b9e96c53dff99f2556b7d2cccaf8c1918"
                ),
            ),
        ),
    ),
}
"""By name; of each corpus the validation file comes first, for it is small and shows that all is well."""


def get_file(file: PublicFile, folder: Path, *, progress: Progress | None = None) -> bool:
    """Bring one file into `folder`, unpacked; False if it was there already, whole."""
    target = folder / file.name
    if matches(target, file.text, progress=progress):
        return False
    if not file.is_packed:
        download(file.url, target, file.sent, progress=progress)
        return True
    packed = folder / f"{file.name}.gz"
    if not matches(packed, file.sent, progress=progress):
        download(file.url, packed, file.sent, progress=progress)
    unpack(packed, target, file.text, progress=progress)
    atomic.remove(packed)
    return True


def unpack(packed: Path, target: Path, expected: Entry, *, progress: Progress | None = None) -> None:
    """Unpack a gzip file to `target`, which appears only if it becomes what was expected."""
    require_space(target, expected.num_bytes)
    digest, done = hashlib.sha256(), 0
    with gzip.open(packed) as source, atomic.write_stream(target) as out:
        for block in _blocks(source, packed):
            digest.update(block)
            out.write(block)
            done += len(block)
            if progress is not None:
                progress("unpack", done, expected.num_bytes)
        if (done, digest.hexdigest()) != (expected.num_bytes, expected.sha256):
            raise FormatError(
                f"{packed}: becomes {done} bytes with the SHA-256 {digest.hexdigest()[:12]}… when unpacked,"
                f" but {expected.num_bytes} with {expected.sha256[:12]}… were expected"
            )


def _blocks(source: gzip.GzipFile, packed: Path) -> Iterator[bytes]:
    try:
        while block := source.read(4 * BLOCK):
            yield block
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FormatError(f"{packed}: is not sound gzip ({error})") from None

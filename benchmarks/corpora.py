"""Build the text of the tokenizer benchmarks: technical English of 5 MB, 20 MB, 100 MB and 1 GB.

The text is the documentation installed on this machine (intended: Debian's linux-doc, python3-doc, dict-gcide
and debian-handbook) or any folder given with `--source`. The same sources always give the same bytes: files
are read in sorted order, exact copies are dropped, and documents are shuffled with a fixed seed. If there is
not enough genuine text for a size, *recombined* paragraphs fill the rest (see `Recombiner`). A JSON file next
to each corpus lists the number of bytes by source and the number of recombined bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import math
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import tyro

from bytewright.corpus import END_OF_TEXT

DATA = Path(__file__).parent / "data"
SHARED = Path(__file__).parents[2] / "shared" / "data"
SEED = 336
MB = 1_000_000

DOCUMENTATION = (
    "/usr/share/doc/linux-doc*/Documentation",
    "/usr/share/doc/python3*/html/_sources",
    "/usr/share/doc/debian-handbook/html/en-US",
    "/usr/share/doc/git",
    "/usr/share/doc/nodejs",
    "/usr/share/doc/valgrind/html",
    "/usr/share/dictd",
    "/usr/share/info",
    "/usr/share/vim/vim*/doc",
)
PROSE = ("novels.txt.xz", "tinystories_train.txt")
PLAIN_SUFFIXES = {".txt", ".rst", ".md", ".yaml", ".dict", ".info", ".pod", ".adoc"}
NOT_ENGLISH_PROSE = re.compile(r"/translations/|changelog|copyright|/python3\.\d+\.info", re.IGNORECASE)
"""Excluded paths: translations, changelogs, licences, and the Info copy of the Python manual."""
BOOK_PIECE_LENGTH = 20_000  # characters; a dictionary of 40 MB becomes many documents


@dataclass(frozen=True)
class Document:
    """A text and the folder or file that contained it."""

    source: str
    text: str


@dataclass(frozen=True)
class Size:
    """One file to build: its name, its length and the separator between its documents."""

    name: str
    num_bytes: int
    separator: str


SIZES = (
    Size("technical-5mb.txt", 5 * MB, END_OF_TEXT),
    Size("technical-20mb-one-document.txt", 20 * MB, "\n\n"),
    Size("technical-100mb.txt", 100 * MB, END_OF_TEXT),
    Size("technical-1gb.txt", 1000 * MB, END_OF_TEXT),
)


def corpus(name: str) -> Path:
    """Return the path of a corpus, or exit with the command that builds it if it does not exist."""
    path = DATA / name
    if not path.exists():
        raise SystemExit(f"{path} is missing; build it with `python benchmarks/corpora.py`")
    return path


class _TextOfHtml(HTMLParser):
    """Collect the visible text of a page, with a line break after every block."""

    HIDDEN = frozenset({"script", "style", "head", "nav"})
    BLOCKS = frozenset({"p", "div", "li", "tr", "pre", "h1", "h2", "h3", "h4", "h5", "dt", "dd", "br"})

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self._hidden_depth = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self.HIDDEN:
            self._hidden_depth += 1

    def handle_endtag(self, tag: str) -> None:
        if tag in self.HIDDEN:
            self._hidden_depth = max(0, self._hidden_depth - 1)
        elif tag in self.BLOCKS:
            self.pieces.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden_depth:
            self.pieces.append(data)


def text_of_html(page: str) -> str:
    r"""Return the visible text of a page.

    >>> text_of_html("<html><head><title>x</title></head><p>1 &lt; 2</p><p>so</p></html>")
    '1 < 2\nso\n'
    """
    parser = _TextOfHtml()
    parser.feed(page)
    return re.sub(r"\n{3,}", "\n\n", "".join(parser.pieces))


def read_text(path: Path) -> str | None:
    """Return the text of a plain, compressed or HTML file, or None for other kinds of file."""
    name = path.name
    raw: bytes
    if name.endswith((".gz", ".dz")):
        name = name.rsplit(".", 1)[0]
        raw = gzip.decompress(path.read_bytes())
    elif name.endswith(".xz"):
        name = name.rsplit(".", 1)[0]
        raw = lzma.decompress(path.read_bytes())
    else:
        raw = path.read_bytes()
    suffix = re.sub(r"-\d+$", "", Path(name).suffix)  # find.info-1
    if suffix == ".html":
        return text_of_html(raw.decode("utf-8", "replace"))
    return raw.decode("utf-8", "replace") if suffix in PLAIN_SUFFIXES else None


def cut_into_documents(text: str) -> Iterator[str]:
    """Cut at `<|endoftext|>`; a text of a megabyte or more without one is cut at blank lines."""
    if END_OF_TEXT in text or len(text) < MB:
        yield from (piece.strip("\n") + "\n" for piece in text.split(END_OF_TEXT) if piece.strip())
        return
    start = 0
    while start < len(text):
        end = text.find("\n\n", start + BOOK_PIECE_LENGTH)
        end = len(text) if end < 0 else end
        yield text[start:end].strip("\n") + "\n"
        start = end


def gather(places: Iterable[Path]) -> list[Document]:
    """Read every document in the files and folders, drop exact copies, and shuffle with the seed."""
    seen: set[bytes] = set()
    documents: list[Document] = []
    for place in places:
        source = place.name if place.parent == SHARED else str(place)
        for path in [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.is_file()):
            text = None if NOT_ENGLISH_PROSE.search(str(path)) else read_text(path)
            if not text:
                continue
            digest = hashlib.sha256(text.encode()).digest()
            if digest not in seen:
                seen.add(digest)
                documents += [Document(source, piece) for piece in cut_into_documents(text)]
    random.Random(SEED).shuffle(documents)
    return documents


@dataclass
class Recombiner:
    """Extend genuine text so that new words appear at the rate of genuine text.

    Each pass shuffles the paragraphs. Real text of n bytes has about k * n**beta distinct words (Heaps' law).
    Plain repetition would add no new words and favour tokenizers that cache words. Therefore beta is measured
    on the genuine text, and new words (the head of one rare word and the tail of another) are inserted at the
    rate of that law.
    """

    documents: list[Document]
    target_bytes: int
    coined: int = 0
    beta: float = 0.0
    _chance: random.Random = field(default_factory=lambda: random.Random(SEED))

    def __post_init__(self) -> None:
        self._paragraphs = [
            p for document in self.documents for p in document.text.split("\n\n") if p.strip()
        ]
        half = len(self.documents) // 2
        words_of_half = Counter(word for document in self.documents[:half] for word in document.text.split())
        distinct_in_half = len(words_of_half)
        words_of_half.update(word for document in self.documents[half:] for word in document.text.split())
        genuine_bytes = sum(len(document.text.encode()) for document in self.documents)
        bytes_of_half = sum(len(document.text.encode()) for document in self.documents[:half])
        growth = len(words_of_half) / distinct_in_half
        self.beta = math.log(growth) / math.log(genuine_bytes / bytes_of_half)
        wanted = len(words_of_half) * (self.target_bytes / genuine_bytes) ** self.beta
        self._bytes_per_coin = (self.target_bytes - genuine_bytes) / (wanted - len(words_of_half))
        self._rare = sorted(
            word
            for word, count in words_of_half.items()
            if count <= 3 and 4 <= len(word) <= 16 and word.isalpha()
        )

    def __iter__(self) -> Iterator[Document]:
        """Yield an infinite sequence of documents of 10 to 60 paragraphs."""
        owed = 0.0
        while True:
            self._chance.shuffle(self._paragraphs)
            position = 0
            while position < len(self._paragraphs):
                count = self._chance.randint(10, 60)
                paragraphs = self._paragraphs[position : position + count]
                position += count
                for index, paragraph in enumerate(paragraphs):
                    owed += len(paragraph) / self._bytes_per_coin
                    if owed >= 1:
                        paragraphs[index], owed = self._with_new_words(paragraph, int(owed)), owed % 1
                yield Document("recombined", "\n\n".join(paragraphs) + "\n")

    def _with_new_words(self, paragraph: str, count: int) -> str:
        words = paragraph.split(" ")
        for _ in range(count):
            head, tail = self._chance.choice(self._rare), self._chance.choice(self._rare)
            words[self._chance.randrange(len(words))] = head[: (len(head) + 1) // 2] + tail[len(tail) // 2 :]
            self.coined += 1
        return " ".join(words)


def write_corpus(size: Size, documents: list[Document], folder: Path) -> dict[str, object]:
    """Write one file of exactly `size.num_bytes` bytes and its JSON description; return the description."""
    genuine_bytes = sum(len(document.text.encode()) for document in documents)
    recombiner = Recombiner(documents, size.num_bytes) if genuine_bytes < size.num_bytes else None
    separator = size.separator.encode()
    made_of: Counter[str] = Counter()
    words: set[bytes] = set()
    written = num_documents = 0
    path = folder / size.name
    with path.open("wb") as file:
        for document in _chain(documents, recombiner):
            piece = document.text.encode() + separator
            if written + len(piece) > size.num_bytes:
                # Truncate the last document at a character boundary and pad the remaining bytes.
                room = size.num_bytes - written
                piece = piece[:room].decode("utf-8", "ignore").encode().ljust(room)
            file.write(piece)
            written += len(piece)
            num_documents += 1
            made_of[document.source] += len(piece)
            words.update(piece.removesuffix(separator).split())
            if written == size.num_bytes:
                break
    description = {
        "file": size.name,
        "bytes": written,
        "documents": num_documents if size.separator == END_OF_TEXT else 1,
        "distinct_words": len(words),
        "bytes_per_gpt2_token": bytes_per_gpt2_token(path),
        "bytes_by_source": dict(made_of.most_common()),
        "recombined_bytes": made_of["recombined"],
        "coined_words": recombiner.coined if recombiner else 0,
        "heaps_exponent": round(recombiner.beta, 3) if recombiner else None,
        "seed": SEED,
    }
    path.with_suffix(".json").write_text(json.dumps(description, indent=2) + "\n")
    return description


def _chain(documents: list[Document], recombiner: Recombiner | None) -> Iterator[Document]:
    yield from documents
    if recombiner:
        yield from recombiner


def bytes_per_gpt2_token(path: Path, sample_bytes: int = 4 * MB) -> float | None:
    """Measure compression on the first and last megabytes; return None without GPT-2's files or tiktoken."""
    from vocabularies import tiktoken_encoding  # imported here because vocabularies imports this module

    if not (SHARED / "gpt2_vocab.json").exists() or not find_spec("tiktoken"):
        return None
    with path.open("rb") as file:
        head = file.read(sample_bytes)
        file.seek(max(0, path.stat().st_size - sample_bytes))
        sample = (head + file.read()).decode("utf-8", "ignore").replace(END_OF_TEXT, "\n")
    return round(len(sample.encode()) / len(tiktoken_encoding().encode_ordinary(sample)), 3)


def main(
    source: tuple[Path, ...] = (), out: Path = DATA, sizes: tuple[int, ...] = (5, 20, 100, 1000)
) -> None:
    """Build the corpora.

    Args:
        source: folders of text to build from, instead of this machine's documentation.
        out: folder to write into.
        sizes: sizes of the files to build, in MB.

    """
    folders = source or tuple(sorted(match for glob in DOCUMENTATION for match in Path("/").glob(glob[1:])))
    documents = gather(folders)
    if not documents:
        raise SystemExit(
            "corpora.py: no text found; install linux-doc and dict-gcide, or pass a folder with --source"
        )
    if not source and SHARED.exists():
        # Prose comes last: it is used only for sizes that exceed the technical text.
        documents += gather(SHARED / name for name in PROSE)
    out.mkdir(parents=True, exist_ok=True)
    for size in SIZES:
        if size.num_bytes // MB in sizes:
            print(json.dumps(write_corpus(size, documents, out)), flush=True)


if __name__ == "__main__":
    tyro.cli(main)

"""The data of a sweep, made before it starts: text told or read on the spot, a tokenizer, and token files.

A `CorpusConfig` names a storybook of so many bytes, or a text file; `prepare` makes what is missing of it
below one folder and finds it there the next time. Names carry a hash of what the text depends on (the
storybook's grammar, the contents of the file, whatever its date or place), so nothing stale is ever used, and
everything is written whole or not at all, so that a sweep that was killed while it made its data makes the
rest. For a storybook the entropy of the validation text, the floor under every model, is kept in
`corpus.json`. `identify` tells data apart by their tokens, wherever they lie. Knows nothing of training.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from bytewright.corpus import END_OF_TEXT
from bytewright.errors import BytewrightError, UsageError
from bytewright.experiments.records import FLOOR
from bytewright.storage import atomic, filesystem
from bytewright.train.config import DataConfig, check_positive

HELD_OUT = 50
"""Of a text without validation text of its own, one part in so many, at its end, is held out."""
COPY_BYTES = 2**22

Report = Callable[[str, int, int, str], None]
"""Hears how far a phase is: its name, what is done, the total, and the unit."""

_digests: dict[tuple[Path, int, int], str] = {}
"""Of texts that this process has read: a sweep asks for their names once a run."""


@dataclass(frozen=True, kw_only=True)
class CorpusConfig:
    """What text to train on, and with how many tokens. Exactly one of `storybook` and `text` is given."""

    storybook: int | None = None
    """Bytes of stories to tell."""
    text: Path | None = None
    """File of plain text to train on."""
    validation: Path | None = None
    """File of plain text to validate on; without one, the end of `text` is held out."""
    validation_size: int = 2_000_000
    """Bytes of stories to validate on."""
    seed: int = 1
    """Which stories are told."""
    vocab_size: int = 10_000
    """Tokens of the vocabulary, and of the model."""

    def __post_init__(self) -> None:
        if (self.storybook is None) == (self.text is None):
            raise UsageError("corpus needs either storybook, a number of bytes, or text, a file")
        check_positive(
            {"storybook": self.storybook, "validation_size": self.validation_size}, prefix="corpus."
        )
        if not 257 <= self.vocab_size <= 2**20:
            raise UsageError(f"corpus.vocab_size must be from 257 to {2**20}, but is {self.vocab_size}")


def prepare(config: CorpusConfig, root: Path, report: Report) -> DataConfig:
    """Make what is missing of a corpus below `root`; return where its tokens are."""
    encoded = root / place_of(config, report)
    atomic.refuse_links(encoded, within=root)
    train, validation = _write_texts(config, encoded.parent, report)
    data = DataConfig(
        train=encoded / "train.npy", validation=encoded / "validation.npy", tokenizer=encoded / "tokenizer"
    )
    _encode(config, data, train, validation, report)
    return data


def identify(data: DataConfig) -> dict[str, str]:
    """Give the SHA-256 of each token file, as a checkpoint keeps it; nothing if one cannot be opened.

    It is read from the manifests: whether they are true of the tokens is checked where these are trained on.
    """
    from bytewright.data.tokenfile import TokenFile

    files = {"train": data.train, "validation": data.validation}
    try:
        return {
            name: TokenFile.open(path).manifest.sha256 for name, path in files.items() if path is not None
        }
    except BytewrightError:
        return {}


def unheard(phase: str, done: int, total: int, unit: str) -> None:
    """Hear a report, and say nothing."""


def place_of(config: CorpusConfig, report: Report = unheard) -> Path:
    """Say where the tokens of a corpus are, below the folder of all corpora."""
    return Path(name_of(config, report), f"bpe-{config.vocab_size}")


def name_of(config: CorpusConfig, report: Report = unheard) -> str:
    """Name the folder of a corpus by what its text depends on; a text file is read for it, once."""
    if config.storybook is not None:
        grammar = resources.files("bytewright.corpus.storybook").joinpath("storybook.grammar").read_bytes()
        parts = (config.storybook, config.validation_size, config.seed)
        return f"storybook-{config.storybook / 1e6:g}MB-{_hash(repr(parts).encode() + grammar)}"
    assert config.text is not None
    digests = [_digest(path, report) for path in (config.text, config.validation) if path is not None]
    return f"{config.text.stem}-{_hash(repr(digests).encode())}"


def _digest(path: Path, report: Report) -> str:
    """Give the SHA-256 of a file."""
    with atomic.explain("read", path):
        found = path.stat()
        if not path.is_file() or not found.st_size:
            raise UsageError(f"corpus: {path} is empty or no file")
        key = (path.absolute(), found.st_size, found.st_mtime_ns)
        if key not in _digests:
            digest = hashlib.sha256()
            with filesystem.open_to_read(path) as stream:
                while part := stream.read(COPY_BYTES):
                    digest.update(part)
                    report("read the text", stream.tell(), found.st_size, "bytes")
            _digests[key] = digest.hexdigest()
    return _digests[key]


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:6]


def _write_texts(config: CorpusConfig, folder: Path, report: Report) -> tuple[Path, Path]:
    """Make the texts to train and to validate on, unless they are there; made anew they are the same."""
    if config.text is not None and config.validation is not None:
        return config.text, config.validation
    train, validation, written_last = (folder / name for name in ("train.txt", "validation.txt", FLOOR))
    if not all(path.is_file() for path in (train, validation, written_last)):
        if config.storybook is not None:
            about = _tell(config, train, validation, report)
        else:
            assert config.text is not None
            about = _hold_out(config.text, train, validation, report)
        atomic.write_document(written_last, about)
    return train, validation


def _tell(config: CorpusConfig, train: Path, validation: Path, report: Report) -> dict[str, object]:
    from bytewright.corpus.storybook import write_stories
    from bytewright.tokenizer.tokenizer import default_num_threads

    assert config.storybook is not None
    write_stories(
        train,
        config.storybook,
        seed=config.seed,
        split="train",
        num_workers=default_num_threads(),
        progress=lambda done, total: report("tell stories", done, total, "bytes"),
    )
    written = write_stories(validation, config.validation_size, seed=config.seed, split="validation")
    return {
        "text": "storybook",
        "seed": config.seed,
        "validation_stories": written.num_stories,
        "floor_bits_per_byte": written.bits_per_byte,
    }


def _hold_out(source: Path, train: Path, validation: Path, report: Report) -> dict[str, object]:
    """Cut a text in two at the first line end after the held-out part begins."""
    with atomic.explain("read", source), filesystem.open_to_read(source) as stream:
        size = source.stat().st_size
        stream.seek(size - size // HELD_OUT)
        stream.readline()
        cut = stream.tell()
        if not 0 < cut < size:
            raise UsageError(f"corpus: {source} is too short, or has too long lines, to hold out its end")
        for target, start, end in ((train, 0, cut), (validation, cut, size)):
            stream.seek(start)
            with atomic.write_stream(target) as out:
                while stream.tell() < end:
                    out.write(stream.read(min(COPY_BYTES, end - stream.tell())))
                    report("split the text", stream.tell(), size, "bytes")
    return {"text": source.name}


def _encode(config: CorpusConfig, data: DataConfig, train: Path, validation: Path, report: Report) -> None:
    """Train the tokenizer and encode both texts, unless they are there and belong together."""
    from bytewright.tokenizer import Tokenizer
    from bytewright.tokenizer.train import train_tokenizer

    assert data.tokenizer is not None
    assert data.validation is not None
    if not data.tokenizer.is_dir():
        trained = train_tokenizer(
            train,
            config.vocab_size,
            [END_OF_TEXT],
            progress=lambda at: report(at.phase, at.done, at.total, at.unit),
        )
        found = trained.vocabulary.size
        if found < config.vocab_size:  # the model would have ids that stand for nothing
            raise UsageError(
                f"corpus.vocab_size is {config.vocab_size}, but {train.name} of {train.parent} has pairs for"
                f" {found} tokens only; ask for at most so many, or for more text"
            )
        Tokenizer.from_vocabulary(trained.vocabulary).save(data.tokenizer)
    tokenizer = Tokenizer.load(data.tokenizer)
    for target, source in ((data.train, train), (data.validation, validation)):
        if not _is_encoded(target, tokenizer.fingerprint):
            tokenizer.encode_file(
                source, target, progress=lambda done, total: report("encode", done, total, "bytes")
            )


def _is_encoded(path: Path, fingerprint: str) -> bool:
    from bytewright.data.tokenfile import TokenFile

    if not path.is_file():
        return False
    try:
        return TokenFile.open(path).manifest.tokenizer_fingerprint == fingerprint
    except BytewrightError:
        return False

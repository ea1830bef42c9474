"""Prepare the data of sweeps and of the demo: texts, a tokenizer, and token files.

A `CorpusConfig` describes a generated book or a text file. `prepare_corpus` creates the missing files below
one folder and reuses the others. Folder names contain a hash of the inputs of the text (the grammar of the
book, or the contents of the file). So stale files are never reused. Files are written atomically, so an
interrupted preparation can be continued. `corpus.json` records the entropy of generated validation text,
which is the floor of the loss. `token_digests` identifies data by the hashes of their tokens and masks.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from decimal import Decimal
from importlib import resources
from pathlib import Path
from typing import Literal

from bytewright.corpus import END_OF_TEXT
from bytewright.corpus.storybook import Written, write_stories
from bytewright.corpus.worldbook import Split
from bytewright.corpus.worldbook.files import WorldManifest, grammar_digest, write_worldbook
from bytewright.corpus.worldbook.world import MAX_PEOPLE, World
from bytewright.data.tokenfile import TokenFile
from bytewright.errors import BytewrightError, UsageError, wrong_value
from bytewright.experiments.records import CORPUS_FILE
from bytewright.formatting import PhaseProgress, Progress
from bytewright.storage import atomic, filesystem
from bytewright.system import usable_cores
from bytewright.train.config import DataConfig, check_positive

HELD_OUT = 50
"""Without a validation text, the last 1/50 of the text is held out."""
COPY_BYTES = 2**22
TRAIN_TEXT, VALIDATION_TEXT = "train.txt", "validation.txt"

_digests: dict[tuple[Path, int, int], str] = {}
"""SHA-256 of text files by path, size and modification time; a sweep needs them once per run."""


@dataclass(frozen=True, kw_only=True)
class CorpusConfig:
    """The text to train on and the size of its vocabulary.

    Exactly one of `storybook`, `worldbook` and `text` is set.
    """

    storybook: int | None = None
    """Bytes of stories to generate."""
    worldbook: int | None = None
    """Bytes of documents of the world book to generate."""
    exponent: float = 1.25
    """Exponent of the frequencies of people in the world book."""
    people: int = MAX_PEOPLE
    """Number of people in the world book."""
    text: Path | None = None
    """Plain text file to train on."""
    validation: Path | None = None
    """Plain text file to validate on; without one, the end of `text` is held out."""
    validation_size: int = 2_000_000
    """Bytes of validation text to generate."""
    test_size: int | None = None
    """Bytes of test text to generate from a book. With it, a sweep evaluates each model on whole validation
    and test documents: the former choose among settings, and the latter judge them. 0: none. By default a
    quarter of `validation_size` for the world book, and 0 otherwise."""
    seed: int = 1
    """Seed of the generated text."""
    vocab_size: int = 10_000
    """Vocabulary size of the tokenizer and the model."""

    def __post_init__(self) -> None:
        if [self.storybook, self.worldbook, self.text].count(None) != 2:
            message = "corpus needs exactly one of storybook (bytes), worldbook (bytes) and text (a file)"
            raise UsageError(message, key="corpus.storybook")
        check_positive(
            {
                "storybook": self.storybook,
                "worldbook": self.worldbook,
                "validation_size": self.validation_size,
            },
            prefix="corpus.",
        )
        if not 257 <= self.vocab_size <= 2**20:
            raise wrong_value("corpus.vocab_size", f"from 257 to {2**20}", self.vocab_size)
        if self.worldbook is not None:
            self.world  # noqa: B018  # raises if there is no such world
        if self.test_size is not None and (self.test_size < 0 or (self.test_size and self.text is not None)):
            raise wrong_value("corpus.test_size", "at least 0, and 0 for a text file", self.test_size)

    @property
    def num_test_bytes(self) -> int:
        """The bytes of test text; 0 if models are not evaluated on whole documents."""
        if self.test_size is not None:
            return self.test_size
        return 0 if self.worldbook is None else self.validation_size // 4

    @property
    def world(self) -> World:
        """The world of the world book."""
        try:
            return World(exponent=Decimal(str(self.exponent)), num_people=self.people)
        except UsageError as error:
            key = {"exponent": "corpus.exponent", "num_people": "corpus.people"}[str(error.key)]
            raise wrong_value(key, str(error.expected), error.found) from None


def prepare_corpus(config: CorpusConfig, root: Path, progress: PhaseProgress) -> DataConfig:
    """Create the missing files of a corpus below `root`; return the paths of its tokens."""
    encoded = root / token_folder(config, progress)
    atomic.check_no_links(encoded, within=root)
    train, validation = _write_texts(config, encoded.parent, progress)
    test = _test_file(config, encoded.parent)
    if config.num_test_bytes and not test.is_file():
        _write_book(config, test, config.num_test_bytes, "test")
    data = DataConfig(
        train=encoded / "train.npy", validation=encoded / "validation.npy", tokenizer=encoded / "tokenizer"
    )
    _encode_texts(config, data, train, validation, progress)
    return data


def text_files(data: DataConfig) -> tuple[Path, Path]:
    """Return the paths of the generated training and validation text of a prepared corpus."""
    folder = data.train.parents[1]
    return folder / TRAIN_TEXT, folder / VALIDATION_TEXT


def document_files(config: CorpusConfig | None, data: DataConfig) -> dict[str, Path]:
    """Return the texts for the evaluation on whole documents by the name of the metric that they yield."""
    if config is None or not config.num_test_bytes:
        return {}
    folder = data.train.parents[1]
    return {
        "document_bits_per_byte": folder / VALIDATION_TEXT,
        "test_bits_per_byte": _test_file(config, folder),
    }


def _test_file(config: CorpusConfig, folder: Path) -> Path:
    """Return the path of the test text: other documents than those of the validation text."""
    return folder / f"test-{config.num_test_bytes}.txt"


def token_digests(data: DataConfig) -> dict[str, str]:
    """Return the SHA-256 of tokens and masks, as checkpoints record them; empty if a file cannot be opened.

    The digests are read from the manifests. Training verifies them against the tokens.
    """
    digests: dict[str, str] = {}
    try:
        for name, path in (("train", data.train), ("validation", data.validation)):
            if path is not None:
                digests |= TokenFile.open(path).manifest.digests(name)
    except BytewrightError:
        return {}
    return digests


def no_progress(phase: str, done: int, total: int, unit: str) -> None:
    """Ignore progress."""


def token_folder(config: CorpusConfig, progress: PhaseProgress = no_progress) -> Path:
    """Return the folder of a corpus' tokens, relative to the folder of all corpora."""
    return Path(corpus_name(config, progress), f"bpe-{config.vocab_size}")


def corpus_name(config: CorpusConfig, progress: PhaseProgress = no_progress) -> str:
    """Return the folder name of a corpus, with a hash of the inputs of its text; reads a text file once."""
    if config.storybook is not None:
        grammar = resources.files("bytewright.corpus.storybook").joinpath("storybook.grammar").read_bytes()
        parts = (config.storybook, config.validation_size, config.seed)
        return f"storybook-{config.storybook / 1e6:g}MB-{_short_hash(repr(parts).encode() + grammar)}"
    if config.worldbook is not None:
        about = (config.worldbook, config.validation_size, config.seed, config.world, grammar_digest())
        return f"worldbook-{config.worldbook / 1e6:g}MB-{_short_hash(repr(about).encode())}"
    assert config.text is not None
    digests = [_digest_file(path, progress) for path in (config.text, config.validation) if path is not None]
    return f"{config.text.stem}-{_short_hash(repr(digests).encode())}"


def _digest_file(path: Path, progress: PhaseProgress) -> str:
    with atomic.explain("read", path):
        found = path.stat()
        if not path.is_file() or not found.st_size:
            raise UsageError(f"corpus: {path} is empty or not a file", path=path)
        key = (path.absolute(), found.st_size, found.st_mtime_ns)
        if key not in _digests:
            digest = hashlib.sha256()
            with filesystem.open_to_read(path) as stream:
                while part := stream.read(COPY_BYTES):
                    digest.update(part)
                    progress("read the text", stream.tell(), found.st_size, "bytes")
            _digests[key] = digest.hexdigest()
    return _digests[key]


def _short_hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:6]


def _write_texts(config: CorpusConfig, folder: Path, progress: PhaseProgress) -> tuple[Path, Path]:
    """Create the training and the validation text unless they exist; their contents are deterministic."""
    if config.text is not None and config.validation is not None:
        return config.text, config.validation
    train, validation, written_last = (folder / name for name in (TRAIN_TEXT, VALIDATION_TEXT, CORPUS_FILE))
    if not all(path.is_file() for path in (train, validation, written_last)):
        if config.text is None:
            about = _write_books(config, train, validation, progress)
        else:
            about = _hold_out(config.text, train, validation, progress)
        atomic.write_document(written_last, about)
    return train, validation


def _write_books(
    config: CorpusConfig, train: Path, validation: Path, progress: PhaseProgress
) -> dict[str, object]:
    """Write the training and the validation text of a book; return the contents of corpus.json."""
    size = config.storybook or config.worldbook
    assert size is not None
    phase = "generate stories" if config.storybook is not None else "generate documents"
    _write_book(config, train, size, "train", lambda done, total: progress(phase, done, total, "bytes"))
    written = _write_book(config, validation, config.validation_size, "validation")
    about: dict[str, object] = {"text": "storybook", "seed": config.seed}
    if isinstance(written, WorldManifest):
        world = {"exponent": config.exponent, "people": config.people}
        about |= {"text": "worldbook", **world, "validation_documents": written.num_documents}
    else:
        about["validation_stories"] = written.num_stories
    return about | {"floor_bits_per_byte": written.bits_per_byte}


def _write_book(
    config: CorpusConfig, path: Path, size: int, split: Split, progress: Progress | None = None
) -> Written | WorldManifest:
    """Write the documents of one split of the storybook or of the world book."""
    num_workers = usable_cores() if split == "train" else 1
    if config.worldbook is not None:
        return write_worldbook(
            path,
            size,
            world=config.world,
            seed=config.seed,
            split=split,
            num_threads=num_workers,
            progress=progress,
        )
    # The storybook has two splits; the test stories are validation stories of another seed.
    seed = config.seed + 1 if split == "test" else config.seed
    of_book: Literal["train", "validation"] = "train" if split == "train" else "validation"
    return write_stories(path, size, seed=seed, split=of_book, num_workers=num_workers, progress=progress)


def _hold_out(source: Path, train: Path, validation: Path, progress: PhaseProgress) -> dict[str, object]:
    """Split a text at the first line end after 49/50 of its bytes."""
    with atomic.explain("read", source), filesystem.open_to_read(source) as stream:
        size = source.stat().st_size
        stream.seek(size - size // HELD_OUT)
        stream.readline()
        cut = stream.tell()
        if not 0 < cut < size:
            message = f"corpus: {source} is too short, or its lines are too long, to hold out its end"
            raise UsageError(message, path=source)
        for target, start, end in ((train, 0, cut), (validation, cut, size)):
            stream.seek(start)
            with atomic.write_stream(target) as out:
                while stream.tell() < end:
                    if not (part := stream.read(min(COPY_BYTES, end - stream.tell()))):
                        raise UsageError.at(source, "was shortened while it was copied; try again")
                    out.write(part)
                    progress("split the text", stream.tell(), size, "bytes")
    return {"text": source.name}


def _encode_texts(
    config: CorpusConfig, data: DataConfig, train: Path, validation: Path, progress: PhaseProgress
) -> None:
    """Train the tokenizer and encode both texts, unless these files exist and belong together."""
    from bytewright.tokenizer import Tokenizer
    from bytewright.tokenizer.train import train_tokenizer

    assert data.tokenizer is not None
    assert data.validation is not None
    if not data.tokenizer.is_dir():
        trained = train_tokenizer(train, config.vocab_size, [END_OF_TEXT], progress=progress)
        found = trained.vocabulary.size
        if found < config.vocab_size:  # the model would have ids without tokens
            raise UsageError(
                f"corpus.vocab_size is {config.vocab_size}, but {train} has pairs for only {found} tokens;"
                " set a smaller vocab_size, or use more text",
                path=train,
                key="corpus.vocab_size",
                expected=f"at most {found}",
                found=config.vocab_size,
            )
        Tokenizer.from_vocabulary(trained.vocabulary).save(data.tokenizer)
    tokenizer = Tokenizer.load(data.tokenizer)
    for target, source in ((data.train, train), (data.validation, validation)):
        if not _is_encoded(target, tokenizer.fingerprint):
            tokenizer.encode_file(
                source, target, progress=lambda done, total: progress("encode", done, total, "bytes")
            )


def _is_encoded(path: Path, fingerprint: str) -> bool:
    if not path.is_file():
        return False
    try:
        return TokenFile.open(path).manifest.tokenizer_fingerprint == fingerprint
    except BytewrightError:
        return False

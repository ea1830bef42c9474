"""Bytewright's format: a folder with `vocabulary.json` and the manifest of `storage.atomic`.

The JSON is readable: the name of the format, the pattern, the special tokens as text, and the ordinary tokens
and merges in GPT-2's printable alphabet. The manifest contains the fingerprint of the vocabulary and the
SHA-256 of the file; both are checked on reading.
"""

from __future__ import annotations

from bytewright.errors import FormatError, shorten
from bytewright.storage import atomic
from bytewright.storage.json_reader import Json
from bytewright.tokenizer.formats.gpt2 import read_ids, read_merge, read_token, spell_merges, spell_tokens
from bytewright.tokenizer.vocabulary import Vocabulary, naming_files

KIND = "bytewright tokenizer 1"
FILE = "vocabulary.json"


def write_bytewright(
    vocabulary: Vocabulary,
    path: atomic.StrPath,
    *,
    replace: bool = False,
    within: atomic.StrPath | None = None,
) -> None:
    """Write a folder atomically; an existing tokenizer is replaced only if `replace` is True."""
    about = {"kind": KIND, "fingerprint": vocabulary.fingerprint, "vocabulary_size": vocabulary.size}
    with atomic.write_folder(path, about=about, replace=replace, within=within) as writer:
        writer.write_json(
            FILE,
            {
                "format": KIND,
                "pattern": vocabulary.pattern,
                "special_tokens": dict(vocabulary.special_tokens),
                "tokens": spell_tokens(vocabulary.ids_of_ordinary_tokens),
                "merges": spell_merges(vocabulary.merges),
            },
        )


def read_bytewright(path: atomic.StrPath) -> Vocabulary:
    """Return the vocabulary of a folder written by `write_bytewright`; any damage is detected."""
    folder = atomic.open_folder(path)
    about = Json(folder.about, folder.path / "manifest.json", "about")
    about.get("kind").expect(KIND)
    file = folder.path / FILE
    vocabulary = _read_vocabulary(Json(folder.read_json(FILE), file))
    if about["fingerprint"].as_text() != vocabulary.fingerprint:
        expected = about["fingerprint"].as_text()
        message = (
            f"{file}: expected the fingerprint {shorten(expected[:12])} of the manifest,"
            f" found {vocabulary.fingerprint[:12]}…"
        )
        raise FormatError(message, path=file, expected=expected, found=vocabulary.fingerprint)
    return vocabulary


def _read_vocabulary(root: Json) -> Vocabulary:
    root.check_keys("format", "pattern", "special_tokens", "tokens", "merges")
    root["format"].expect(KIND)
    specials = read_ids(root["special_tokens"])
    vocab = root["tokens"]
    tokens = {id: read_token(spelling, vocab) for spelling, id in read_ids(vocab).items()}
    merges = [read_merge(merge) for merge in root["merges"].elements()]
    with naming_files(root.file):
        return Vocabulary.from_parts(tokens, merges, specials, root["pattern"].as_text())

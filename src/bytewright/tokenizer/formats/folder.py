"""Our own format: a folder with `vocabulary.json` and the manifest that `storage.atomic` writes.

The JSON is for people to read: the format's name, the pattern, the special tokens as they are, the ordinary
tokens and the merges in GPT-2's printable alphabet. The manifest holds the vocabulary's fingerprint and the
SHA-256 of the file, and both are checked on reading. Nothing is lost: what is read equals what was written.
"""

from __future__ import annotations

from bytewright.errors import FormatError
from bytewright.storage import atomic
from bytewright.storage.json_reader import Json, shorten
from bytewright.tokenizer.formats.gpt2 import read_ids, read_merge, read_token, spell_merges, spell_tokens
from bytewright.tokenizer.vocabulary import Vocabulary, blaming

KIND = "bytewright tokenizer 1"
FILE = "vocabulary.json"


def write_folder(
    vocabulary: Vocabulary,
    path: atomic.StrPath,
    *,
    replace: bool = False,
    within: atomic.StrPath | None = None,
) -> None:
    """Write a folder that appears whole or not at all; it replaces an older tokenizer only on request."""
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


def read_folder(path: atomic.StrPath) -> Vocabulary:
    """Read a folder that `write_folder` wrote; damage anywhere in it is found."""
    folder = atomic.open_folder(path)
    about = Json(folder.about, folder.path / "manifest.json", "about")
    if about.get("kind").value != KIND:
        raise about.get("kind").error(shorten(KIND))
    file = folder.path / FILE
    vocabulary = _read_vocabulary(Json(folder.read_json(FILE), file))
    if about["fingerprint"].as_text() != vocabulary.fingerprint:
        raise FormatError(
            f"{file}: its fingerprint is {vocabulary.fingerprint[:12]}…,"
            f" but the manifest says {shorten(about['fingerprint'].as_text()[:12])}"
        )
    return vocabulary


def _read_vocabulary(root: Json) -> Vocabulary:
    root.check_keys("format", "pattern", "special_tokens", "tokens", "merges")
    if root["format"].value != KIND:
        raise root["format"].error(shorten(KIND))
    specials = read_ids(root["special_tokens"])
    vocab = root["tokens"]
    tokens = {id: read_token(spelling, vocab) for spelling, id in read_ids(vocab).items()}
    merges = [read_merge(merge) for merge in root["merges"].elements()]
    with blaming(root.file):
        return Vocabulary.from_parts(tokens, merges, specials, root["pattern"].as_text())

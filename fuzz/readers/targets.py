"""Fuzz targets for the readers of tokenizer files and token files.

A target converts the fuzzer's bytes to a file and reads it. The bytes are the file itself, or an edit script
for a valid file, so that the input passes the parser. A reader must return a usable result or raise one of
our errors with a message of one line. Anything else is a finding.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bytewright.data.tokenfile import TokenFile, TokenFileWriter
from bytewright.errors import FormatError, StorageError, TokenizerError
from bytewright.storage import atomic
from bytewright.storage.manifest import Entry, dump_manifest, manifest_path_of
from bytewright.tokenizer.formats import (
    read_bytewright,
    read_gpt2,
    read_huggingface,
    read_tiktoken,
    write_bytewright,
    write_gpt2,
    write_huggingface,
    write_tiktoken,
)
from bytewright.tokenizer.reference import decode_reference, encode_reference, train_bpe_reference
from bytewright.tokenizer.vocabulary import Vocabulary

Target = Callable[[bytes], None]

NAMES = ["folder-manifest", "folder-vocabulary", "gpt2-vocab", "gpt2-merges", "huggingface", "tiktoken"]
NAMES += ["tokenfile-array", "tokenfile-manifest"]

SPECIALS = ["<|end|>"]
SAMPLE = b"low lower <|end|> newest \xff\xc3\xa9"
LONGEST_MESSAGE = 2000

# Values that an edit script inserts into a valid document.
PIECES: list[Any] = [
    None,
    True,
    0,
    -1,
    97,
    256,
    2**32,
    10**40,
    10**400,
    1e999,
    "",
    "a",
    "a b",
    "Ġ",
    "\ud800",
    "<|end|>",
]
PIECES += [
    [],
    {},
    ["a", "b"],
    [[]],
    {"a": 97},
    {"type": "ByteLevel"},
    {"type": "Sequence", "pretokenizers": []},
]


class Script:
    """Read small numbers from the fuzzer's bytes; zeros follow after the last byte."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def below(self, bound: int) -> int:
        """Return the next number below `bound`."""
        taken = self._data[self._position : self._position + 2]
        self._position += 2
        return int.from_bytes(taken, "little") % max(bound, 1)

    @property
    def is_used_up(self) -> bool:
        """Return whether all bytes have been read."""
        return self._position >= len(self._data)


def edit(document: Any, script: Script, depth: int = 0) -> Any:
    """Return a JSON document with one value inserted, removed, repeated or replaced."""
    if not isinstance(document, dict | list) or not document or (depth and script.below(4) == 0):
        return PIECES[script.below(len(PIECES))]
    if isinstance(document, list):
        place = script.below(len(document))
        match script.below(4):
            case 0:
                return document[:place] + document[place + 1 :]
            case 1:
                return [*document, document[place]]
            case 2:
                return document[place:] + document[:place]
            case _:
                return [*document[:place], edit(document[place], script, depth + 1), *document[place + 1 :]]
    key = list(document)[script.below(len(document))]
    match script.below(4):
        case 0:
            return {other: value for other, value in document.items() if other != key}
        case 1:
            return {**document, str(PIECES[script.below(len(PIECES))]): document[key]}
        case _:
            return {**document, key: edit(document[key], script, depth + 1)}


def mutate(sound: bytes, data: bytes, *, is_json: bool) -> bytes:
    """Return the contents of a file: the fuzzer's bytes, or the valid file `sound` with edits."""
    kind, rest = data[:1], data[1:]
    if kind == b"J" and is_json:
        document, script = json.loads(sound), Script(rest)
        while not script.is_used_up:
            document = edit(document, script)
        return json.dumps(document).encode()
    if kind == b"S":
        script = Script(rest[:4])
        start = script.below(len(sound))
        return sound[:start] + rest[4:] + sound[start + script.below(64) :]
    return data


def small_vocabulary() -> Vocabulary:
    """Train the tokenizer of the valid files."""
    tokens, merges, _ = train_bpe_reference(b"low lower newest widest newest", 270)
    return Vocabulary.from_parts(tokens, merges, SPECIALS)


def check_message(error: Exception) -> None:
    """Check that an error message is short and has one line."""
    message = str(error)
    if "\n" in message or len(message) > LONGEST_MESSAGE:
        raise AssertionError("the error message is too long or has several lines") from error


def check(read: Callable[[], Vocabulary | TokenFile]) -> None:
    """Read a file; use the result, or check the error message."""
    try:
        found = read()
    except (FormatError, StorageError, TokenizerError) as error:
        check_message(error)
        return
    if isinstance(found, TokenFile):
        assert found.tokens.size == found.manifest.num_tokens
        assert not found.tokens.size or int(found.tokens.max()) < found.manifest.vocabulary_size
    elif found.pattern == "gpt2":  # a pattern from a file may take forever to match
        assert decode_reference(encode_reference(SAMPLE, found), found) == SAMPLE
        assert len(found.fingerprint) == 64


def make_targets(folder: Path) -> dict[str, Target]:
    """Write valid files into `folder` and return a target for each of them."""
    vocabulary = small_vocabulary()
    vocab, merges = folder / "vocab.json", folder / "merges.txt"
    write_gpt2(vocabulary, vocab, merges)
    write_huggingface(vocabulary, folder / "tokenizer.json")
    write_tiktoken(vocabulary, folder / "ranks.tiktoken")
    write_bytewright(vocabulary, folder / "ours")
    tokens = folder / "tokens.npy"
    with TokenFileWriter(tokens, tokenizer_fingerprint="0" * 64, vocabulary_size=300) as writer:
        writer.append(np.arange(300), num_documents=1)
    for document in (folder / "ours" / "manifest.json", manifest_path_of(tokens)):
        atomic.write_json(document, atomic.read_document(document))  # without its checksum

    def target(path: Path, read: Callable[[], Vocabulary | TokenFile]) -> Target:
        sound = path.read_bytes()

        def run(data: bytes) -> None:
            path.write_bytes(mutate(sound, data, is_json=path.suffix == ".json"))
            check(read)

        return run

    def vocabulary_with_matching_manifest(data: bytes) -> None:
        contents = mutate(sound_vocabulary, data, is_json=True)
        entry = Entry(len(contents), hashlib.sha256(contents).hexdigest())
        (forged / "vocabulary.json").write_bytes(contents)
        (forged / "manifest.json").write_bytes(dump_manifest(about, {"vocabulary.json": entry}))
        check(lambda: read_bytewright(forged))

    forged = folder / "forged"
    forged.mkdir()
    about = atomic.open_folder(folder / "ours").about
    sound_vocabulary = (folder / "ours" / "vocabulary.json").read_bytes()
    read_pair = lambda: read_gpt2(vocab, merges, SPECIALS)  # noqa: E731
    made = {
        "folder-manifest": target(
            folder / "ours" / "manifest.json", lambda: read_bytewright(folder / "ours")
        ),
        "folder-vocabulary": vocabulary_with_matching_manifest,
        "gpt2-vocab": target(vocab, read_pair),
        "gpt2-merges": target(merges, read_pair),
        "huggingface": target(folder / "tokenizer.json", lambda: read_huggingface(folder / "tokenizer.json")),
        "tiktoken": target(
            folder / "ranks.tiktoken",
            lambda: read_tiktoken(folder / "ranks.tiktoken", special_tokens=SPECIALS),
        ),
        "tokenfile-array": target(tokens, lambda: TokenFile.open(tokens, verify=True)),
        "tokenfile-manifest": target(manifest_path_of(tokens), lambda: TokenFile.open(tokens, verify=True)),
    }
    assert list(made) == NAMES
    return made


def seeds() -> list[bytes]:
    """Return initial inputs: each kind of mutation, and the beginning of each format."""
    beginnings = [b"", b"{}", b"[]", b"null", b'{"a": 1, "a": 2}', b"#version: 0.2\na b\n", b"\xef\xbb\xbf{}"]
    beginnings += [base64.b64encode(b"ab") + b" 256\n", b"\x93NUMPY\x01\x00\x76\x00{'descr': '<u2', "]
    script = [bytes([0, 1, place, 0, 1, 0, 3, 0, 2, 0]) for place in range(0, 200, 20)]
    edits = [kind + each for kind in (b"J", b"H") for each in script]
    return [*beginnings, *edits, b"S\x05\x00\x05\x00x", b"S\x80\x00\x01\x00\xff", b"S\x00\x01\x3f\x00"]

"""What the fuzzer throws at each reader of tokenizers and tokens, and what it expects of them.

A target turns bytes into a file, either as they are or as an edit script on a sound file (so that the fuzzer
gets past the parser and to the meaning), and reads it. A reader may return something that works, or raise one
of the errors that a user may meet, in one sentence; anything else that comes out of it is a finding.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bytewright.data.tokenfile import TokenFile, TokenFileWriter, manifest_path_of
from bytewright.errors import FormatError, StorageError, TokenizerError
from bytewright.storage import atomic
from bytewright.storage.manifest import Entry, dump_manifest
from bytewright.tokenizer.formats import (
    read_folder,
    read_gpt2,
    read_huggingface,
    read_tiktoken,
    write_folder,
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
LONGEST_SENTENCE = 2000

# What an edit script puts in the place of a sound value: the classics of trouble.
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
    """Reads small numbers off the fuzzer's bytes, zero when they are used up."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def below(self, bound: int) -> int:
        """Return the next number, less than `bound`."""
        taken = self._data[self._position : self._position + 2]
        self._position += 2
        return int.from_bytes(taken, "little") % max(bound, 1)

    @property
    def is_used_up(self) -> bool:
        """Say whether only zeros would follow."""
        return self._position >= len(self._data)


def edit(document: Any, script: Script, depth: int = 0) -> Any:
    """Walk down into a JSON document and put, take away or repeat something there."""
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
    """Make a file of the fuzzer's bytes: those bytes, or `sound` with some of it edited or replaced."""
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
    """Train the tokenizer whose files are the sound ones."""
    tokens, merges, _ = train_bpe_reference(b"low lower newest widest newest", 270)
    return Vocabulary.from_parts(tokens, merges, SPECIALS)


def expect_one_sentence(error: Exception) -> None:
    """Raise unless what an error says is short and on one line."""
    sentence = str(error)
    if "\n" in sentence or len(sentence) > LONGEST_SENTENCE:
        raise AssertionError("this is more than one sentence") from error


def check(read: Callable[[], Vocabulary | TokenFile]) -> None:
    """Read, and use what comes of it; or hear one sentence."""
    try:
        found = read()
    except (FormatError, StorageError, TokenizerError) as error:
        expect_one_sentence(error)
        return
    if isinstance(found, TokenFile):
        assert found.tokens.size == found.manifest.num_tokens
        assert not found.tokens.size or int(found.tokens.max()) < found.manifest.vocabulary_size
    elif found.pattern == "gpt2":  # a pattern out of a file may be one that takes for ever to match
        assert decode_reference(encode_reference(SAMPLE, found), found) == SAMPLE
        assert len(found.fingerprint) == 64


def make_targets(folder: Path) -> dict[str, Target]:
    """Write the sound files into `folder` and return a target for each file that some reader reads."""
    vocabulary = small_vocabulary()
    vocab, merges = folder / "vocab.json", folder / "merges.txt"
    write_gpt2(vocabulary, vocab, merges)
    write_huggingface(vocabulary, folder / "tokenizer.json")
    write_tiktoken(vocabulary, folder / "ranks.tiktoken")
    write_folder(vocabulary, folder / "ours")
    tokens = folder / "tokens.npy"
    with TokenFileWriter(tokens, tokenizer_fingerprint="0" * 64, vocabulary_size=300) as writer:
        writer.append(np.arange(300), num_documents=1)
    for document in (folder / "ours" / "manifest.json", manifest_path_of(tokens)):
        atomic.write_json(document, atomic.read_document(document))  # a checksum would refuse all changes

    def target(path: Path, read: Callable[[], Vocabulary | TokenFile]) -> Target:
        sound = path.read_bytes()

        def run(data: bytes) -> None:
            path.write_bytes(mutate(sound, data, is_json=path.suffix == ".json"))
            check(read)

        return run

    def vocabulary_behind_an_honest_manifest(data: bytes) -> None:
        contents = mutate(sound_vocabulary, data, is_json=True)
        entry = Entry(len(contents), hashlib.sha256(contents).hexdigest())
        (forged / "vocabulary.json").write_bytes(contents)
        (forged / "manifest.json").write_bytes(dump_manifest(about, {"vocabulary.json": entry}))
        check(lambda: read_folder(forged))

    forged = folder / "forged"
    forged.mkdir()
    about = atomic.open_folder(folder / "ours").about
    sound_vocabulary = (folder / "ours" / "vocabulary.json").read_bytes()
    read_pair = lambda: read_gpt2(vocab, merges, SPECIALS)  # noqa: E731
    made = {
        "folder-manifest": target(folder / "ours" / "manifest.json", lambda: read_folder(folder / "ours")),
        "folder-vocabulary": vocabulary_behind_an_honest_manifest,
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
    """Return inputs to start from: each kind of mutation, and the beginnings of each format."""
    beginnings = [b"", b"{}", b"[]", b"null", b'{"a": 1, "a": 2}', b"#version: 0.2\na b\n", b"\xef\xbb\xbf{}"]
    beginnings += [base64.b64encode(b"ab") + b" 256\n", b"\x93NUMPY\x01\x00\x76\x00{'descr': '<u2', "]
    script = [bytes([0, 1, place, 0, 1, 0, 3, 0, 2, 0]) for place in range(0, 200, 20)]
    edits = [kind + each for kind in (b"J", b"H") for each in script]
    return [*beginnings, *edits, b"S\x05\x00\x05\x00x", b"S\x80\x00\x01\x00\xff", b"S\x00\x01\x3f\x00"]

"""A damaged or hostile tokenizer file raises a `FormatError` of one sentence, in little time and memory."""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bytewright.errors import BytewrightError, FormatError, StorageError
from bytewright.storage import atomic
from bytewright.tokenizer.formats import (
    read_bytewright,
    read_gpt2,
    read_huggingface,
    read_tiktoken,
    read_vocabulary,
    write_bytewright,
    write_gpt2,
    write_huggingface,
    write_tiktoken,
)
from bytewright.tokenizer.formats.gpt2 import spell
from bytewright.tokenizer.reference import BYTES, train_bpe_reference
from bytewright.tokenizer.vocabulary import Vocabulary
from rejection import rejects


@pytest.fixture(scope="module")
def small() -> Vocabulary:
    tokens, merges, _ = train_bpe_reference(b"low lower newest widest newest", 270)
    return Vocabulary.from_parts(tokens, merges, ["<|end|>"])


@pytest.fixture
def folder(small: Vocabulary, tmp_path: Path) -> Path:
    """One small tokenizer in all four formats."""
    write_bytewright(small, tmp_path / "ours")
    write_gpt2(small, tmp_path / "vocab.json", tmp_path / "merges.txt")
    write_huggingface(small, tmp_path / "tokenizer.json")
    write_tiktoken(small, tmp_path / "ranks.tiktoken")
    return tmp_path


def read(path: Path) -> Vocabulary:
    """Read the file with the reader for its name."""
    if path.name in ("vocab.json", "merges.txt"):
        return read_gpt2(path.with_name("vocab.json"), path.with_name("merges.txt"), ["<|end|>"])
    if path.name == "tokenizer.json":
        return read_huggingface(path)
    if path.name == "ranks.tiktoken":
        return read_tiktoken(path, special_tokens=["<|end|>"])
    return read_bytewright(path.parent)


FILES = [
    "ours/vocabulary.json",
    "ours/manifest.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.json",
    "ranks.tiktoken",
]
JSON_FILES = [name for name in FILES if name.endswith(".json")]
every_file = pytest.mark.parametrize("name", FILES)
every_json_file = pytest.mark.parametrize("name", JSON_FILES)


def sentence_of(read_it: Callable[[], object], path: Path) -> str:
    """Return the error message of the reader; it must be one sentence that names the file."""
    with pytest.raises(FormatError) as caught:
        read_it()
    sentence = str(caught.value)
    assert str(path) in sentence or str(path.parent) in sentence
    assert "\n" not in sentence
    assert len(sentence.replace(str(path.parent), "")) < 400
    return sentence


# Damage of any file, independent of its format


@every_file
def test_a_file_truncated_anywhere_is_rejected(folder: Path, small: Vocabulary, name: str) -> None:
    path = folder / name
    whole = path.read_bytes()
    step = max(1, len(whole) // 150)
    for length in [*range(0, len(whole) - 20, step), *range(len(whole) - 20, len(whole) - 1)]:
        path.write_bytes(whole[:length])
        if name == "ranks.tiktoken" and whole[length - 1 : length + 1].count(b"\n"):
            # A ranks file truncated between two lines is a smaller vocabulary or invalid.
            try:
                assert set(read(path).merges) < set(small.merges)
            except FormatError as error:
                assert "requires all 256 bytes" in str(error) or not length  # noqa: PT017
            continue
        sentence_of(lambda: read(path), path)
    path.write_bytes(whole)
    assert read(path) == small


@every_file
@pytest.mark.parametrize(
    "contents",
    [
        b"",
        b"\n",
        b"null",
        b"[]",
        b"{}",
        b"0",
        b'""',
        b"\x00" * 100,
        b"\xff\xfe{\x00}\x00",
        b"\xef\xbb\xbf{}",
        b"\x80\x81",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"9" * 5000,
        b"NaN",
        b'{"a": 1, "a": 2}',
        b'{"\\ud800": 1}',
        b"a b c",
        b"a b\r\nc d\r\n",
        b"YQ== 0",
        b"PK\x03\x04",
    ],
)
def test_contents_of_another_kind_are_rejected(folder: Path, name: str, contents: bytes) -> None:
    path = folder / name
    path.write_bytes(contents)
    sentence_of(lambda: read(path), path)


@every_file
def test_a_byte_order_mark_is_rejected(folder: Path, name: str) -> None:
    path = folder / name
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    sentence_of(lambda: read(path), path)


@every_file
def test_another_encoding_is_rejected(folder: Path, name: str) -> None:
    path = folder / name
    path.write_bytes(path.read_text().encode("utf-16"))
    sentence_of(lambda: read(path), path)


@pytest.mark.parametrize("name", ["merges.txt", "ranks.tiktoken"])
def test_line_ends_of_another_system_are_rejected_by_name(folder: Path, name: str) -> None:
    path = folder / name
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert "line 1 has a carriage return" in sentence_of(lambda: read(path), path)


@every_file
def test_a_missing_file_and_a_folder_in_its_place_are_storage_errors(folder: Path, name: str) -> None:
    path = folder / name
    path.unlink()
    with pytest.raises(BytewrightError) as caught:
        read(path)
    assert str(path) in str(caught.value) or str(path.parent) in str(caught.value)
    path.mkdir()
    with rejects(StorageError, errno=errno.EISDIR, path=path):
        read(path)


@every_file
def test_flipping_any_bit_never_raises_another_class_of_error(folder: Path, name: str) -> None:
    path = folder / name
    whole = path.read_bytes()
    for position in range(0, len(whole), max(1, len(whole) // 200)):
        broken = bytearray(whole)
        broken[position] ^= 1 << position % 8
        path.write_bytes(broken)
        with contextlib.suppress(FormatError):
            read(path)


# Values of the wrong type at every position of each JSON file


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths to all values, but only the first few elements of long arrays."""
    found = [path]
    if isinstance(value, dict):
        for key in [*list(value)[:3], *list(value)[-3:]]:
            found += places(value[key], (*path, key))
    elif isinstance(value, list):
        for index in range(min(3, len(value))):
            found += places(value[index], (*path, index))
    return found


WRONG: list[object] = [
    None,
    True,
    -1,
    0,
    10**30,
    1.5,
    "",
    "x y z",
    "\ud800",
    [],
    [[]],
    {},
    {"": {}},
    ["a", "b", "c"],
    [1, 2],
]


@pytest.mark.parametrize("name", ["vocab.json", "tokenizer.json"])
def test_a_value_of_the_wrong_type_never_raises_another_class_of_error(folder: Path, name: str) -> None:
    path = folder / name
    whole = json.loads(path.read_bytes())
    refused = 0
    for place in places(whole):
        for wrong in WRONG:
            contents: Any = {"root": json.loads(json.dumps(whole))}
            holder = contents
            for key in ("root", *place)[:-1]:
                holder = holder[key]
            holder[("root", *place)[-1]] = wrong
            path.write_text(json.dumps(contents["root"]))
            try:
                read(path)
            except FormatError as error:
                refused += 1
                assert "\n" not in str(error)  # noqa: PT017
    assert refused > len(places(whole)) * 5


def test_a_wrong_value_in_our_folder_is_found_even_when_the_manifest_agrees_with_it(folder: Path) -> None:
    whole = json.loads((folder / "ours" / "vocabulary.json").read_bytes())
    about = json.loads((folder / "ours" / "manifest.json").read_bytes())["about"]
    for number, place in enumerate(places(whole)[1:]):
        contents = json.loads(json.dumps(whole))
        holder = contents
        for key in place[:-1]:
            holder = holder[key]
        holder[place[-1]] = [["wrong"]]
        path = folder / f"broken-{number}"
        with atomic.write_folder(path, about=about) as writer:
            writer.write_json("vocabulary.json", contents)
        sentence_of(lambda path=path: read_bytewright(path), path)  # type: ignore[misc]


# Messages


def edit_json(path: Path, edit: Callable[[Any], object]) -> None:
    contents = json.loads(path.read_bytes())
    edit(contents)
    path.write_text(json.dumps(contents))


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (lambda v: v.pop("w"), "uses b'w', which has no token"),
        (lambda v: v.update(a="97"), "a should be an integer, but is '97'"),
        (lambda v: v.update(a=97.0), "a should be an integer, but is 97.0"),
        (lambda v: v.update(a=True), "a should be an integer, but is true"),
        (lambda v: v.update(a=98), "'a' and 'b' have the same id 98"),
        (lambda v: v.update(a=-1), "token id -1 is not an integer from 0 to 4294967295"),
        (lambda v: v.update(a=2**32), "token id 4294967296 is not an integer from 0 to 4294967295"),
        (lambda v: v.update({"a b": 999}), "'a b' is not in the printable byte alphabet"),
        (lambda v: v.update({"\ud800": 999}), r"'\ud800' is not "),
        (lambda v: v.update({"": 999}), "'' is not "),
        (lambda v: v.pop("we"), "makes b'we', which is not in the vocabulary"),
    ],
)
def test_a_contradiction_in_vocab_json_is_named(
    folder: Path, edit: Callable[[Any], object], sentence: str
) -> None:
    edit_json(folder / "vocab.json", edit)
    assert sentence in sentence_of(lambda: read(folder / "vocab.json"), folder / "vocab.json")


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (["n ew"], "merge 0 (b'n', b'ew') uses b'ew', which no earlier merge makes"),
        (["n"], "line 1 should be two tokens in the printable byte alphabet, but is 'n'"),
        (["n  e"], "line 1 should be two tokens in the printable byte alphabet, but is 'n  e'"),
        (["n e "], "line 1 should be two tokens in the printable byte alphabet, but is 'n e '"),
        (["n \u2028e"], r"line 1 should be two tokens in the printable byte alphabet, but is 'n \u2028e'"),
        (["n e", ""], "line 2 is empty"),
        (["q q"], "merge 0 (b'q', b'q') makes b'qq', which is not in the vocabulary"),
    ],
)
def test_a_contradiction_in_merges_txt_is_named(folder: Path, lines: list[str], sentence: str) -> None:
    path = folder / "merges.txt"
    path.write_text("\n".join(lines) + "\n")
    assert sentence in sentence_of(lambda: read(path), path)


def test_a_special_token_that_is_not_unicode_is_rejected(folder: Path) -> None:
    path = folder / "vocab.json"
    edit_json(path, lambda v: v.update({"\ud800": 999}))
    found = sentence_of(lambda: read_gpt2(path, folder / "merges.txt", ["\ud800"]), path)
    assert "is not Unicode text" in found


def test_a_merge_given_twice_and_a_merge_of_itself_are_named(folder: Path) -> None:
    path = folder / "merges.txt"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[1]]) + "\n")
    assert "which an earlier merge makes already" in sentence_of(lambda: read(path), path)
    path.write_text("\n".join([lines[0], *reversed(lines[1:])]) + "\n")
    assert "which no earlier merge makes" in sentence_of(lambda: read(path), path)


def test_merges_lost_at_a_line_end_are_detected(folder: Path) -> None:
    path = folder / "merges.txt"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert "no line makes token" in sentence_of(lambda: read(path), path)


BEGIN = {"SpecialToken": {"id": "<|begin|>", "type_id": 0}}
TEXT = {"Sequence": {"id": "A", "type_id": 0}}


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (lambda t: t.update(normalizer={"type": "NFC"}), "normalizer should be null"),
        (lambda t: t.update(truncation={"max_length": 5}), "truncation should be null"),
        (lambda t: t.update(padding={"strategy": "BatchLongest"}), "padding should be null"),
        (
            lambda t: t.update(post_processor={"type": "BertProcessing"}),
            "post_processor.type should be 'ByteLevel'",
        ),
        (
            lambda t: t.update(post_processor={"type": "TemplateProcessing", "single": [BEGIN, TEXT]}),
            "post_processor.single should be only the text",
        ),
        (
            lambda t: t.update(post_processor={"type": "TemplateProcessing", "single": [TEXT, TEXT]}),
            "post_processor.single should be only the text",
        ),
        (
            lambda t: t.update(post_processor={"type": "Sequence", "processors": [{"type": "ByteLevel"}, 7]}),
            "post_processor.processors[1] should be an object",
        ),
        (lambda t: t.update(decoder={"type": "Metaspace"}), "decoder.type should be 'ByteLevel'"),
        (lambda t: t.update(pre_tokenizer=None), "pre_tokenizer should be an object, but is null"),
        (
            lambda t: t.update(pre_tokenizer={"type": "Whitespace"}),
            "pre_tokenizer.type should be 'ByteLevel'",
        ),
        (
            lambda t: t["pre_tokenizer"].update(add_prefix_space=True),
            "pre_tokenizer.add_prefix_space should be false",
        ),
        (
            lambda t: t["pre_tokenizer"].pop("add_prefix_space"),
            "pre_tokenizer.add_prefix_space should be false",
        ),
        (lambda t: t["pre_tokenizer"].update(use_regex=False), "pre_tokenizer.use_regex should be true"),
        (lambda t: t["pre_tokenizer"].update(new=1), "pre_tokenizer.new is an unknown key"),
        (lambda t: t.update(surprise=1), "surprise is an unknown key"),
        (lambda t: t.pop("model"), "model is missing"),
        (lambda t: t["model"].update(type="Unigram"), "model.type should be 'BPE'"),
        (lambda t: t["model"].update(dropout=0.1), "model.dropout should be null"),
        (lambda t: t["model"].update(byte_fallback=True), "model.byte_fallback should be false"),
        (lambda t: t["model"].update(end_of_word_suffix="</w>"), "model.end_of_word_suffix should be null"),
        (
            lambda t: t["model"].update(continuing_subword_prefix="##"),
            "model.continuing_subword_prefix should be null",
        ),
        (lambda t: t["model"].update(extra=None), "model.extra is an unknown key"),
        (lambda t: t["model"]["merges"].insert(0, ["a"]), "model.merges[0] should be two tokens"),
        (lambda t: t["model"]["merges"].insert(0, 7), "model.merges[0] should be two tokens"),
        (lambda t: t["added_tokens"][0].update(lstrip=True), "added_tokens[0].lstrip should be false"),
        (
            lambda t: t["added_tokens"][0].update(single_word=True),
            "added_tokens[0].single_word should be false",
        ),
        (
            lambda t: t["added_tokens"][0].update(id=5),
            "added_tokens[0].id should be 270, the id that the library",
        ),
        (
            lambda t: t["added_tokens"][0].update(content=5),
            "added_tokens[0].content should be a string, but is 5",
        ),
        (
            lambda t: t["added_tokens"].append(t["added_tokens"][0]),
            "added_tokens[1].content should be a token that",
        ),
        (
            lambda t: t["added_tokens"].append(t["added_tokens"][0] | {"normalized": True, "content": "<n>"}),
            "added_tokens[1].normalized should be false",
        ),
        (
            lambda t: t["added_tokens"].append(t["added_tokens"][0] | {"content": "we"}),
            "added_tokens[1].id should be 256",
        ),
    ],
)
def test_unsupported_features_of_tokenizer_json_are_rejected_by_name(
    folder: Path, edit: Callable[[Any], object], sentence: str
) -> None:
    path = folder / "tokenizer.json"
    edit_json(path, edit)
    assert f"{path}: {sentence}" in sentence_of(lambda: read(path), path)


def split_by(**changes: object) -> dict[str, object]:
    split = {"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Isolated", "invert": False} | changes
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": [split, byte_level]}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"behavior": "Removed"}, "behavior should be 'Isolated'"),
        ({"invert": True}, "invert should be false"),
        ({"pattern": {"String": " "}}, "pattern.String is an unknown key"),
        ({"pattern": {"Regex": "\ud800"}}, "pattern.Regex should be Unicode text without lone surrogates"),
        ({"type": "Punctuation"}, "type should be 'Split'"),
    ],
)
def test_an_unsupported_split_is_rejected_by_name(
    folder: Path, changes: dict[str, object], sentence: str
) -> None:
    path = folder / "tokenizer.json"
    edit_json(path, lambda t: t.update(pre_tokenizer=split_by(**changes)))
    found = sentence_of(lambda: read(path), path)
    assert f"pre_tokenizer.pretokenizers[0].{sentence}" in found


def test_ignore_merges_is_rejected_unless_every_token_is_reachable(folder: Path) -> None:
    path = folder / "tokenizer.json"
    edit_json(path, lambda t: t["model"].update(ignore_merges=True))
    read(path)
    edit_json(path, lambda t: t["model"]["vocab"].update(orphan=400))
    assert "token b'orphan' (id 400) cannot be reached" in sentence_of(lambda: read(path), path)


def test_two_merges_of_one_token_are_rejected_unless_the_file_is_one_of_ranks(folder: Path) -> None:
    path = folder / "tokenizer.json"

    def merge_both_ways(contents: Any, merges: list[str]) -> None:
        contents["model"]["vocab"].update(xy=500, yz=501, xyz=502, zz=503)
        contents["model"]["merges"] += merges

    whole = path.read_bytes()
    edit_json(path, lambda t: merge_both_ways(t, ["x y", "y z", "x yz", "xy z", "z z"]))
    assert read(path).merges[-2:] == ((b"xy", b"z"), (b"z", b"z"))
    path.write_bytes(whole)
    edit_json(path, lambda t: merge_both_ways(t, ["x y", "y z", "x yz", "z z", "xy z"]))
    assert "which an earlier merge makes already" in sentence_of(lambda: read(path), path)
    path.write_bytes(whole)
    edit_json(path, lambda t: merge_both_ways(t, ["y z", "x yz", "x y", "xy z"]))
    assert "which an earlier merge makes already" in sentence_of(lambda: read(path), path)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("", "line 3 is empty"),
        ("!!!! 5", "line 3: expected a token in base64, found '!!!! 5'"),
        (" 5", "line 3: "),
        ("YWI=", "line 3: expected a rank after the token, found ''"),
        ("YWI= 5 5", "found '5 5'"),
        ("YWI= -5", "found '-5'"),
        ("YWI= 1_000", "found '1_000'"),
        ("YWI= ٣", "found '٣'"),
        ("YWI= " + "9" * 5000, "found '999"),
        ("YWI= 1", "line 3: rank 1 is given twice"),
        ("AA== 999", "line 3: the token of line 1 is given twice"),
        ("YWI= 9999999999", "token id 9999999999 is not an integer from 0 to 4294967295"),
        ("eHl6eHl6 999", "token b'xyzxyz' cannot be reached"),
    ],
)
def test_a_contradiction_in_a_ranks_file_is_named(folder: Path, line: str, sentence: str) -> None:
    path = folder / "ranks.tiktoken"
    lines = [base64.b64encode(bytes([byte])).decode() + f" {byte}" for byte in range(256)]
    path.write_text("\n".join([*lines[:2], line, *lines[2:]]) + "\n")
    assert sentence in sentence_of(lambda: read(path), path)


def test_a_special_token_with_the_id_of_another_token_is_rejected(folder: Path) -> None:
    path = folder / "ranks.tiktoken"
    found = sentence_of(lambda: read_tiktoken(path, special_tokens={"<|end|>": 97}), path)
    assert "special token '<|end|>' has the id 97, but that id stands for b'a'" in found


def test_a_folder_of_another_kind_is_rejected(tmp_path: Path) -> None:
    with atomic.write_folder(tmp_path / "other", about={"kind": "checkpoint"}) as writer:
        writer.write_json("vocabulary.json", {})
    found = sentence_of(lambda: read_vocabulary(tmp_path / "other"), tmp_path / "other")
    assert "about.kind should be 'bytewright tokenizer 1', but is 'checkpoint'" in found


# Small files that could need much memory or time


def peak_memory(read_it: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            read_it()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_merges_cannot_produce_tokens_that_the_file_does_not_contain(folder: Path) -> None:
    # Doubling forty times would create a token of a terabyte if results were built before they are looked up.
    lines = [f"{'a' * min(2**n, 4096)} {'a' * min(2**n, 4096)}" for n in range(40)]
    path = folder / "merges.txt"
    path.write_text("\n".join(lines) + "\n")
    assert peak_memory(lambda: read(path)) < 100 * path.stat().st_size


def test_one_giant_token_costs_no_more_than_its_size(folder: Path) -> None:
    giant = b"ab" * 50_000
    path = folder / "ranks.tiktoken"
    lines = [
        f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate([*BYTES, b"ab", giant])
    ]
    path.write_text("\n".join(lines) + "\n")
    assert peak_memory(lambda: read(path)) < 400 * path.stat().st_size
    assert len(sentence_of(lambda: read(path), path)) < 500

    path = folder / "vocab.json"
    edit_json(path, lambda v: v.update({spell(giant): 999, spell(giant) + " ": 1000}))
    assert peak_memory(lambda: read(path)) < 100 * path.stat().st_size


def test_a_duplicate_among_many_keys_is_rejected_quickly(folder: Path) -> None:
    path = folder / "vocab.json"
    keys = [f'"{number}": {number}' for number in range(100_000)]
    path.write_text("{" + ", ".join([*keys, '"99999": 5']) + "}")
    assert "'99999' is given twice" in sentence_of(lambda: read(path), path)

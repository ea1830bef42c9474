"""Masks: the file format, the batches, and the pairs of prompts and completions that they come from."""

from __future__ import annotations

import contextlib
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bytewright.data.sampler import IGNORED, TokenStore, count_targets
from bytewright.data.tokenfile import TokenFile, TokenFileWriter
from bytewright.errors import FormatError, TokenizerError, UsageError
from bytewright.storage import filesystem
from bytewright.storage.manifest import manifest_path_of
from bytewright.tokenizer import Tokenizer
from bytewright.tokenizer.pairs import encode_pairs
from conftest import RunCommand

PAIRS: list[dict[str, Any]] = [
    {"prompt": "2+2=", "completion": "4"},
    {"prompt": "", "completion": " a tale", "id": 7},
    {"prompt": "Once upon", "completion": " a time, twice"},
]


def write(path: Path, ids: Any, mask: Any = None) -> None:
    with TokenFileWriter(
        path, tokenizer_fingerprint="1" * 64, vocabulary_size=300, masked=mask is not None
    ) as writer:
        writer.append(ids, mask=mask)


def write_pairs(path: Path, pairs: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs))
    return path


def test_numpy_reads_the_ids_and_then_the_mask(tmp_path: Path) -> None:
    write(tmp_path / "a.npy", [5, 6, 7], [0, 1, 1])
    with (tmp_path / "a.npy").open("rb") as file:
        assert np.load(file).tolist() == [5, 6, 7]
        assert np.load(file).tolist() == [False, True, True]
    assert np.load(tmp_path / "a.npy", mmap_mode="r").tolist() == [5, 6, 7]
    opened = TokenFile.open(tmp_path / "a.npy", verify=True)
    assert opened.mask is not None
    assert (opened.tokens.tolist(), opened.mask.tolist()) == ([5, 6, 7], [0, 1, 1])
    assert opened.manifest.num_counted == 2


def test_a_file_without_a_mask_has_the_manifest_of_earlier_versions(tmp_path: Path) -> None:
    write(tmp_path / "a.npy", [5, 6, 7])
    keys = set(json.loads(manifest_path_of(tmp_path / "a.npy").read_text()))
    assert keys == {
        *("format", "tokenizer_fingerprint", "vocabulary_size", "dtype"),
        *("num_tokens", "num_documents", "sha256", "checksum"),
    }
    assert TokenFile.open(tmp_path / "a.npy", verify=True).mask is None
    assert (tmp_path / "a.npy").stat().st_size == 128 + 6


@pytest.mark.parametrize("mask", [None, [True], [True] * 4])
def test_a_mask_must_have_one_value_for_each_id(tmp_path: Path, mask: Any) -> None:
    with (
        pytest.raises(TokenizerError) as caught,
        TokenFileWriter(
            tmp_path / "a.npy", tokenizer_fingerprint="1" * 64, vocabulary_size=9, masked=True
        ) as writer,
    ):
        writer.append([1, 2, 3], mask=mask)
    assert caught.value.key == "mask"
    assert not (tmp_path / "a.npy").exists()


@pytest.mark.parametrize(("offset", "value"), [(-1, 0), (-3, 1), (-1, 2)])
def test_a_damaged_mask_is_rejected(tmp_path: Path, offset: int, value: int) -> None:
    write(tmp_path / "a.npy", [5, 6, 7], [0, 1, 1])
    data = bytearray((tmp_path / "a.npy").read_bytes())
    data[offset] = value
    (tmp_path / "a.npy").write_bytes(data)
    with pytest.raises(FormatError) as caught:
        TokenFile.open(tmp_path / "a.npy", verify=True)
    assert caught.value.key == "mask_sha256"


def test_a_lost_and_a_truncated_mask_are_rejected(tmp_path: Path) -> None:
    write(tmp_path / "a.npy", [5, 6, 7], [0, 1, 1])
    whole = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(whole[: 128 + 6])
    with pytest.raises(FormatError) as caught:
        TokenFile.open(tmp_path / "a.npy")
    assert caught.value.key == "mask_sha256"
    (tmp_path / "a.npy").write_bytes(whole[:-1])
    with pytest.raises(FormatError) as caught:
        TokenFile.open(tmp_path / "a.npy")
    assert caught.value.key == "size"


def test_a_kill_at_any_operation_leaves_the_old_or_the_new_mask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ids are the same; only the mask changes."""
    path = tmp_path / "a.npy"
    seen: list[str] = []
    left = 0

    class Killed(BaseException):
        pass

    def count(operation: str, *_: Path) -> None:
        nonlocal left
        seen.append(operation)
        left -= 1
        if left == 0:
            raise Killed

    monkeypatch.setattr(filesystem, "before_operation", count)
    write(path, [5, 6, 7], [0, 1, 1])
    found = set()
    for k in range(1, len(seen) + 1):
        left = 0
        write(path, [5, 6, 7], [0, 1, 1])
        left = k
        with contextlib.suppress(Killed):
            write(path, [5, 6, 7], [1, 1, 1])
        opened = TokenFile.open(path, verify=True)
        assert opened.mask is not None
        assert opened.manifest.num_counted == opened.mask.sum()
        found.add(int(opened.mask.sum()))
    assert found == {2, 3}


def test_targets_that_do_not_count_are_ignored(tmp_path: Path) -> None:
    ids = np.arange(10, dtype=np.uint16)
    mask = np.array([1, 0, 0, 1, 1, 0, 1, 1, 1, 0], dtype=np.uint8)
    starts = np.array([0, 3, 5])
    inputs, targets = TokenStore(ids, mask=mask).batch(starts, 4)
    assert inputs.tolist() == [[0, 1, 2, 3], [3, 4, 5, 6], [5, 6, 7, 8]]
    x = IGNORED
    assert targets.tolist() == [[x, x, 3, 4], [4, x, 6, 7], [6, 7, 8, x]]
    assert count_targets(mask, starts, 4).tolist() == [2, 3, 3]


def test_pairs_become_documents_whose_completions_count(tmp_path: Path, tokenizer: Path) -> None:
    ours = Tokenizer.load(tokenizer)
    end = ours.special_tokens["<|endoftext|>"]
    expected_ids, expected_mask = [end], [0]
    for pair in PAIRS:
        prompt, completion = ours.encode(str(pair["prompt"])), ours.encode(str(pair["completion"]))
        expected_ids += [*prompt, *completion, end]
        expected_mask += [0] * len(prompt) + [1] * len(completion) + [1]
    source = write_pairs(tmp_path / "pairs.jsonl", PAIRS)
    (tmp_path / "pairs.jsonl.gz").write_bytes(gzip.compress(source.read_bytes()))
    for name in ("pairs.jsonl", "pairs.jsonl.gz"):
        file = encode_pairs(ours, tmp_path / name, tmp_path / "pairs.npy")
        assert file.mask is not None
        assert (file.tokens.tolist(), file.mask.tolist()) == (expected_ids, expected_mask)
        assert file.manifest.num_documents == 3


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ({"prompt": "a"}, "completion"),
        ({"prompt": "a", "completion": ""}, "completion"),
        ({"prompt": 1, "completion": "b"}, "prompt"),
        (["a", "b"], "prompt"),
    ],
)
def test_a_line_that_is_not_a_pair_is_rejected_with_its_number(
    tmp_path: Path, tokenizer: Path, line: Any, key: str
) -> None:
    source = write_pairs(tmp_path / "pairs.jsonl", [*PAIRS, line])
    with pytest.raises(FormatError) as caught:
        encode_pairs(Tokenizer.load(tokenizer), source, tmp_path / "pairs.npy")
    assert (caught.value.path, caught.value.key) == (source, key)
    assert "line 4" in str(caught.value)
    assert not (tmp_path / "pairs.npy").exists()


def test_files_without_pairs_are_rejected(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "pairs.txt").write_text("a b")
    for name in ("empty.jsonl", "pairs.txt"):
        with pytest.raises(UsageError) as caught:
            encode_pairs(Tokenizer.load(tokenizer), tmp_path / name, tmp_path / "pairs.npy")
        assert caught.value.path == tmp_path / name


def test_the_command_encodes_pairs(run: RunCommand, tmp_path: Path, tokenizer: Path) -> None:
    renamed = [{"user": pair["prompt"], "reply": pair["completion"]} for pair in PAIRS]
    source = write_pairs(tmp_path / "pairs.jsonl", renamed)
    arguments = ("tokenizer", "encode-pairs", tokenizer, source, "--out", tmp_path / "pairs.npy")
    outcome = run(*arguments, "--prompt", "user", "--completion", "reply")
    assert outcome.code == 0, outcome.err
    counted = TokenFile.open(tmp_path / "pairs.npy", verify=True).manifest.num_counted
    assert f"3 pairs, {len(np.load(tmp_path / 'pairs.npy'))} tokens; {counted} of them" in outcome.out
    assert run(*arguments).code == 2, "an existing file needs --replace"

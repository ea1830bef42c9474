"""A dataset of several shards is read, and trains, exactly as one token file with the same ids."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from bytewright.data import dataset
from bytewright.data.dataset import INDEX, ShardedIds, write_index
from bytewright.data.sampler import TokenStore, WindowSampler, find_documents
from bytewright.data.tokenfile import TokenFile, hash_ids, map_ids
from bytewright.errors import FormatError, UsageError
from bytewright.experiments.corpora import token_digests
from bytewright.train import Run, resume, train
from conftest import RunCommand
from rejection import rejects
from runs import RECIPE, digest, make_config, make_ids, write_tokens


def write_dataset(folder: Path, ids: np.ndarray, cuts: list[int]) -> Path:
    """Write ids as a dataset that is cut at these positions."""
    shards, whole = [], hashlib.sha256()
    for number, part in enumerate(np.split(ids, cuts)):
        path = write_tokens(folder / f"tokens-{number}.npy", part)
        shards.append((path.name, TokenFile.open(path).manifest))
        hash_ids(map_ids(path), whole)
    write_index(folder, shards, whole.hexdigest())
    return folder


@pytest.fixture
def ids() -> np.ndarray:
    return np.asarray(make_ids(2000))


@pytest.fixture(params=[[], [700], [1, 2, 3, 1999], [0, 500, 500, 2000], list(range(100, 2000, 100))])
def sharded(request: pytest.FixtureRequest, tmp_path: Path, ids: np.ndarray) -> TokenFile:
    return TokenFile.open(write_dataset(tmp_path / "many", ids, request.param), verify=True)


def test_a_dataset_reads_like_one_array(sharded: TokenFile, ids: np.ndarray) -> None:
    tokens = sharded.tokens
    assert isinstance(tokens, ShardedIds)
    assert (len(tokens), tokens.dtype, tokens.shape, tokens.nbytes) == (2000, ids.dtype, (2000,), ids.nbytes)
    for start, stop in ((0, 2000), (1, 1), (699, 701), (1990, 3000), (-5, 2000), (50, 20)):
        assert np.array_equal(tokens[start:stop], ids[start:stop])
    places = np.random.default_rng(0).integers(-2000, 2000, (30, 9))
    assert np.array_equal(tokens[places], ids[places])
    assert tokens[places].dtype == ids.dtype
    assert tokens[places[:0]].shape == (0, 9)
    assert tokens[1234] == ids[1234]
    assert tokens.tolist() == ids.tolist()
    assert tokens.tobytes() == ids.tobytes()
    for outside in ([2000], [-2001]):
        with pytest.raises(IndexError):
            tokens[np.array(outside)]
    with pytest.raises(IndexError):
        tokens[::2]


def test_batches_and_documents_are_those_of_one_file(sharded: TokenFile, ids: np.ndarray) -> None:
    sampler = WindowSampler(num_tokens=len(sharded), context_length=9, batch_size=16, seed=3)
    for step in range(4):
        starts = sampler.starts(step)
        many, one = TokenStore(sharded.tokens).batch(starts, 9), TokenStore(ids).batch(starts, 9)
        assert all(left.equal(right) for left, right in zip(many, one, strict=True))
    assert np.array_equal(find_documents(sharded.tokens, 7, 9), find_documents(ids, 7, 9))


def test_the_manifest_is_that_of_one_file(sharded: TokenFile, ids: np.ndarray, tmp_path: Path) -> None:
    assert sharded.manifest == TokenFile.open(write_tokens(tmp_path / "one.npy", ids)).manifest


def test_more_shards_than_open_files_can_be_read(
    tmp_path: Path, ids: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset, "MAX_MAPPED_SHARDS", 2)
    tokens = TokenFile.open(write_dataset(tmp_path / "many", ids, list(range(50, 2000, 50)))).tokens
    assert isinstance(tokens, ShardedIds)
    assert np.array_equal(np.asarray(tokens), ids)
    assert tokens._map.cache_info().currsize == 2


def test_training_on_shards_has_the_bits_of_training_on_one_file_and_either_resumes(
    tmp_path: Path, ids: np.ndarray, quiet: Console
) -> None:
    many = write_dataset(tmp_path / "many", ids, [333, 1024, 1500])
    one = make_config(tmp_path)
    train(one, tmp_path / "one", console=quiet)
    sharded = make_config(tmp_path, data={"train": str(many)})
    train(sharded, tmp_path / "sharded", console=quiet)
    assert digest(tmp_path / "sharded") == digest(tmp_path / "one")

    constant = {"kind": "constant"}
    short = make_config(tmp_path, data={"train": str(many)}, schedule=constant, budget={"steps": 12})
    train(short, tmp_path / "resumed", console=quiet)
    changes = {"data.train": str(tmp_path / "train.npy"), "budget.steps": 24}
    resume(tmp_path / "resumed", changes=changes, console=quiet)
    train(make_config(tmp_path, schedule=constant), tmp_path / "constant", console=quiet)
    assert digest(tmp_path / "resumed")["weights"] == digest(tmp_path / "constant")["weights"]


def test_commands_accept_a_dataset_wherever_they_accept_a_token_file(
    tmp_path: Path, ids: np.ndarray, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_dataset(tmp_path / "train", ids, [333, 1024])
    write_dataset(tmp_path / "validation", np.asarray(make_ids(500, seed=1)), [100])
    (tmp_path / "recipe.toml").write_text(RECIPE.replace(".npy", ""))
    assert run("train", tmp_path / "recipe.toml", "--out", tmp_path / "run").code == 0
    assert run("evaluate", tmp_path / "run").code == 0
    assert run("evaluate", tmp_path / "run", tmp_path / "train").code == 0
    data = Run(tmp_path / "run").config.data
    assert token_digests(data)["train"] == TokenFile.open(tmp_path / "train").manifest.sha256
    (tmp_path / "validation" / "tokens-1.npy").unlink()
    outcome = run("evaluate", tmp_path / "run")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "tokens-1.npy" in outcome.err


def test_a_folder_that_is_not_a_dataset_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        TokenFile.open(tmp_path)
    assert raised.value.path == tmp_path


def test_only_integers_are_positions(sharded: TokenFile) -> None:
    tokens = sharded.tokens
    assert isinstance(tokens, ShardedIds)
    assert tokens[[]].shape == (0,)
    for wrong in (np.ones(2000, dtype=bool), [1.5], 0.0):
        with pytest.raises(IndexError):
            tokens[wrong]


@pytest.mark.parametrize("name", ["tokens-2.npy", "a" * 5000])
def test_a_missing_shard_is_rejected(tmp_path: Path, ids: np.ndarray, name: str) -> None:
    folder = write_dataset(tmp_path / "many", ids, [700])
    index = json.loads((folder / INDEX).read_text())
    del index["checksum"]
    index["shards"][1]["name"] = name
    (folder / INDEX).write_text(json.dumps(index))
    with rejects(FormatError, path=folder / name):
        TokenFile.open(folder)


def test_a_shard_of_another_vocabulary_is_rejected(tmp_path: Path, ids: np.ndarray) -> None:
    folder = write_dataset(tmp_path / "many", ids, [700])
    for wrong in (np.arange(5), np.arange(1300)):
        write_tokens(folder / "tokens-1.npy", wrong, vocab_size=2**17)
        with pytest.raises(FormatError) as raised:
            TokenFile.open(folder)
        assert raised.value.path == folder / "tokens-1.npy"

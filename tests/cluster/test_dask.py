"""On a real Dask cluster the results are those of one process, also if workers are killed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from bytewright.corpus import END_OF_TEXT
from bytewright.data.tokenfile import TokenFile
from bytewright.executors import open_cluster
from bytewright.tokenizer import Tokenizer, train_tokenizer
from bytewright.tokenizer.cluster import count_on, cut_texts, encode_on
from conftest import RunCommand
from dask_processes import DaskCluster, start_cluster
from tales import write_stories

pytest.importorskip("distributed")

NUM_WORKERS = 3


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stories with many equally frequent pairs: every name occurs equally often."""
    path = tmp_path_factory.mktemp("text") / "stories.txt"
    ties = "".join(f"{a}{b} {b}{a}\n{END_OF_TEXT}\n" for a in "abcdefgh" for b in "stuvwxyz")
    path.write_text("".join(write_stories(3000)) + ties)
    return path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    with start_cluster(tmp_path_factory.mktemp("dask"), NUM_WORKERS) as started:
        yield started


def kill_after_first(cluster: DaskCluster, number: int) -> Callable[[int, int], None]:
    """Return a callback for progress that kills a worker once, when the first task is done."""
    killed: list[int] = []

    def on_progress(done: int, total: int) -> None:
        if not killed and done < total:
            cluster.kill_worker(number)
            killed.append(number)

    return on_progress


def check_merges_and_ids(
    cluster: DaskCluster, text: Path, folder: Path, vocab_size: int, range_bytes: int, *, kill: bool
) -> None:
    """Compare counting and encoding on the cluster with one process; `kill` kills a worker in each."""
    cut = cut_texts([str(text)], [END_OF_TEXT], range_bytes=range_bytes)
    assert len(cut) > 3 * NUM_WORKERS
    expected = train_tokenizer(text, vocab_size, [END_OF_TEXT])
    with open_cluster(cluster.address) as (executor, num_workers):
        table = count_on(
            executor,
            cut,
            [END_OF_TEXT],
            num_workers=num_workers,
            progress=kill_after_first(cluster, 0) if kill else None,
        )
        training = train_tokenizer(table, vocab_size, [END_OF_TEXT])
        assert training.vocabulary == expected.vocabulary
        assert training.merge_counts == expected.merge_counts
        tokenizer = Tokenizer.from_vocabulary(training.vocabulary)
        encoded = encode_on(
            executor,
            tokenizer,
            cut,
            folder / "many",
            num_workers=num_workers,
            progress=kill_after_first(cluster, 1) if kill else None,
        )
    if kill:
        assert [worker.poll() is None for worker in cluster.workers] == [False, False, True]
    whole = tokenizer.encode_file(text, folder / "one.npy")
    assert encoded.tokens.manifest == whole.manifest
    shards = [np.load(folder / "many" / shard["name"]) for shard in _shards(folder / "many")]
    assert len(shards) == len(cut)
    assert np.array_equal(np.concatenate(shards), whole.tokens)
    TokenFile.open(folder / "many", verify=True)
    shutil.rmtree(folder / "many")


def _shards(folder: Path) -> list[dict[str, str]]:
    shards: list[dict[str, str]] = json.loads((folder / "index.json").read_text())["shards"]
    return shards


def test_merges_and_ids_are_those_of_one_process(cluster: DaskCluster, text: Path, tmp_path: Path) -> None:
    check_merges_and_ids(cluster, text, tmp_path, 700, 30_000, kill=False)


def test_all_commands_give_the_results_of_one_process(
    cluster: DaskCluster, text: Path, tmp_path: Path, run: RunCommand
) -> None:
    remote = ("--cluster", cluster.address)
    url = f"file://{text}"
    train = ("tokenizer", "train", "--vocab-size", "500", "--out")
    assert run(*train, tmp_path / "t0", text).code == 0
    trained = run(*train, tmp_path / "t1", url, *remote)
    assert trained.code == 0
    phases = [line.split()[0] for line in trained.out.splitlines()[1:6]]
    assert phases == ["connect", "count", "merge", "write", "all"]
    for name in ("vocab.json", "merges.txt", "manifest.json"):
        if (tmp_path / "t0" / name).exists():
            assert (tmp_path / "t0" / name).read_bytes() == (tmp_path / "t1" / name).read_bytes()
    encode = ("tokenizer", "encode", tmp_path / "t0", text, "--out")
    assert run(*encode, tmp_path / "one.npy").code == 0
    assert " in 1 shard, " in run(*encode, tmp_path / "many", *remote).out
    one, many = TokenFile.open(tmp_path / "one.npy"), TokenFile.open(tmp_path / "many")
    assert one.manifest == many.manifest
    assert "1 were there already" in run(*encode, tmp_path / "many", *remote).out
    stats = [run("corpus", "stats", text, "--json", *options).out for options in ((), remote)]
    assert json.loads(stats[0]) == json.loads(stats[1])
    stories = ("corpus", "storybook", "--size", "100kB", "--out")
    assert run(*stories, tmp_path / "s0.txt").code == 0
    assert run(*stories, tmp_path / "s1.txt", *remote).code == 0
    assert (tmp_path / "s0.txt").read_bytes() == (tmp_path / "s1.txt").read_bytes()


@pytest.mark.parametrize(
    "command",
    [
        ("tokenizer", "train", "TEXT", "--vocab-size", "500", "--out", "t", "--clean"),
        ("tokenizer", "train", "TEXT", "--vocab-size", "500", "--out", "t", "--num-threads", "2"),
        ("tokenizer", "train", "-", "--vocab-size", "500", "--out", "t"),
        ("tokenizer", "train", "missing.txt", "--vocab-size", "500", "--out", "t"),
        ("tokenizer", "train", "TEXT", "--vocab-size", "5", "--out", "t"),
        ("tokenizer", "train", "TEXT", "--vocab-size", "500", "--out", "t", "--pattern", "("),
        ("corpus", "stats", "nosuch://bucket/a.txt"),
        ("corpus", "storybook", "--size", "1kB", "--out", "s", "--num-workers", "2"),
    ],
)
def test_a_wrong_command_is_one_sentence(
    cluster: DaskCluster,
    text: Path,
    tmp_path: Path,
    run: RunCommand,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = run(*(str(text) if part == "TEXT" else part for part in command), "--cluster", cluster.address)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.fault
def test_killed_workers_do_not_change_the_result(text: Path, tmp_path: Path) -> None:
    with start_cluster(tmp_path, NUM_WORKERS) as cluster:
        check_merges_and_ids(cluster, text, tmp_path, 700, 10_000, kill=True)


@pytest.mark.slow
@pytest.mark.fault
def test_killed_workers_do_not_change_the_result_on_200_megabytes(tmp_path: Path) -> None:
    from bytewright.corpus.storybook import write_stories as write_storybook

    text, end = tmp_path / "large.txt", END_OF_TEXT.encode()
    write_storybook(text, 40_000_000, seed=1, num_workers=2)
    documents = text.read_bytes().split(end)
    swapped = bytes.maketrans(b"aeiou", b"eioua")
    with open(text, "ab") as file:  # five dialects: pairs that differ in a vowel are equally frequent
        for _ in range(4):
            documents = [document.translate(swapped) for document in documents]
            file.write(end.join(documents))
    with start_cluster(tmp_path, NUM_WORKERS) as cluster:
        check_merges_and_ids(cluster, text, tmp_path, 10_000, 4_000_000, kill=True)

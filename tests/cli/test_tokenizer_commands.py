"""The tokenizer commands: train, encode, decode, inspect, compare and convert."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import numpy as np
import pytest

from bytewright.tokenizer import Tokenizer, inspect, train_bpe
from conftest import RunCommand


def test_train_writes_the_vocabulary_and_prints_the_phases(
    run: RunCommand, stories: Path, tmp_path: Path
) -> None:
    outcome = run("tokenizer", "train", stories, "--out", tmp_path / "tok", "--vocab-size", 350)
    assert outcome.code == 0
    vocab, merges = train_bpe(stories, 350, ["<|endoftext|>"])
    loaded = Tokenizer.load(tmp_path / "tok")
    assert loaded.vocab == vocab
    assert list(loaded.merges) == merges
    rows = dict(re.findall(r"^(read and scan|count|merge|write|all) +.*?(\d+)%", outcome.out, re.M))
    assert list(rows) == ["read and scan", "count", "merge", "write", "all"]
    assert sum(int(share) for name, share in rows.items() if name != "all") in range(97, 104)
    assert "peak memory" in outcome.out


def test_train_reads_several_files_and_folders(run: RunCommand, stories: Path, tmp_path: Path) -> None:
    text = stories.read_bytes()
    (tmp_path / "parts").mkdir()
    cut = text.index(b"<|endoftext|>\n", len(text) // 2) + len(b"<|endoftext|>")
    (tmp_path / "parts" / "a.txt").write_bytes(text[:cut])
    (tmp_path / "b.txt").write_bytes(text[cut:])
    assert (
        run(
            "tokenizer",
            "train",
            tmp_path / "parts",
            tmp_path / "b.txt",
            "--out",
            tmp_path / "tok",
            "--vocab-size",
            350,
        ).code
        == 0
    )
    assert list(Tokenizer.load(tmp_path / "tok").merges) == train_bpe(stories, 350, ["<|endoftext|>"])[1]


def test_train_without_special_tokens_and_with_several(
    run: RunCommand, stories: Path, tmp_path: Path
) -> None:
    train = ("tokenizer", "train", stories, "--vocab-size", 300)
    assert run(*train, "--out", tmp_path / "none", "--special-tokens").code == 0
    assert run(*train, "--out", tmp_path / "two", "--special-tokens", "<|a|>", "<|b|>").code == 0
    assert Tokenizer.load(tmp_path / "none").special_tokens == {}
    assert Tokenizer.load(tmp_path / "two").special_tokens == {"<|a|>": 298, "<|b|>": 299}


def test_train_reports_when_no_pairs_are_left(run: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "tiny.txt").write_text("low lower")
    outcome = run(
        "tokenizer", "train", tmp_path / "tiny.txt", "--out", tmp_path / "tok", "--vocab-size", 5000
    )
    assert outcome.code == 0
    assert "no pair is left" in outcome.out


def test_train_replaces_a_tokenizer_only_on_request(run: RunCommand, stories: Path, tmp_path: Path) -> None:
    train = ("tokenizer", "train", stories, "--out", tmp_path / "tok", "--vocab-size")
    assert run(*train, 300).code == 0
    assert run(*train, 310).code == 2
    assert Tokenizer.load(tmp_path / "tok").vocab_size == 300
    assert run(*train, 310, "--replace").code == 0
    assert Tokenizer.load(tmp_path / "tok").vocab_size == 310
    assert [path.name for path in tmp_path.iterdir()] == ["tok"]


def test_a_file_survives_encode_and_decode_byte_for_byte(
    run: RunCommand, tokenizer: Path, tmp_path: Path
) -> None:
    text = "Ωmega, naïve 🦉 <|endoftext|>\r\n".encode() * 50 + bytes(range(256))
    (tmp_path / "text").write_bytes(text)
    outcome = run("tokenizer", "encode", tokenizer, tmp_path / "text", "--out", tmp_path / "ids.npy")
    assert outcome.code == 0
    ids = np.load(tmp_path / "ids.npy", mmap_mode="r")
    assert ids.dtype == np.uint16
    assert ids.tolist() == Tokenizer.load(tokenizer).encode(text)
    assert f"{len(ids):,} tokens (uint16), {len(text) / len(ids):.2f} bytes per token" in outcome.out
    decode = ("tokenizer", "decode", tokenizer, tmp_path / "ids.npy")
    assert run(*decode, "--out", tmp_path / "again").code == 0
    assert (tmp_path / "again").read_bytes() == text
    assert run(*decode, "--out", tmp_path / "again").code == 2, "it exists already"
    assert run(*decode, "--out", tmp_path / "again", "--replace").code == 0


def test_decode_writes_the_text_to_stdout(
    run: RunCommand, tokenizer: Path, stories: Path, tmp_path: Path
) -> None:
    assert run("tokenizer", "encode", tokenizer, stories, "--out", tmp_path / "ids.npy").code == 0
    assert run("tokenizer", "decode", tokenizer, tmp_path / "ids.npy").out == stories.read_text()


def test_decode_rejects_ids_of_another_tokenizer(run: RunCommand, tokenizer: Path, tmp_path: Path) -> None:
    other = Tokenizer({id: bytes([id]) for id in range(256)}, [])
    (tmp_path / "text").write_text("owl")
    other.encode_file(tmp_path / "text", tmp_path / "ids.npy")
    outcome = run("tokenizer", "decode", tokenizer, tmp_path / "ids.npy")
    assert outcome.code == 2
    ours = Tokenizer.load(tokenizer).fingerprint
    sentence = f"encoded with tokenizer {other.fingerprint[:12]}…, but {ours[:12]}… is used here"
    assert sentence in outcome.err


def test_a_text_on_the_command_line_becomes_ids_and_comes_back(run: RunCommand, tokenizer: Path) -> None:
    text = "the owl — <|endoftext|>"
    ids = run("tokenizer", "encode", tokenizer, "--text", text).out.split()
    assert [int(id) for id in ids] == Tokenizer.load(tokenizer).encode(text)
    assert run("tokenizer", "decode", tokenizer, "--ids", *ids).out == text


def test_inspect_shows_vocabulary_compression_and_splits(
    run: RunCommand, tokenizer: Path, stories: Path
) -> None:
    outcome = run("tokenizer", "inspect", tokenizer, stories, "--num-longest", 3)
    loaded = Tokenizer.load(tokenizer)
    assert outcome.code == 0
    assert "400 tokens: 256 bytes, 143 merges, 1 special (<|endoftext|>)" in outcome.out
    assert loaded.fingerprint[:12] in outcome.out
    listed = outcome.out.split("longest tokens")[1].split("\n\n")[0].splitlines()[1:]
    assert len(listed) == 3
    ratio = stories.stat().st_size / len(loaded.encode(stories.read_bytes()))
    assert f"{ratio:.3f} bytes per token" in outcome.out
    counts = re.findall(r"^(\d+) +([\d,]+) +█", outcome.out, re.M)
    assert sum(int(count.replace(",", "")) for _, count in counts) == 399
    splits = run("tokenizer", "inspect", tokenizer, "--text", "the owl").out.splitlines()[-1]
    assert splits.replace("|", "").replace("␣", " ") == "the owl"


def test_inspect_shows_special_tokens_and_markup_unchanged(run: RunCommand, tokenizer: Path) -> None:
    splits = run("tokenizer", "inspect", tokenizer, "--text", "[bold]:owl:<|endoftext|>[/]").out.splitlines()[
        -1
    ]
    assert "<|endoftext|>" in splits
    assert splits.replace("<|endoftext|>", "").replace("|", "") == "[bold]:owl:[/]"


def test_control_characters_of_a_file_are_escaped(run: RunCommand, tmp_path: Path) -> None:
    escape = "\x1b[2J"
    vocab = {id: bytes([id]) for id in range(256)}
    Tokenizer(vocab, [], [escape], pattern=f"{escape[0]}|[a-z]+").save(tmp_path / "hostile")
    for outcome in (
        run("tokenizer", "inspect", tmp_path / "hostile", "--text", escape),
        run("tokenizer", "compare", tmp_path / "hostile", tmp_path / "hostile"),
    ):
        assert outcome.code == 0
        assert "\\x1b[2J" in outcome.out
        assert "\x1b" not in outcome.out


def test_bytes_on_the_command_line_need_not_be_text(run: RunCommand, tokenizer: Path) -> None:
    assert run("tokenizer", "encode", tokenizer, "--text", "\udcff").out == "255\n"


def test_inspect_measures_throughput(
    run: RunCommand, tokenizer: Path, stories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quickly = functools.partial(inspect.measure_throughput, seconds=0.0)
    monkeypatch.setattr(inspect, "measure_throughput", quickly)
    outcome = run("tokenizer", "inspect", tokenizer, stories, "--throughput")
    assert re.search(r"B/s here .*: [\d.]+ hours for the Pile \(825 GB\)", outcome.out)


def test_compare_shows_overlap_divergence_with_counts_and_the_cross_table(
    run: RunCommand, tmp_path: Path
) -> None:
    first, second = tmp_path / "first.txt", tmp_path / "second.txt"
    first.write_text("low low low lower lower newest newest " * 3)
    second.write_text("low low low wide wide wide wide new " * 3)
    for text in (first, second):
        out = text.with_suffix("")
        assert (
            run("tokenizer", "train", text, "--out", out, "--vocab-size", 264, "--special-tokens").code == 0
        )
    outcome = run("tokenizer", "compare", tmp_path / "first", tmp_path / "second", first, second)
    assert outcome.code == 0
    merges = [Tokenizer.load(tmp_path / name).merges for name in ("first", "second")]
    same = next(index for index, pair in enumerate(zip(*merges, strict=True)) if pair[0] != pair[1])
    assert f"merge number {same + 1}" in outcome.out
    flat = " ".join(outcome.out.split())
    for text in (first, second):
        assert re.search(rf"count in {re.escape(str(text))} [\d,]+ [\d,]+", flat)
    for text in (first, second):
        row = re.search(rf"(?<!count in ){re.escape(str(text))} ([\d.]+) ([\d.]+)", flat)
        assert row is not None
        for name, shown in zip(("first", "second"), row.groups(), strict=True):
            ids = Tokenizer.load(tmp_path / name).encode(text.read_text())
            assert float(shown) == pytest.approx(len(text.read_text()) / len(ids), abs=5e-4)


def test_the_counts_at_the_divergence_are_those_of_training(run: RunCommand, tmp_path: Path) -> None:
    """On its own text a tokenizer's choice has the count that training saw, and the other's has no more."""
    texts = {"a": "banana bandana cabana " * 7, "b": "banana bonobo bongo " * 7}
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text)
        options = ("--vocab-size", 260, "--special-tokens")
        assert (
            run("tokenizer", "train", tmp_path / f"{name}.txt", "--out", tmp_path / name, *options).code == 0
        )
    outcome = run(
        "tokenizer", "compare", tmp_path / "a", tmp_path / "b", tmp_path / "a.txt", tmp_path / "b.txt"
    )
    flat = " ".join(outcome.out.split())
    counts = [tuple(map(int, found)) for found in re.findall(r"count in \S+ (\d+) (\d+)", flat)]
    assert counts[0][0] >= counts[0][1]
    assert counts[1][1] >= counts[1][0]
    assert counts[0][0] == 7 * 5, "an: twice in banana, twice in bandana, once in cabana"


def test_compare_reports_that_the_first_merge_differs_although_others_are_shared(
    run: RunCommand, tmp_path: Path
) -> None:
    vocab = {id: bytes([id]) for id in range(256)} | {256: b"ab", 257: b"cd"}
    Tokenizer(vocab, [(b"a", b"b"), (b"c", b"d")]).save(tmp_path / "a")
    Tokenizer(vocab, [(b"c", b"d"), (b"a", b"b")]).save(tmp_path / "b")
    outcome = run("tokenizer", "compare", tmp_path / "a", tmp_path / "b")
    assert re.search(r"^merges +2 +2 +2$", outcome.out, re.M)
    assert "In order of learning, the first merge differs already:" in outcome.out


def test_compare_of_a_tokenizer_with_itself_finds_no_difference(run: RunCommand, tokenizer: Path) -> None:
    outcome = run("tokenizer", "compare", tokenizer, tokenizer)
    assert outcome.code == 0
    assert "All 143 merges are the same" in outcome.out
    assert "Only in" not in outcome.out


def test_converting_back_and_forth_keeps_every_id(
    run: RunCommand, tokenizer: Path, stories: Path, tmp_path: Path
) -> None:
    expected = Tokenizer.load(tokenizer).encode(stories.read_bytes())
    targets = {"gpt2": "gpt2", "huggingface": "tokenizer.json", "tiktoken": "ranks.tiktoken"}
    for format, name in targets.items():
        assert run("tokenizer", "convert", tokenizer, "--to", format, "--out", tmp_path / name).code == 0
        back = [
            "tokenizer",
            "convert",
            tmp_path / name,
            "--to",
            "bytewright",
            "--out",
            tmp_path / f"back-{format}",
        ]
        if format != "huggingface":
            back += ["--special-tokens", "<|endoftext|>"]
        assert run(*back).code == 0
        assert Tokenizer.load(tmp_path / f"back-{format}").encode(stories.read_bytes()) == expected


def test_convert_warns_of_a_pattern_that_tokenizers_may_interpret_differently(
    run: RunCommand, tokenizer: Path, tmp_path: Path
) -> None:
    out = ("--to", "huggingface", "--out")
    assert run("tokenizer", "convert", tokenizer, *out, tmp_path / "named.json").err == ""
    Tokenizer({id: bytes([id]) for id in range(256)}, [], pattern=r"\w+|\W+").save(tmp_path / "own")
    outcome = run("tokenizer", "convert", tmp_path / "own", *out, tmp_path / "own.json")
    assert outcome.code == 0
    assert outcome.err.count("\n") == 1
    assert "another regular expression engine" in outcome.err


def test_convert_reports_settings_that_ranks_do_not_contain(
    run: RunCommand, stories: Path, tmp_path: Path
) -> None:
    ours, ranks, back = tmp_path / "ours", tmp_path / "ours.tiktoken", tmp_path / "back"
    train = ("tokenizer", "train", stories, "--out", ours, "--vocab-size", 300, "--pattern")
    outcome = run(*train, "gpt5")
    assert outcome.code == 2
    assert "'gpt5'" in outcome.err
    assert run(*train, "gpt4").code == 0
    outcome = run("tokenizer", "convert", ours, "--to", "tiktoken", "--out", ranks)
    assert outcome.code == 0
    assert len(ranks.read_text().splitlines()) == 299
    assert "299 tokens in the tiktoken format" in outcome.out
    assert "the pattern (gpt4) and the special tokens <|endoftext|> (id 299)" in outcome.out
    given = ("--pattern", "gpt4", "--special-tokens", "<|endoftext|>")
    assert run("tokenizer", "convert", ranks, *given, "--to", "bytewright", "--out", back).code == 0
    assert Tokenizer.load(back).fingerprint == Tokenizer.load(ours).fingerprint


def test_convert_reports_special_tokens_that_files_of_gpt2_do_not_mark(
    run: RunCommand, tokenizer: Path, stories: Path, tmp_path: Path
) -> None:
    outcome = run("tokenizer", "convert", tokenizer, "--to", "gpt2", "--out", tmp_path / "gpt2")
    assert "do not mark the special tokens <|endoftext|> (id 399)" in outcome.out
    plain = tmp_path / "plain"
    train = ("tokenizer", "train", stories, "--out", plain, "--vocab-size", 300, "--special-tokens")
    assert run(*train).code == 0
    outcome = run("tokenizer", "convert", plain, "--to", "gpt2", "--out", tmp_path / "gpt2", "--replace")
    assert "special tokens" not in outcome.out


def test_tokens_and_names_that_look_like_markup_are_shown_unchanged(run: RunCommand, tmp_path: Path) -> None:
    text = tmp_path / "[red].txt"
    text.write_text("[bold]:owl:[/] " * 20)
    tokenizer = tmp_path / "[/]"
    assert (
        run("tokenizer", "train", text, "--out", tokenizer, "--vocab-size", 300, "--pattern", r"\S+").code
        == 0
    )
    outcome = run("tokenizer", "inspect", tokenizer)
    assert "[bold]:owl:[/]" in outcome.out
    outcome = run("tokenizer", "compare", tokenizer, tokenizer, text)
    assert "[red].txt" in outcome.out


def test_a_very_long_token_is_shortened(run: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a" * 100_000)
    (tmp_path / "b.txt").write_text("ab" * 1000)
    for name in "ab":
        options = ("--out", tmp_path / name, "--vocab-size", 1000)
        assert run("tokenizer", "train", tmp_path / f"{name}.txt", *options).code == 0
    for outcome in (
        run("tokenizer", "inspect", tmp_path / "a", tmp_path / "a.txt"),
        run("tokenizer", "compare", tmp_path / "a", tmp_path / "b", tmp_path / "a.txt"),
    ):
        assert outcome.code == 0
        assert "bytes)" in outcome.out
        assert len(outcome.out) < 10_000


def test_no_command_overwrites_its_own_input(
    run: RunCommand, tokenizer: Path, stories: Path, tmp_path: Path
) -> None:
    text, ids = tmp_path / "text", tmp_path / "ids.npy"
    text.write_bytes(stories.read_bytes())
    link = tmp_path / "link"
    link.symlink_to(text)
    assert run("tokenizer", "encode", tokenizer, text, "--out", ids).code == 0
    manifest = tmp_path / "ids.npy.json"
    before = [path.read_bytes() for path in (text, ids, manifest)]
    for outcome in (
        run("tokenizer", "encode", tokenizer, text, "--out", text, "--replace"),
        run("tokenizer", "encode", tokenizer, text, "--out", text),
        run("tokenizer", "encode", tokenizer, link, "--out", text, "--replace"),
        run("tokenizer", "encode", tokenizer, manifest, "--out", ids, "--replace"),
        run("tokenizer", "decode", tokenizer, ids, "--out", ids, "--replace"),
        run("tokenizer", "decode", tokenizer, ids, "--out", manifest, "--replace"),
    ):
        assert outcome.code == 2
        assert "is the input itself; choose another name" in outcome.err
    assert [path.read_bytes() for path in (text, ids, manifest)] == before

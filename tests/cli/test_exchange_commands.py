"""Export to `transformers` and import from it keep the text that a model generates."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bytewright.model import ModelConfig, TransformerLM
from bytewright.tokenizer import Tokenizer
from bytewright.tokenizer.train import train_bpe
from bytewright.train.run import Run as TrainedRun
from bytewright.train.run_model import open_model, write_imported_model
from conftest import RunCommand

TEXT = "the owl sat in the old oak; the more it saw, the less it spoke. wise old owl! café ☕ " * 4
PROMPT = "the owl"


def make_run(folder: Path, **changes: Any) -> Path:
    """Write what `export` needs of a run: one checkpoint of a small model, and a tokenizer."""
    (folder / "text.txt").write_text(TEXT)
    vocab, merges = train_bpe(folder / "text.txt", 300, ["<|endoftext|>"])
    tokenizer = Tokenizer(vocab, merges, ["<|endoftext|>"])
    run = folder / "run"
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, context_length=64, d_model=32, num_layers=2, num_heads=4, **changes
    )
    model = TransformerLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    write_imported_model(run, model, tokenizer.vocabulary)
    return run


def written_by(run: RunCommand, path: Path) -> str:
    outcome = run(
        "generate",
        path,
        "--prompt",
        PROMPT,
        "--max-new-tokens",
        "30",
        "--temperature",
        "0",
        "--device",
        "cpu",
    )
    assert outcome.code == 0, outcome.err
    return outcome.out.removesuffix("\n")


def test_exporting_a_custom_pattern_prints_a_warning(run: RunCommand, tmp_path: Path) -> None:
    original = make_run(tmp_path)
    assert run("export", original, "--to", "hf", "--out", tmp_path / "plain").err == ""
    vocabulary = dataclasses.replace(Tokenizer.load(original / "tokenizer").vocabulary, pattern=r"\w+|\W")
    Tokenizer.from_vocabulary(vocabulary).save(original / "tokenizer", replace=True)
    exported = run("export", original, "--to", "hf", "--out", tmp_path / "hf")
    assert exported.code == 0
    assert "pattern" in exported.err


def test_an_exported_and_imported_model_generates_the_same_text(run: RunCommand, tmp_path: Path) -> None:
    original = make_run(tmp_path)
    assert run("export", original, "--to", "hf", "--out", tmp_path / "hf").code == 0
    names = {path.name for path in (tmp_path / "hf").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= names
    assert run("import", tmp_path / "hf", "--out", tmp_path / "back").code == 0
    assert written_by(run, tmp_path / "back") == written_by(run, original)
    Tokenizer.load(original / "tokenizer").encode_file(tmp_path / "text.txt", tmp_path / "text.npy")
    outcome = run("evaluate", tmp_path / "back", tmp_path / "text.npy", "--device", "cpu")
    assert outcome.code == 0, outcome.err
    assert "bits per byte" in outcome.out
    outcome = run("evaluate", tmp_path / "back")
    assert outcome.code == 2
    assert "has no validation data of its own; name a token file" in outcome.err
    outcome = run("resume", tmp_path / "back")
    assert outcome.code == 2
    assert f"--init {tmp_path / 'back'}" in outcome.err


RECIPE = """
batch_size = 4
device = "cpu"
log_every = 10
eval_every = 50
eval_tokens = 256
save_every = 50
[data]
train = "train.npy"
validation = "train.npy"
[budget]
steps = 50
[optimizer]
lr = 1e-3
[schedule]
kind = "constant"
warmup = 5
"""


def test_an_imported_model_is_listed_reported_and_fine_tuned(
    run: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = make_run(tmp_path)
    assert run("export", original, "--to", "hf", "--out", tmp_path / "hf").code == 0
    assert run("import", tmp_path / "hf", "--out", tmp_path / "runs" / "back").code == 0
    monkeypatch.chdir(tmp_path)
    Tokenizer.load(original / "tokenizer").encode_file("text.txt", "train.npy")
    Path("tune.toml").write_text(RECIPE)
    arguments = ("--set", "model.context_length=32", "optimizer.lr=1e-2")
    outcome = run("train", "tune.toml", "--init", "runs/back", "--out", "runs/tuned", *arguments)
    assert outcome.code == 0, outcome.err
    outcome = run("runs", "runs")
    lines = outcome.out.splitlines()
    assert [line.split()[1] for line in lines[1:]] == ["imported", "complete"], outcome.out
    assert "back, step 0" in lines[2], outcome.out
    for paths in (["runs/back"], ["runs/tuned"], ["runs/back", "runs/tuned"]):
        outcome = run("report", *paths, "--out", "page")
        assert outcome.code == 0, outcome.err
        page = Path("page/report.html").read_text()
        assert str(tmp_path) not in page
        results = json.loads(Path("page/results.json").read_text())
        assert [each["status"] for each in results["runs"]][-1] == (
            "imported" if paths == ["runs/back"] else "complete"
        )
        assert run("report", "page/results.json", "--out", "again").code == 0
        if paths == ["runs/tuned"]:
            assert "Started from the weights of back, step 0." in page


@pytest.mark.filterwarnings("default")
def test_a_model_of_transformers_is_imported_fine_tuned_and_exported(
    run: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`transformers` makes the folder, with its own tokenizer files, and loads the result: equal logits."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT * 30)
    made = tokenizers.ByteLevelBPETokenizer()
    made.train(["text.txt"], vocab_size=320, special_tokens=["<|endoftext|>"], show_progress=False)
    made.save("plain.json")
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file="plain.json", eos_token="<|endoftext|>", bos_token="<|endoftext|>"
    )
    theirs.save_pretrained("llama")
    torch.manual_seed(0)
    shape = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    llama = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=len(theirs),
            num_key_value_heads=2,
            max_position_embeddings=64,
            rms_norm_eps=1e-5,
            **shape,
        )
    )
    llama.save_pretrained("llama")
    for arguments in (
        ("import", "llama", "--out", "runs/imported"),
        ("tokenizer", "encode", "runs/imported/tokenizer", "text.txt", "--out", "train.npy"),
    ):
        outcome = run(*arguments)
        assert outcome.code == 0, outcome.err
    assert Tokenizer.load("runs/imported/tokenizer").encode(TEXT) == theirs(TEXT)["input_ids"]
    Path("tune.toml").write_text(RECIPE)
    ids = torch.tensor(theirs(TEXT)["input_ids"][:64]).unsqueeze(0)
    logits: list[torch.Tensor] = []
    settings = ("--set", "data.tokenizer=runs/imported/tokenizer")
    assert run("export", "runs/imported", "--to", "hf", "--out", "unchanged").code == 0
    for source in ("runs/imported", "llama"):
        tuned, exported = f"runs/tuned-{len(logits)}", f"exported-{len(logits)}"
        for command in (
            ("train", "tune.toml", "--init", source, "--out", tuned, *settings),
            ("evaluate", tuned, "--device", "cpu"),
            ("export", tuned, "--to", "hf", "--out", exported),
        ):
            outcome = run(*command)
            assert outcome.code == 0, outcome.err
        again = transformers.AutoTokenizer.from_pretrained(exported)
        assert again(TEXT)["input_ids"] == theirs(TEXT)["input_ids"]
        ours = open_model(tuned).load()
        loaded = transformers.AutoModelForCausalLM.from_pretrained(exported)
        with torch.no_grad():
            logits.append(loaded(ids).logits)
            assert (logits[-1] - ours(ids)).abs().max().item() <= 1e-5
        losses = [line["loss"] for line in TrainedRun(tuned).metrics]
        assert losses[-1] < losses[0] - 1
    assert torch.equal(*logits), "an imported folder and the folder itself start the same run"
    with torch.no_grad():
        assert (logits[0] - llama(ids).logits).abs().max().item() > 0.1, "fine-tuning changed the model"
        unchanged = transformers.AutoModelForCausalLM.from_pretrained("unchanged")
        assert (unchanged(ids).logits - llama(ids).logits).abs().max().item() <= 1e-5


@pytest.mark.filterwarnings("default")
def test_transformers_generates_the_same_greedy_text(
    run: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    original = make_run(tmp_path)
    assert run("export", original, "--to", "hf", "--out", tmp_path / "hf").code == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    assert tokenizer.eos_token == "<|endoftext|>"
    assert model.config.eos_token_id == tokenizer.eos_token_id
    inputs = tokenizer(PROMPT, return_tensors="pt")
    ids = model.generate(**inputs, max_new_tokens=30, do_sample=False, pad_token_id=0)
    assert tokenizer.decode(ids[0], skip_special_tokens=True) == written_by(run, original)
    for text in (TEXT, "naïve ☃ 123  \n\t<|endoftext|>x"):
        assert tokenizer(text)["input_ids"] == Tokenizer.load(original / "tokenizer").encode(text)


@pytest.mark.parametrize("to", ["hf", "gguf"])
def test_a_model_that_llama_cannot_express_is_one_sentence(run: RunCommand, to: str, tmp_path: Path) -> None:
    if to == "gguf":
        pytest.importorskip("gguf", reason="the package gguf is missing: pip install gguf")
    outcome = run("export", make_run(tmp_path, norm="post"), "--to", to, "--out", tmp_path / "out")
    assert outcome.code == 2
    assert "norm = 'post'" in outcome.err
    assert outcome.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_import_rejects_an_existing_run_and_a_missing_folder(run: RunCommand, tmp_path: Path) -> None:
    original = make_run(tmp_path)
    assert run("export", original, "--to", "hf", "--out", tmp_path / "hf").code == 0
    outcome = run("export", original, "--to", "hf", "--out", tmp_path / "hf")
    assert outcome.code == 2
    assert "exists already" in outcome.err
    for arguments, words in (
        ([tmp_path / "hf", "--out", original], "is not empty"),
        ([tmp_path / "nowhere", "--out", tmp_path / "new"], "does not exist"),
    ):
        outcome = run("import", *arguments)
        assert outcome.code == 2
        assert words in outcome.err
    (tmp_path / "hf" / "tokenizer.json").unlink()
    assert run("import", tmp_path / "hf", "--out", tmp_path / "new").code == 2
    assert not (tmp_path / "new").exists()
    assert run("import", tmp_path / "hf", "--out", tmp_path / "new", "--without-tokenizer").code == 0
    outcome = run("generate", tmp_path / "new", "--prompt", "x")
    assert outcome.code == 2
    assert "has no tokenizer" in outcome.err

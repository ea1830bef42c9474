"""Runs of a minute for tests that compare with other programs; an untrained model hides wrong positions."""

from __future__ import annotations

from pathlib import Path

from bytewright.cli.main import main

STEPS = 200

RECIPE = f"""
batch_size = 4
device = "cpu"
eval_tokens = 2048
log_every = {STEPS}
[model]
vocab_size = 520
context_length = 256
d_model = 64
num_layers = 2
num_heads = 4
num_kv_heads = 2
[data]
train = "FOLDER/train.npy"
validation = "FOLDER/validation.npy"
tokenizer = "FOLDER/tokenizer"
[optimizer]
lr = 1e-2
[schedule]
warmup = 20
[budget]
steps = {STEPS}
"""
"""A vocabulary with 8 unused ids, and shared key/value heads."""


def train_runs(folder: Path) -> dict[str, Path]:
    """Train two runs: `llama`, and `qwen3` with norms of queries and keys and tied embeddings."""

    def run(*arguments: str) -> None:
        assert main(list(arguments)) == 0

    story = ("corpus", "storybook", "--num-workers", "1", "--out")
    run(*story, f"{folder}/train.txt", "--size", "500kB")
    run(*story, f"{folder}/validation.txt", "--size", "50kB", "--split", "validation")
    run("tokenizer", "train", f"{folder}/train.txt", "--out", f"{folder}/tokenizer", "--vocab-size", "512")
    for name in ("train", "validation"):
        text, ids = f"{folder}/{name}.txt", f"{folder}/{name}.npy"
        run("tokenizer", "encode", f"{folder}/tokenizer", text, "--out", ids)
    (folder / "recipe.toml").write_text(RECIPE.replace("FOLDER", str(folder)))
    run("train", f"{folder}/recipe.toml", "--out", f"{folder}/llama")
    changes = ("model.qk_norm=true", "model.tie_embeddings=true", "model.rope_theta=500")
    run("train", f"{folder}/recipe.toml", "--out", f"{folder}/qwen3", "--set", *changes)
    return {name: folder / name for name in ("llama", "qwen3")}

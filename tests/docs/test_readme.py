"""The Python of the README runs as it stands, from a file of stories to a model that writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from figures import EXAMPLE, ROOT

from bytewright.model import ModelConfig, TransformerLM
from bytewright.tokenizer import Tokenizer, train_tokenizer
from bytewright.tokenizer.formats.gpt2 import write_gpt2
from bytewright.train import AdamW
from bytewright.train.checkpoint import CheckpointFolder
from tales import write_stories


def make_run(run: Path) -> None:
    """Write what a run leaves of its model: the page may load it."""
    tokenizer = Tokenizer.from_vocabulary(train_tokenizer("stories.txt", 300).vocabulary)
    tokenizer.save(run / "tokenizer")
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, context_length=64, d_model=16, num_layers=1, num_heads=2
    )
    model = TransformerLM(config)
    CheckpointFolder(run / "checkpoints").save(model, AdamW(model.parameters()), {"step": 0})


def test_the_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = EXAMPLE.findall((ROOT / "README.md").read_text())
    assert len(blocks) >= 2
    monkeypatch.chdir(tmp_path)
    Path("stories.txt").write_text("".join(write_stories(300)))
    write_gpt2(train_tokenizer("stories.txt", 300).vocabulary, "vocab.json", "merges.txt")
    make_run(Path("runs/tiny"))
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert isinstance(names["tokenizer"], Tokenizer)
    assert names["tokenizer"].decode(names["ids"]) == "Once upon a time"
    assert len(names["completion"].ids) == 20
    assert names["loss"].item() < 10

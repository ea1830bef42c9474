"""Generation uses the precision of the run on a GPU, and fp32 elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from bytewright.tokenizer import Tokenizer
from bytewright.train import load_model, train
from bytewright.train.run import Run
from bytewright.train.run_model import SavedModel, open_model
from conftest import RunCommand
from runs import make_config


@pytest.mark.parametrize(
    ("precision", "device", "expected"),
    [
        ("bf16", "cuda", "bf16"),
        ("fp32", "cuda", "fp32"),
        ("bf16", "cpu", "fp32"),
        ("bf16", "mps", "fp32"),
        (None, "cuda", "fp32"),
    ],
)
def test_generation_uses_the_precision_of_the_run_only_on_a_gpu(
    tmp_path: Path, precision: str | None, device: str, expected: str
) -> None:
    run = Run(tmp_path / "run")
    if precision is not None:
        Run.create(run.path, make_config(tmp_path, precision=precision))
    assert SavedModel(tmp_path, run).generation_precision(torch.device(device)) == expected


def test_generate_computes_in_the_selected_precision(
    tmp_path: Path, stories: Path, tokenizer: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = Tokenizer.load(tokenizer)
    loaded.encode_file(stories, tmp_path / "text.npy")
    config = make_config(
        tmp_path,
        model={"vocab_size": loaded.vocab_size},
        data={"train": str(tmp_path / "text.npy"), "validation": None, "tokenizer": str(tokenizer)},
        budget={"steps": 2},
        precision="bf16",
    )
    train(config, tmp_path / "run")
    assert open_model(tmp_path / "run").config == config
    types: list[torch.dtype | None] = []

    def watched(*arguments: Any, **options: Any) -> Any:
        model = load_model(*arguments, **options)
        types.append(model.compute_dtype)
        return model

    monkeypatch.setattr("bytewright.train.run_model.load_model", watched)
    command = ("generate", tmp_path / "run", "--max-new-tokens", "2", "--device", "cpu")
    for more in ((), ("--precision", "fp32"), ("--precision", "bf16")):
        assert run(*command, *more).code == 0
    assert types == [None, None, torch.bfloat16]

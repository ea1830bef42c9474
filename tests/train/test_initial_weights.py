"""A run that starts from saved weights: sources, vocabulary growth, rejected mismatches, and its record."""

from __future__ import annotations

import dataclasses
import io
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from bytewright.errors import BytewrightError, FormatError, TokenizerError, UsageError
from bytewright.model import TransformerLM
from bytewright.model.hf_llama import write_llama
from bytewright.storage import atomic
from bytewright.tokenizer.tokenizer import Tokenizer
from bytewright.tokenizer.train import extend_tokenizer, train_tokenizer
from bytewright.train import AdamW, Run, TrainConfig, resume, save_checkpoint, train
from bytewright.train.saved_model import load_model
from bytewright.train.session.initial_weights import InitialWeights, grow_rows
from runs import VOCAB_SIZE, digest, make_config, make_ids, write_tokens


def quiet() -> dict[str, Any]:
    return {"console": Console(file=io.StringIO())}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 24 steps."""
    folder = tmp_path_factory.mktemp("base")
    train(make_config(folder), folder / "run", **quiet())
    return folder / "run"


def weights_at(run: Path, step: int) -> dict[str, torch.Tensor]:
    return load_model(run / "checkpoints" / f"step-{step:06d}").state_dict()


def assert_equal(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


def few_steps(folder: Path, **changes: Any) -> TrainConfig:
    return make_config(
        folder, **{"budget": {"steps": 4}, "optimizer": {"lr": 1e-3}, "keep_last": 3, **changes}
    )


def test_a_run_starts_from_the_weights_of_every_kind_of_source(tmp_path: Path, base: Path) -> None:
    model = load_model(base)
    save_checkpoint(model, AdamW(model.parameters()), 24, tmp_path / "file.safetensors")
    write_llama(model, tmp_path / "llama")
    best = Run(base).checkpoints.read_state(24)["best_step"]
    sources = {
        base: best,
        base / "checkpoints" / f"step-{best:06d}": best,
        tmp_path / "file.safetensors": 24,
        tmp_path / "llama": None,
    }
    digests = set()
    for number, (source, step) in enumerate(sources.items()):
        run = tmp_path / f"run{number}"
        train(few_steps(tmp_path), run, init=source, **quiet())
        assert_equal(weights_at(run, 0), model.state_dict())
        assert not torch.equal(weights_at(run, 4)["lm_head.weight"], weights_at(run, 0)["lm_head.weight"])
        record = Run(run).init
        assert (record["step"], record["optimizer"]) == (step, False)
        assert Path(record["source"]).exists()
        digests.add(record["sha256"])
    manifest = atomic.open_folder(base / "checkpoints" / f"step-{best:06d}")
    assert digests == {manifest.files["model.safetensors"].sha256}


def test_the_last_checkpoint_of_a_run_can_be_selected(tmp_path: Path, base: Path) -> None:
    init = InitialWeights.read(base, which="last")
    assert init.step == 24
    train(few_steps(tmp_path), tmp_path / "run", init=init, **quiet())
    assert_equal(weights_at(tmp_path / "run", 0), weights_at(base, 24))


def test_new_rows_of_a_grown_vocabulary_are_the_mean_of_the_old_rows(tmp_path: Path, base: Path) -> None:
    write_tokens(tmp_path / "train.npy", make_ids(2000) + 3, vocab_size=VOCAB_SIZE + 3)
    write_tokens(tmp_path / "validation.npy", make_ids(500) + 3, vocab_size=VOCAB_SIZE + 3)
    config = few_steps(tmp_path, model={"vocab_size": VOCAB_SIZE + 3})
    old = InitialWeights.read(base, which="last", with_optimizer=True)
    train(config, tmp_path / "run", init=old, **quiet())
    new = weights_at(tmp_path / "run", 0)
    for name, weight in old.weights.items():
        assert torch.equal(new[name][: len(weight)], weight)
        if name in ("token_embeddings.weight", "lm_head.weight"):
            assert torch.equal(new[name][VOCAB_SIZE:], weight.double().mean(0).float().expand(3, -1))
    state = Run(tmp_path / "run").checkpoints.read(0).optimizer["state"]
    saved = Run(base).checkpoints.read(24).optimizer["state"]
    for number in saved:
        assert state[number]["step"] == saved[number]["step"]
        for name in ("exp_avg", "exp_avg_sq"):
            rows = saved[number][name]
            assert torch.equal(state[number][name][: len(rows)], rows)
            assert not state[number][name][len(rows) :].any()


def test_the_logit_of_a_new_token_is_the_mean_of_the_old_logits(base: Path) -> None:
    model = load_model(base)
    grown = TransformerLM(dataclasses.replace(model.config, vocab_size=VOCAB_SIZE + 2))
    weights = {
        name: grow_rows(weight, VOCAB_SIZE + 2) if len(weight) == VOCAB_SIZE else weight
        for name, weight in model.state_dict().items()
    }
    grown.load_state_dict(weights)
    ids = torch.arange(8)
    with torch.no_grad():
        logits = grown(ids)
        assert torch.allclose(logits[:, :VOCAB_SIZE], model(ids), atol=1e-6)
        assert torch.allclose(logits[:, VOCAB_SIZE], model(ids).mean(-1), atol=1e-6)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"d_model": 32}, 16),
        ({"num_layers": 1}, 2),
        ({"num_heads": 4}, 2),
        ({"rope_theta": 500.0}, 10_000.0),
        ({"norm": "post"}, "pre"),
        ({"tie_embeddings": True}, False),
        ({"vocab_size": VOCAB_SIZE - 1}, VOCAB_SIZE),
    ],
)
def test_a_model_with_other_settings_is_rejected_before_the_folder_is_created(
    tmp_path: Path, base: Path, change: dict[str, Any], expected: object
) -> None:
    write_tokens(tmp_path / "train.npy", make_ids(2000) % 30, vocab_size=30)
    write_tokens(tmp_path / "validation.npy", make_ids(500) % 30, vocab_size=30)
    ((name, value),) = change.items()
    with pytest.raises(UsageError) as caught:
        train(few_steps(tmp_path, model=change), tmp_path / "run", init=base, **quiet())
    assert (caught.value.key, caught.value.expected, caught.value.found) == (f"model.{name}", expected, value)
    assert not (tmp_path / "run").exists()


def test_weights_of_a_file_are_checked_by_name_and_shape(tmp_path: Path, base: Path) -> None:
    model = load_model(base)
    file = tmp_path / "file.safetensors"
    save_checkpoint(model, AdamW(model.parameters()), 24, file)
    with pytest.raises(FormatError) as caught:
        train(few_steps(tmp_path, model={"d_ff": 128}), tmp_path / "run", init=file, **quiet())
    assert (caught.value.key, caught.value.expected, caught.value.found) == (
        "layers.0.ffn.w1.weight",
        (128, 16),
        (64, 16),
    )
    with pytest.raises(FormatError) as caught:
        train(few_steps(tmp_path, model={"num_layers": 3}), tmp_path / "run", init=file, **quiet())
    assert (caught.value.key, caught.value.found) == ("layers.2.attn.k_proj.weight", None)


def test_data_of_another_tokenizer_is_rejected(tmp_path: Path, base: Path) -> None:
    write_tokens(tmp_path / "train.npy", make_ids(2000), fingerprint="b" * 64)
    write_tokens(tmp_path / "validation.npy", make_ids(500), fingerprint="b" * 64)
    with pytest.raises(TokenizerError) as caught:
        train(few_steps(tmp_path), tmp_path / "run", init=base, **quiet())
    assert (caught.value.expected, caught.value.found) == ("a" * 64, "b" * 64)
    assert not (tmp_path / "run").exists()


def test_an_extended_tokenizer_is_accepted_and_another_one_is_rejected(
    tmp_path: Path, tokenizer: Path, stories: Path
) -> None:
    """The run that starts has the extended tokenizer, and rows for its new tokens."""
    ours = Tokenizer.load(tokenizer)
    other = train_tokenizer(stories, ours.vocab_size + 20, ["<|endoftext|>", "<|other|>"]).vocabulary
    longer = extend_tokenizer(ours, stories, ours.vocab_size + 20).vocabulary
    configs = {}
    for name, vocabulary in {"base": ours.vocabulary, "longer": longer, "other": other}.items():
        (tmp_path / name).mkdir()
        made = Tokenizer.from_vocabulary(vocabulary)
        made.save(tmp_path / name / "tokenizer")
        for split in ("train", "validation"):
            made.encode_file(stories, tmp_path / name / f"{split}.npy")
        configs[name] = few_steps(
            tmp_path / name,
            model={"vocab_size": made.vocab_size},
            data={"tokenizer": str(tmp_path / name / "tokenizer")},
        )
    train(configs["base"], tmp_path / "run", **quiet())
    train(configs["longer"], tmp_path / "tuned", init=tmp_path / "run", **quiet())
    assert Run(tmp_path / "tuned").tokenizer.vocab_size == ours.vocab_size + 20
    with pytest.raises(TokenizerError) as caught:
        train(configs["other"], tmp_path / "x", init=tmp_path / "run", **quiet())
    assert (caught.value.expected, caught.value.found) == (ours.fingerprint, other.fingerprint)
    without = dataclasses.replace(configs["longer"].data, tokenizer=None)
    with pytest.raises(TokenizerError):
        train(
            dataclasses.replace(configs["longer"], data=without),
            tmp_path / "x",
            init=tmp_path / "run",
            **quiet(),
        )
    assert not (tmp_path / "x").exists()


def test_a_copied_checkpoint_under_another_name_is_a_source(tmp_path: Path, base: Path) -> None:
    shutil.copytree(base / "checkpoints" / "step-000024", tmp_path / "kept")
    init = InitialWeights.read(tmp_path / "kept", with_optimizer=True)
    assert (init.step, init.fingerprint) == (24, None)
    train(few_steps(tmp_path), tmp_path / "run", init=init, **quiet())
    assert Run(tmp_path / "run").checkpoints.read(0).optimizer["state"][0]["step"] == 24


def test_a_context_of_another_length_is_accepted(tmp_path: Path, base: Path) -> None:
    train(few_steps(tmp_path, model={"context_length": 12}), tmp_path / "run", init=base, **quiet())
    assert load_model(tmp_path / "run").config.context_length == 12


def test_the_optimizer_state_continues_and_its_settings_are_those_of_the_new_run(
    tmp_path: Path, base: Path
) -> None:
    init = InitialWeights.read(base, which="last", with_optimizer=True)
    config = few_steps(tmp_path, optimizer={"lr": 2e-3, "beta1": 0.8})
    train(config, tmp_path / "run", init=init, **quiet())
    saved = Run(tmp_path / "run").checkpoints.read(0).optimizer
    assert saved["state"][0]["step"] == 24
    assert saved["param_groups"][0]["betas"] == (0.8, 0.95)
    assert Run(tmp_path / "run").init["optimizer"] is True
    assert Run(tmp_path / "run").checkpoints.read(4).optimizer["state"][0]["step"] == 28


@pytest.mark.parametrize("is_former", [False, True])
def test_the_state_of_combined_optimizers_grows_with_the_vocabulary(tmp_path: Path, is_former: bool) -> None:
    """Checkpoints of earlier versions have one state dict for each of the combined optimizers."""
    muon = {"optimizer": {"name": "muon", "lr": 1e-3}}
    train(few_steps(tmp_path, **muon), tmp_path / "base", **quiet())
    init = InitialWeights.read(tmp_path / "base", with_optimizer=True)
    if is_former:
        num_matrices = len(init.optimizer["param_groups"][0]["params"])
        parts: list[dict[str, Any]] = [{"state": {}, "param_groups": []} for _ in range(2)]
        for number, state in init.optimizer["state"].items():
            first = 0 if number < num_matrices else num_matrices
            parts[bool(first)]["state"][number - first] = state
        for number, group in enumerate(init.optimizer["param_groups"]):
            first = num_matrices if number else 0
            numbers = [n - first for n in group["params"]]
            parts[bool(number)]["param_groups"].append({**group, "params": numbers})
        init = dataclasses.replace(init, optimizer={"optimizers": parts})
    config = few_steps(tmp_path, model={"vocab_size": VOCAB_SIZE + 3}, **muon)
    train(config, tmp_path / "run", init=init, **quiet())
    old = Run(tmp_path / "base").checkpoints.read(4).optimizer["state"]
    new = Run(tmp_path / "run").checkpoints.read(0).optimizer["state"]
    assert new.keys() == old.keys()
    for number, state in old.items():
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(new[number][name][: len(value)], value)
                assert not new[number][name][len(value) :].any()
            else:
                assert new[number][name] == value


def test_the_state_of_another_optimizer_is_rejected_and_leaves_no_folder(tmp_path: Path, base: Path) -> None:
    init = InitialWeights.read(base, with_optimizer=True)
    for name in ("sgd", "muon"):
        with pytest.raises(BytewrightError) as caught:
            train(few_steps(tmp_path, optimizer={"name": name}), tmp_path / "run", init=init, **quiet())
        assert caught.value.exit_code == 2
        assert not (tmp_path / "run").exists()


def test_sources_without_an_optimizer_state_are_rejected(tmp_path: Path, base: Path) -> None:
    write_llama(load_model(base), tmp_path / "llama")
    with pytest.raises(UsageError) as caught:
        InitialWeights.read(tmp_path / "llama", with_optimizer=True)
    assert caught.value.path == tmp_path / "llama"


def test_a_run_killed_before_its_first_checkpoint_reads_its_source_again(tmp_path: Path, base: Path) -> None:
    config = few_steps(tmp_path)
    train(config, tmp_path / "whole", init=base, **quiet())
    train(config, tmp_path / "run", init=base, **quiet())
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        atomic.remove_folder(path)
    (tmp_path / "run" / "metrics.jsonl").unlink()
    resume(tmp_path / "run", **quiet())
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")


def test_a_changed_source_is_rejected_if_the_run_still_needs_it(tmp_path: Path, base: Path) -> None:
    model = load_model(base)
    file = tmp_path / "file.safetensors"
    save_checkpoint(model, AdamW(model.parameters()), 1, file)
    train(few_steps(tmp_path), tmp_path / "run", init=file, **quiet())
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        atomic.remove_folder(path)
    (tmp_path / "run" / "metrics.jsonl").unlink()
    with torch.no_grad():
        model.output_weight.zero_()
    save_checkpoint(model, AdamW(model.parameters()), 1, file)
    with pytest.raises(FormatError) as caught:
        resume(tmp_path / "run", **quiet())
    assert caught.value.key == "sha256"
    file.unlink()
    with pytest.raises(UsageError) as missing:
        resume(tmp_path / "run", **quiet())
    assert missing.value.path == file


def test_a_file_of_another_kind_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("once upon a time")
    with pytest.raises(FormatError) as caught:
        InitialWeights.read(tmp_path / "text.txt")
    assert caught.value.path == tmp_path / "text.txt"

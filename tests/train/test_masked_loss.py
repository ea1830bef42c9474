"""A masked loss is the mean over the tokens that count: in the model, the step, evaluations and runs."""

from __future__ import annotations

import dataclasses
import importlib
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor
from torch.nn.functional import cross_entropy as exact_cross_entropy

from bytewright.data.sampler import IGNORED
from bytewright.data.tokenfile import TokenFile, TokenFileWriter
from bytewright.errors import FormatError, UsageError
from bytewright.model import TransformerLM, kernels, language_model_loss
from bytewright.model.fused import linear_cross_entropy, masked_language_model_loss
from bytewright.model.loss import cross_entropy, of_logits
from bytewright.optim.build import build_optimizer
from bytewright.parallel.rank_group import RankGroup
from bytewright.registry import losses
from bytewright.tokenizer import Tokenizer
from bytewright.tokenizer.pairs import encode_pairs
from bytewright.train import Run, TrainConfig, load_model, resume, train
from bytewright.train.config import LossConfig, OptimizerConfig, ParallelConfig
from bytewright.train.evaluate import EvaluationSet
from bytewright.train.run_model import evaluate_run
from bytewright.train.setup import make_window_sampler, open_inputs
from bytewright.train.step import TrainStep
from forked_ranks import run_ranks
from model_choices import small_config
from rejection import rejects
from runs import digest, make_config


def draw_targets(*shape: int, share: float = 0.5) -> Tensor:
    targets = torch.randint(0, 61, shape, generator=torch.Generator().manual_seed(1))
    counts = torch.rand(shape, generator=torch.Generator().manual_seed(2)) < share
    return targets.where(counts, IGNORED)


def make_model(implementation: Any, dtype: torch.dtype = torch.float64) -> TransformerLM:
    torch.manual_seed(0)
    config = dataclasses.replace(small_config("default"), implementation=implementation)
    return TransformerLM(config, dtype=dtype)


def gradients_of(loss: Tensor, model: TransformerLM) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


def test_reference_and_fused_are_the_mean_over_the_tokens_that_count() -> None:
    """The expected loss and gradients use only the selected rows, so the others contribute nothing."""
    model = make_model("reference")
    length = model.config.context_length
    ids, targets = torch.randint(0, 61, (3, length)), draw_targets(3, length)
    rows = targets != IGNORED
    expected = exact_cross_entropy(model(ids)[rows], targets[rows])
    gradients = gradients_of(expected, model)
    for implementation in ("reference", "fused"):
        other = make_model(implementation)
        loss = masked_language_model_loss(other, ids, targets)
        assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
        for ours, exact in zip(gradients_of(loss, other), gradients, strict=True):
            torch.testing.assert_close(ours, exact, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("chunk_size", [1, 5, 64])
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_the_fused_loss_in_chunks_gives_ignored_positions_no_gradient(chunk_size: int, share: float) -> None:
    hidden = torch.randn(24, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(61, 8, dtype=torch.float64, requires_grad=True)
    targets = draw_targets(24, share=share)
    loss = linear_cross_entropy(hidden, weight, targets, chunk_size=chunk_size, masked=True)
    expected = cross_entropy(hidden @ weight.T, targets, masked=True)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    ours = torch.autograd.grad(loss, (hidden, weight))
    for left, right in zip(ours, torch.autograd.grad(expected, (hidden, weight)), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-12)
    assert not ours[0][targets == IGNORED].any()
    assert share or loss.item() == 0


@pytest.mark.parametrize("vocab_size", [48, 50])  # rows of 50 are padded
@pytest.mark.skipif(torch.cuda.is_available(), reason="in Triton's interpreter, in float32")
def test_the_kernel_gives_ignored_positions_no_loss_and_no_gradient(vocab_size: int) -> None:
    pytest.importorskip("triton")
    total_cross_entropy = importlib.import_module(
        "bytewright.model.kernels.cross_entropy"
    ).total_cross_entropy
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(13, 24, generator=generator)
    weight = torch.randn(vocab_size, 24, generator=generator)
    targets = torch.arange(13).where(torch.arange(13) % 3 > 0, IGNORED)
    total, *gradients = total_cross_entropy(hidden, weight, targets, 4, True, True)
    inputs = [tensor.double().requires_grad_() for tensor in (hidden, weight)]
    exact = exact_cross_entropy(inputs[0] @ inputs[1].T, targets, reduction="sum", ignore_index=IGNORED)
    assert total.item() == pytest.approx(exact.item(), rel=1e-5)
    for ours, right in zip(gradients, torch.autograd.grad(exact, inputs), strict=True):
        torch.testing.assert_close(ours.double(), right, rtol=1e-4, atol=1e-5)
    assert not gradients[0][targets == IGNORED].any()


@pytest.mark.skipif(torch.cuda.is_available(), reason="in Triton's interpreter, in float32")
def test_a_model_with_kernels_equals_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    ids, targets = torch.randint(0, 61, (2, 16)), draw_targets(2, 16)
    expected = masked_language_model_loss(make_model("reference", torch.float32), ids, targets)
    monkeypatch.setattr(kernels, "supports", lambda x: True)
    monkeypatch.setattr(kernels, "on_gpu", lambda x: True)
    ours = masked_language_model_loss(make_model("fused", torch.float32), ids, targets)
    assert ours.item() == pytest.approx(expected.item(), rel=1e-4)


def test_a_mask_that_selects_all_tokens_changes_nothing() -> None:
    model = make_model("fused", torch.float32)
    ids, targets = torch.randint(0, 61, (2, 3, 16))
    plain = language_model_loss(model, ids, targets)
    masked = masked_language_model_loss(model, ids, targets)
    assert torch.equal(plain, masked)
    for left, right in zip(gradients_of(plain, model), gradients_of(masked, model), strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize("implementation", ["reference", "fused"])
def test_a_step_in_parts_is_the_mean_over_all_tokens_that_count(implementation: Any) -> None:
    """The parts have 0, 3, 9 and 16 tokens that count; the mean of their means would be another number."""
    counts = torch.tensor([0, 3, 9, 16])
    ids, targets = torch.randint(0, 61, (2, 4, 16), generator=torch.Generator().manual_seed(5))
    targets = targets.where(torch.arange(16) < counts[:, None], IGNORED)
    results = []
    for num_parts in (1, 2, 4):
        model = make_model("fused")
        optimizer = build_optimizer(
            model,
            OptimizerConfig(name="sgd", lr=0.1, implementation=implementation),
        )
        step = TrainStep(model, optimizer, loss=masked_language_model_loss, masked=True)
        step.optimizer.param_groups[0]["lr"] = 0.1
        batches = list(zip(ids.chunk(num_parts), targets.chunk(num_parts), strict=True))
        result = step(batches)
        assert result.accepted
        results.append((result, [parameter.detach().clone() for parameter in model.parameters()]))
    model = make_model("reference")
    rows = targets != IGNORED
    expected = exact_cross_entropy(model(ids)[rows], targets[rows])
    for result, weights in results:
        assert result.loss.item() == pytest.approx(expected.item(), rel=1e-6)
        for ours, other in zip(weights, results[0][1], strict=True):
            torch.testing.assert_close(ours, other, rtol=1e-6, atol=1e-8)


def test_an_evaluation_counts_the_selected_tokens_and_their_bytes() -> None:
    model = make_model("fused")
    tokens = (np.arange(200) * 7 % 61).astype(np.uint16)
    mask = (np.arange(200) // 9 % 2).astype(np.uint8)
    mask[64:80] = 0  # no token of this window counts
    lengths = np.arange(61, dtype=np.int64)
    windows = EvaluationSet(tokens, "cpu", context_length=16, batch_size=5, token_bytes=lengths, mask=mask)
    found = windows.evaluate(lambda ids, targets: masked_language_model_loss(model, ids, targets).detach())
    losses, num_tokens, num_bytes = 0.0, 0, 0
    for start in range(0, 200 - 16, 16):
        ids = torch.from_numpy(tokens[start : start + 17].astype(np.int64))
        counted = mask[start + 1 : start + 17].astype(bool)
        each = exact_cross_entropy(model(ids[:-1]), ids[1:], reduction="none").detach().numpy()
        losses += float(each[counted].sum())
        num_tokens += int(counted.sum())
        num_bytes += int(lengths[ids[1:].numpy()][counted].sum())
    assert (found.num_tokens, found.num_bytes) == (num_tokens, num_bytes)
    assert found.loss == pytest.approx(losses / num_tokens, rel=1e-9)


@pytest.fixture
def pairs(tmp_path: Path, tokenizer: Path) -> Path:
    """A folder with token files of pairs; prompts are random letters, completions are always equal."""
    generator = np.random.default_rng(0)
    ours = Tokenizer.load(tokenizer)
    for name in ("train", "validation"):
        prompts = ("".join(map(chr, generator.integers(97, 123, 6))) for _ in range(120))
        lines = (json.dumps({"prompt": prompt, "completion": " the owl."}) for prompt in prompts)
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
        encode_pairs(ours, tmp_path / f"{name}.jsonl", tmp_path / f"{name}.npy")
    return tmp_path


def config_of(folder: Path, tokenizer: Path, steps: int = 30) -> TrainConfig:
    return make_config(
        folder,
        model={"vocab_size": Tokenizer.load(tokenizer).vocab_size, "context_length": 24},
        data={"tokenizer": str(tokenizer), "windows": "documents"},
        budget={"steps": steps},
        optimizer={"lr": 0.02},
        accumulate=2,
        save_every=10,
        log_every=1,
    )


def test_a_run_on_pairs_learns_the_completions_and_not_the_prompts(pairs: Path, tokenizer: Path) -> None:
    """A prompt is random, so a loss near 0 is only possible if prompts do not count."""
    quiet = Console(file=io.StringIO())
    train(config_of(pairs, tokenizer, steps=150), pairs / "run", console=quiet)
    found = evaluate_run(pairs / "run", device="cpu")
    assert found.evaluation.loss < 0.5
    assert found.evaluation.num_tokens < 120 * 12
    model = load_model(pairs / "run")
    ids = torch.tensor(Tokenizer.load(tokenizer).encode("qxzvkj the owl."))
    with torch.no_grad():
        first = exact_cross_entropy(model(ids[:-1])[:3], ids[1:4]).item()
    assert first > math.log(20)


def test_a_resumed_run_on_pairs_has_the_same_bits_and_needs_the_same_mask(
    pairs: Path, tokenizer: Path
) -> None:
    quiet = Console(file=io.StringIO())
    config = config_of(pairs, tokenizer, steps=20)
    train(config, pairs / "whole", console=quiet)
    train(config, pairs / "run", console=quiet)
    run = Run(pairs / "run")
    for step in run.checkpoints.steps()[1:]:
        for file in (path := run.checkpoints.at(step)).iterdir():
            file.unlink()
        path.rmdir()
    resume(run.path, console=quiet)
    assert digest(run.path) == digest(pairs / "whole")
    source = (pairs / "train.jsonl").read_text().replace('"prompt": "', '"x": "", "prompt": "')
    (pairs / "train.jsonl").write_text(source.replace(" the owl", " the cat"))
    encode_pairs(Tokenizer.load(tokenizer), pairs / "train.jsonl", pairs / "train.npy")
    with pytest.raises(FormatError) as caught:
        resume(run.path, console=quiet)
    assert caught.value.key == "data"


@pytest.mark.parametrize("strategy", ["replicate", "shard"])
def test_the_number_of_ranks_does_not_change_one_bit_of_a_masked_run(
    pairs: Path, tokenizer: Path, strategy: Any
) -> None:
    config = config_of(pairs, tokenizer, steps=6)
    config = dataclasses.replace(config, parallel=ParallelConfig(strategy=strategy))

    def train_on(ranks: RankGroup) -> None:
        train(config, pairs / f"on-{ranks.num_ranks}", ranks=ranks, console=Console(quiet=True))

    for num_ranks in (1, 2):
        run_ranks(num_ranks, train_on)
    assert digest(pairs / "on-2") == digest(pairs / "on-1")


def test_a_loss_of_logits_supports_masked_data_and_others_are_rejected(pairs: Path, tokenizer: Path) -> None:
    """The registered loss is the cross-entropy of logits, so its run has the losses of the default."""

    def per_row(logits: Tensor, targets: Tensor) -> Tensor:
        return exact_cross_entropy(logits, targets, reduction="none")

    def unmasked(hidden: Tensor, output_weight: Tensor, targets: Tensor) -> Tensor:
        return hidden.mean()

    losses.register("per_row")(of_logits(per_row))
    losses.register("unmasked")(unmasked)
    quiet = Console(file=io.StringIO())
    try:
        config = config_of(pairs, tokenizer, steps=5)
        train(config, pairs / "default", console=quiet)
        named = dataclasses.replace(config, loss=LossConfig(name="per_row"))
        train(named, pairs / "named", console=quiet)
        expected = [line["loss"] for line in Run(pairs / "default").metrics]
        assert [line["loss"] for line in Run(pairs / "named").metrics] == pytest.approx(expected, rel=1e-4)
        with pytest.raises(UsageError) as caught:
            train(dataclasses.replace(config, loss=LossConfig(name="unmasked")), pairs / "x", console=quiet)
        assert (caught.value.key, caught.value.found) == ("loss.name", "unmasked")
        assert not (pairs / "x").exists()
    finally:
        for name in ("per_row", "unmasked"):
            losses.remove(name)


def test_windows_without_a_token_that_counts_are_left_out(pairs: Path, tokenizer: Path) -> None:
    long = json.dumps({"prompt": "the owl " * 40, "completion": "x"})
    (pairs / "train.jsonl").write_text(f"{long}\n" * 3 + (pairs / "train.jsonl").read_text())
    encode_pairs(Tokenizer.load(tokenizer), pairs / "train.jsonl", pairs / "train.npy")
    config = config_of(pairs, tokenizer)
    inputs = open_inputs(config)
    sampler = make_window_sampler(config, inputs)
    assert inputs.train_mask is not None
    for start in sampler.starts(0):
        assert inputs.train_mask[start + 1 : start + 25].any()
    assert len(sampler.first_tokens) <= 120  # type: ignore[union-attr]


def test_data_in_which_no_completion_can_be_learned_is_rejected(pairs: Path, tokenizer: Path) -> None:
    long = json.dumps({"prompt": "the owl " * 40, "completion": "x"})
    (pairs / "train.jsonl").write_text(f"{long}\n" * 3)
    encode_pairs(Tokenizer.load(tokenizer), pairs / "train.jsonl", pairs / "train.npy")
    config = config_of(pairs, tokenizer)
    with rejects(UsageError, key="data.train", found=24):
        make_window_sampler(config, open_inputs(config))
    file = TokenFile.open(pairs / "train.npy")
    fingerprint, size = file.manifest.tokenizer_fingerprint, file.manifest.vocabulary_size
    path = pairs / "none.npy"
    with TokenFileWriter(
        path, tokenizer_fingerprint=fingerprint, vocabulary_size=size, masked=True
    ) as writer:
        writer.append(file.tokens, mask=np.zeros(len(file), dtype=bool))
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, train=path))
    with rejects(UsageError, key="data.train", path=path):
        open_inputs(config)

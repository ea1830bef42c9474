"""Strategy "shard": neither the number of ranks nor sharding itself changes one bit of a step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from bytewright.account.ranks import Ranks, sent_bytes
from bytewright.errors import ReportedError, UsageError
from bytewright.model import ModelConfig, TransformerLM, language_model_loss
from bytewright.model.fused import LanguageModelLoss as Loss
from bytewright.optim.build import build_optimizer
from bytewright.optim.reference import CombinedOptimizer
from bytewright.parallel.rank_group import RankGroup
from bytewright.parallel.rows import choose_owners, find_rows
from bytewright.parallel.shard import ShardedModel
from bytewright.parallel.shard_update import cut_invariant_norm, rows_of_state, shard_optimizer
from bytewright.train.config import OptimizerConfig
from bytewright.train.session.engine import ShardedStep
from bytewright.train.step import TrainStep
from forked_ranks import run_ranks
from rejection import rejects

ODD = ModelConfig(vocab_size=5, context_length=8, d_model=18, num_layers=2, num_heads=1)
"""On four ranks the vocabulary leaves one rank without a row, and no other size is a multiple of four."""
TIED = dataclasses.replace(ODD, tie_embeddings=True, norm="post", implementation="reference")


def make_batches(step: int, num_parts: int, vocab_size: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(step)
    shape = (num_parts, 2, 2, 8)
    ids = torch.randint(0, vocab_size, shape, generator=generator)
    return [(part[0], part[1]) for part in ids]


def make_model(config: ModelConfig) -> TransformerLM:
    torch.manual_seed(0)
    return TransformerLM(config, dtype=torch.float32)


def build(
    ranks: RankGroup,
    config: ModelConfig,
    optimizer: OptimizerConfig,
    num_parts: int,
    *,
    is_exact: bool = True,
) -> tuple[ShardedModel, Any]:
    skeleton = TransformerLM(config, device="meta")
    names = {parameter: name for name, parameter in skeleton.named_parameters()}
    sharded = ShardedModel(
        make_model(config), ranks, torch.device("cpu"), num_parts=num_parts, is_exact=is_exact
    )
    return sharded, shard_optimizer(build_optimizer(skeleton, optimizer), names, sharded.rows)


def take_steps(
    ranks: RankGroup,
    config: ModelConfig,
    optimizer: OptimizerConfig,
    num_parts: int,
    *,
    num_steps: int = 3,
    max_norm: float = 0.05,
    loss: Loss = language_model_loss,
) -> dict[str, Any] | None:
    """Return losses, norms, bytes sent, weights and optimizer state after a few sharded steps, on rank 0."""
    sharded, built = build(ranks, config, optimizer, num_parts)
    step = ShardedStep(sharded, built, max_grad_norm=max_norm, loss=loss)
    results = []
    for number in range(num_steps):
        before = ranks.num_bytes_sent
        parts = make_batches(number, num_parts, config.vocab_size)[ranks.rank :: ranks.num_ranks]
        results.append([value.item() for value in step(parts)])
        sent = ranks.num_bytes_sent - before
        step.measure(*parts[0])  # must not leave weights of this step gathered
    tensors: dict[str, Any] = dict(sharded.gather_weights())
    for number, of_parameter in enumerate(rows_of_state(built, sharded.rows)):
        for name, rows in of_parameter.items():
            tensors[f"{number}.{name}"] = rows.gather()
    return {"results": results, "sent": sent, "tensors": tensors} if ranks.is_main else None


def take_unsharded_steps(config: ModelConfig, optimizer: OptimizerConfig, num_parts: int) -> dict[str, Any]:
    """Return the same for a single process that stores the whole model, without clipping."""
    model = make_model(config)
    built = build_optimizer(model, optimizer)
    step = TrainStep(model, built)
    results = [
        [value.item() for value in step(make_batches(number, num_parts, config.vocab_size))]
        for number in range(3)
    ]
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    for number, state in enumerate(built.state_dict()["state"].values()):
        tensors |= {f"{number}.{name}": value for name, value in state.items() if name != "step"}
    return {"results": results, "tensors": tensors}


def assert_same_bits(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize(
    ("config", "name", "num_parts", "numbers_of_ranks"),
    [(ODD, "adamw", 4, (1, 2, 4)), (ODD, "muon", 6, (1, 2, 3)), (TIED, "adamw", 2, (1, 2))],
)
def test_the_number_of_ranks_changes_no_bit(
    config: ModelConfig, name: str, num_parts: int, numbers_of_ranks: tuple[int, ...]
) -> None:
    optimizer = OptimizerConfig(name=name, lr=1e-2)
    alone, *others = (
        run_ranks(num_ranks, take_steps, config, optimizer, num_parts)[0] for num_ranks in numbers_of_ranks
    )
    assert all(accepted for _, _, accepted in alone["results"])
    for other, num_ranks in zip(others, numbers_of_ranks[1:], strict=True):
        assert other["results"] == alone["results"]
        assert_same_bits(other["tensors"], alone["tensors"])
        ranks = Ranks(num_ranks=num_ranks, strategy="shard", accumulate=num_parts)
        predicted = sent_bytes(config, ranks, optimizer=optimizer, device="cpu")
        assert other["sent"] == sum(predicted.values())


@pytest.mark.parametrize("name", ["adamw", "muon", "sgd"])
def test_without_clipping_sharding_changes_no_bit(name: str) -> None:
    """With clipping the factor can differ in its last digit: the norm is added in another order."""
    optimizer = OptimizerConfig(name=name, lr=1e-2)

    def take_unclipped_steps(ranks: RankGroup) -> dict[str, Any] | None:
        return take_steps(ranks, ODD, optimizer, 4, max_norm=0.0)

    def take_whole_steps(ranks: RankGroup) -> dict[str, Any]:
        return take_unsharded_steps(ODD, optimizer, 4)

    (sharded, _), (whole,) = run_ranks(2, take_unclipped_steps), run_ranks(1, take_whole_steps)
    assert_same_bits(sharded["tensors"], whole["tensors"])
    assert [loss for loss, _, _ in sharded["results"]] == [loss for loss, _, _ in whole["results"]]
    norms = torch.tensor([[norm for _, norm, _ in one["results"]] for one in (sharded, whole)])
    torch.testing.assert_close(norms[0], norms[1], rtol=1e-6, atol=0)


def test_an_update_with_a_loss_that_is_not_finite_is_refused_on_all_ranks() -> None:
    def loss(model: TransformerLM, ids: Tensor, targets: Tensor) -> Tensor:
        is_last = bool((ids == make_batches(1, 2, 5)[1][0]).all())
        return language_model_loss(model, ids, targets) * (float("inf") if is_last else 1.0)

    def take_two_steps(ranks: RankGroup, num_steps: int) -> dict[str, Any] | None:
        return take_steps(ranks, ODD, OptimizerConfig(), 2, num_steps=num_steps, loss=loss)

    before, after = (run_ranks(2, take_two_steps, num_steps)[0] for num_steps in (1, 2))
    assert [accepted for _, _, accepted in after["results"]] == [True, False]
    assert_same_bits(after["tensors"], before["tensors"])


def test_the_fast_reduction_is_close_to_the_exact_one() -> None:
    def gradients(ranks: RankGroup, is_exact: bool) -> dict[str, Tensor]:
        sharded, _ = build(ranks, ODD, OptimizerConfig(), 4, is_exact=is_exact)
        sharded.start_step()
        for number, part in enumerate(make_batches(0, 4, 5)[ranks.rank :: ranks.num_ranks]):
            torch.autograd.backward(language_model_loss(sharded.model, *part) / 4)
            sharded.finish_round(number)
        return sharded.gradients()

    for exact, fast in zip(run_ranks(2, gradients, True), run_ranks(2, gradients, False), strict=True):
        for name, gradient in exact.items():
            torch.testing.assert_close(fast[name], gradient, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("settings", [{"implementation": "reference"}, {"name": "lion"}])
def test_other_optimizers_are_rejected(settings: dict[str, Any]) -> None:
    skeleton = TransformerLM(ODD, device="meta")
    if settings.get("name") == "lion":
        other: Any = torch.optim.Adam(skeleton.parameters())
    else:
        other = build_optimizer(skeleton, OptimizerConfig(**settings))
    with pytest.raises(UsageError) as caught:
        shard_optimizer(other, {}, {})
    assert caught.value.key == "optimizer.name"
    with pytest.raises(UsageError):
        shard_optimizer(CombinedOptimizer([other]), {}, {})


@hypothesis.given(
    numbers=st.lists(st.floats(-(2.0**90), 2.0**90, width=32), min_size=1, max_size=30),
    cut=st.integers(0, 30),
)
def test_the_norm_does_not_depend_on_how_tensors_are_cut(numbers: list[float], cut: int) -> None:
    whole = torch.tensor(numbers)
    norm = cut_invariant_norm([whole], RankGroup())
    assert torch.equal(cut_invariant_norm([whole.flip(0)[:cut], whole.flip(0)[cut:]], RankGroup()), norm)
    expected = whole.double().square().sum().sqrt()
    if torch.isfinite(expected.float()):
        torch.testing.assert_close(norm.double(), expected, rtol=1e-6, atol=2.0**-120)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_the_norm_of_a_number_that_is_not_finite_is_not_finite(value: float) -> None:
    assert not torch.isfinite(cut_invariant_norm([torch.tensor([1.0, value]), torch.ones(3)], RankGroup()))


@hypothesis.given(num_rows=st.integers(1, 60), num_ranks=st.integers(1, 12))
def test_rows_are_cut_as_torch_cuts_them(num_rows: int, num_ranks: int) -> None:
    rows = torch.arange(num_rows)
    chunks = [chunk.tolist() for chunk in rows.chunk(num_ranks)]
    chunks += [[]] * (num_ranks - len(chunks))
    assert [rows[find_rows(num_rows, num_ranks, rank)].tolist() for rank in range(num_ranks)] == chunks


def test_a_process_group_of_the_caller_is_neither_used_nor_closed() -> None:
    dist.init_process_group("gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)
    try:
        with RankGroup() as ranks, rejects(UsageError, key="torch.distributed"):
            ranks.open_data_group(torch.device("cpu"))
        assert dist.is_initialized()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def test_a_failure_in_a_group_of_one_rank_is_not_the_loss_of_a_rank() -> None:
    with RankGroup() as ranks:
        ranks.open_data_group(torch.device("cpu"))
        with pytest.raises(RuntimeError, match="not supported"), ranks.collective():
            raise RuntimeError("this type is not supported")


def test_the_end_of_a_rank_is_found_before_ranks_have_described_their_hosts() -> None:
    store = torch._C._distributed_c10d.HashStore()
    store.set("ended/1", "3")
    ranks = RankGroup()
    ranks.num_ranks, ranks._store = 2, store
    with rejects(ReportedError, found=1, exit_code=3), ranks.collective():
        raise RuntimeError("connection closed by peer")


def test_owners_share_the_matrices_evenly() -> None:
    shapes = 8 * [(64, 64), (64, 64), (64, 64), (64, 64), (192, 64), (64, 192), (192, 64)]
    for num_ranks in (1, 3, 7, 8):
        owners = choose_owners(shapes, num_ranks)
        sizes = [0] * num_ranks
        for shape, owner in zip(shapes, owners, strict=True):
            sizes[owner] += shape[0] * shape[1]
        assert max(sizes) - min(sizes) <= 192 * 64

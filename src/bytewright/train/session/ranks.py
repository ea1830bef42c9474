"""What differs between the ranks of a run: rank 0 writes and decides, the others follow.

All ranks execute the same loop with the same results, so they reach every save, evaluation and record at the
same step. `FollowingWriter` and `SilentLog` replace the files of rank 0 on the other ranks, which show no
output. Whatever depends on a clock or a signal is decided once per step by `agree_on`.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bytewright.errors import BytewrightError, ReportedError, UsageError
from bytewright.parallel.rank_group import RankGroup
from bytewright.storage import atomic
from bytewright.train.checkpoint import CheckpointFolder, Stateful, StateRows
from bytewright.train.checkpoint_list import CHECKPOINTS
from bytewright.train.config import TrainConfig
from bytewright.train.metrics_log import MetricsLog
from bytewright.train.outcome import Ending
from bytewright.train.recipe import flatten, to_plain
from bytewright.train.run_files import ENVIRONMENT, RunWriter
from bytewright.train.setup import Inputs

ENDINGS = (None, *Ending)


class UnequalRanksError(BytewrightError):
    """Ranks that should hold the same weights do not."""


class Decision(NamedTuple):
    """What all ranks do after a step."""

    ending: Ending | None
    """The limit of the budget that the run has reached."""
    num_steps: int | None
    """The length of the run, if it is known."""
    received: signal.Signals | None
    """A signal to stop that any rank has received."""


def agree_on(ranks: RankGroup, own: Decision) -> Decision:
    """Return the decision of all ranks: ending and length of rank 0, and a signal of any rank."""
    if ranks.num_ranks == 1:
        return own
    of_main = [ENDINGS.index(own.ending), own.num_steps or 0] if ranks.is_main else [0, 0]
    ending, num_steps, received = ranks.largest([*of_main, own.received or 0])
    return Decision(ENDINGS[ending], num_steps or None, signal.Signals(received) if received else None)


def check_shares(config: TrainConfig, ranks: RankGroup) -> None:
    """Raise unless the parts of a batch can be shared equally by all ranks."""
    if config.accumulate % ranks.num_ranks:
        fitting = -(-config.accumulate // ranks.num_ranks) * ranks.num_ranks
        message = (
            f"accumulate is {config.accumulate}, but the parts of a batch are shared by {ranks.num_ranks}"
            f" ranks; set accumulate to a multiple of {ranks.num_ranks}, such as {fitting}, that divides"
            f" batch_size ({config.batch_size})"
        )
        raise UsageError(message, key="accumulate", expected=ranks.num_ranks, found=config.accumulate)


def check_same(ranks: RankGroup, config: TrainConfig, inputs: Inputs, step: int = 0) -> None:
    """Raise on all ranks if config, data or the step to continue from differ between ranks."""
    if ranks.num_ranks == 1:
        return
    settings = flatten(to_plain(config))
    places = ("data.train", "data.validation", "data.tokenizer")  # machines may keep them elsewhere
    digests = {f"the SHA-256 of data.{name}": digest for name, digest in inputs.identity.items()}
    same = {name: value for name, value in settings.items() if name not in places}
    ranks.check_equal({**same, **digests, "step": step, "the version of torch": torch.__version__})


def check_same_weights(ranks: RankGroup, model: torch.nn.Module) -> None:
    """Raise if the weights of a rank differ from those of rank 0: its machine rounds differently.

    Each rank adds the bits of all weights as whole numbers, and the ranks compare the sums.
    """
    if ranks.num_ranks == 1:
        return
    with torch.no_grad():
        sums = [weight.float().view(torch.int32).sum(dtype=torch.int64) for weight in model.parameters()]
        found = ranks.gather(int(torch.stack(sums).sum()))
    for rank, number in enumerate(found):
        if number != found[0]:
            message = (
                f"rank {rank} has computed other weights than rank 0; use machines with the same processor or"
                " GPU and the same libraries, then resume from the last checkpoint"
            )
            if ranks.is_main:
                raise UnequalRanksError(message, key="weights", expected=found[0], found=number)
            raise ReportedError(message, exit_code=UnequalRanksError.exit_code, found=rank)


def open_writer(ranks: RankGroup, path: Path, make: Callable[[], RunWriter]) -> RunWriter:
    """Return the writer that `make` returns on rank 0, and one that writes nothing on the other ranks."""
    with ranks.agree():
        return make() if ranks.is_main else FollowingWriter(path)


class _NoCheckpoints(CheckpointFolder):
    """The checkpoints of a run, which this rank only reads."""

    def save(
        self,
        model: torch.nn.Module,
        optimizer: Stateful,
        state: Mapping[str, Any],
        rows: StateRows | None = None,
    ) -> Path:
        if rows is not None:
            rows.send(model, optimizer)
        return self.path

    def prune(self, *_: Any) -> None:
        pass

    def remove_after(self, step: int) -> None:
        pass


class FollowingWriter(RunWriter):
    """The run of a rank other than 0: nothing is written, and no lock is held."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = _NoCheckpoints(path / CHECKPOINTS)

    def write_tokenizer(self, vocabulary: object) -> None:
        """Write nothing."""

    def write_costs(self, costs: Mapping[str, Any]) -> None:
        """Write nothing."""

    def write_config(self, config: TrainConfig) -> None:
        """Write nothing."""

    def check_unchanged(self) -> None:
        """Check nothing."""

    def close(self) -> None:
        """Nothing is open."""


class SilentLog(MetricsLog):
    """The metrics log of a rank other than 0, which discards all records."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def position(self) -> int:
        """An empty log has no bytes."""
        return 0

    def write(self, record: Mapping[str, Any]) -> None:
        """Discard a record."""

    def write_last(self, record: Mapping[str, Any]) -> None:
        """Discard a record."""

    def sync(self) -> int:
        """Return the position."""
        return 0

    def close(self) -> None:
        """Nothing is open."""


def recorded_threads(run: Path, config: TrainConfig) -> int | None:
    """Return the CPU threads of a resume: those of the config, or with an exact reduction those on record."""
    if config.parallel.threads is not None or config.parallel.reduction != "exact":
        return config.parallel.threads
    try:
        recorded = atomic.read_document(run / ENVIRONMENT).get("num_threads")
    except BytewrightError:  # a run can be resumed without this file
        return None
    return recorded if isinstance(recorded, int) and 0 < recorded <= 2**10 else None


@contextlib.contextmanager
def use_threads(num_threads: int | None) -> Iterator[None]:
    """Compute with this number of CPU threads in the block; None leaves the number unchanged."""
    before = torch.get_num_threads()
    if num_threads is not None and num_threads != before:
        torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)

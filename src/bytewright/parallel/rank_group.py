"""The processes (ranks) that train one run together: small messages, agreement, and the loss of a rank.

torchrun starts the ranks and describes them in environment variables. Without these variables
`RankGroup` is this process alone, and no method uses torch.distributed. Otherwise it has two process groups:

- the control group (gloo, on the CPU) exchanges small values. Ranks use it after every step. So they always
  take the same branch, do not synchronise with a GPU for it, and detect at once that a rank has died;
- the data group exchanges gradients: NCCL if every rank of the machine has its own GPU, otherwise gloo.

Values are sent as JSON. A failed collective raises `LostRankError`, which names the ranks that died, on one
rank. The others raise `ReportedError`, so a run ends with one message.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from bytewright.errors import (
    BytewrightError,
    LostRankError,
    ReportedError,
    UsageError,
    first_line,
    is_out_of_memory,
)

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""The variables that torchrun sets for each process."""
OPENING_SECONDS = 300
"""How long a rank waits for the others at its start: they may import and compile on a loaded machine."""
WAITING_SECONDS = 24 * 3600
"""How long a collective may take: rank 0 may write a sample or a checkpoint while the others wait. A rank
that has died is detected by its closed connection, not by this limit."""
LOSS_SECONDS = 10
"""How long the other ranks search for the one that died."""


all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""Both have these names since torch 2.13."""


class RankGroup:
    """The ranks of a run; use it as a context manager. `RankGroup()` is this process alone."""

    _num_joined: ClassVar[int] = 0

    def __init__(self) -> None:
        self.rank, self.num_ranks = 0, 1
        self.local_rank, self.num_local_ranks = 0, 1
        self.restart_count = 0
        """How often torchrun has started the ranks again after a failure."""
        self.data_group: Any = None
        self.backend: Literal["gloo", "nccl"] | None = None
        """The backend of the data group, once `connect` has opened it."""
        self.num_bytes_sent = 0
        """Bytes of weights and gradients that this rank has sent to others."""
        self._store: Any = None
        self._hosts: list[Any] = []

    @classmethod
    def open(cls, environment: Mapping[str, str] = os.environ) -> RankGroup:
        """Join the ranks that torchrun has started; without torchrun return this process alone."""
        ranks = cls()
        if "RANK" not in environment or "WORLD_SIZE" not in environment:
            return ranks
        numbers = _read_variables(environment)
        ranks.rank, ranks.num_ranks, ranks.local_rank, ranks.num_local_ranks = numbers
        ranks.restart_count = int(environment.get("TORCHELASTIC_RESTART_COUNT", 0))
        if ranks.num_ranks > 1:
            ranks._join()
        return ranks

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes all files and all output."""
        return self.rank == 0

    def _join(self) -> None:
        _check_not_initialised()
        try:
            limit = timedelta(seconds=OPENING_SECONDS)
            store, _, _ = next(rendezvous("env://", timeout=limit))
            # A process can open several rank groups, and torchrun keeps its store when it restarts the ranks.
            RankGroup._num_joined += 1
            self._store = PrefixStore(f"bytewright/{self.restart_count}/{RankGroup._num_joined}", store)
            self._wait_for_others()
            dist.init_process_group(
                "gloo",
                store=self._store,
                rank=self.rank,
                world_size=self.num_ranks,
                timeout=timedelta(seconds=WAITING_SECONDS),
            )
        except RuntimeError as error:
            message = f"rank {self.rank} could not join the {self.num_ranks} ranks: {first_line(error)}"
            raise LostRankError(message, key="WORLD_SIZE", expected=self.num_ranks) from None
        self._hosts = self.gather([_describe_host(), os.getpid()])

    def _wait_for_others(self) -> None:
        """Wait until every rank has started; unlike a wait inside torch, signals interrupt it."""
        self._store.set(f"started/{self.rank}", "1")
        deadline = time.monotonic() + OPENING_SECONDS
        for rank in range(self.num_ranks):
            while not self._store.check([f"started/{rank}"]):
                if time.monotonic() > deadline:
                    message = f"rank {rank} of {self.num_ranks} has not started after {OPENING_SECONDS} s"
                    raise LostRankError(message, expected=self.num_ranks, found=[rank])
                time.sleep(0.01)

    def connect(self, device: torch.device) -> torch.device:
        """Open the data group for tensors on `device`; return the device of this rank."""
        if self.num_ranks == 1:
            return device
        if device.type == "cuda":
            device = torch.device("cuda", self.local_rank % torch.cuda.device_count())
            torch.cuda.set_device(device)
        if self.backend is None:
            has_own_gpu = device.type == "cuda" and self.num_local_ranks <= torch.cuda.device_count()
            # All ranks must choose the same backend, also if their machines differ.
            self.backend = "nccl" if all(self.gather(has_own_gpu)) else "gloo"
            with self.collective():
                limit = timedelta(seconds=WAITING_SECONDS)
                self.data_group = dist.new_group(backend=self.backend, timeout=limit)
        return device

    def open_data_group(self, device: torch.device) -> Any:
        """Return the data group; if this is the only rank, open a group of one, which FSDP2 requires."""
        if self.data_group is None:
            _check_not_initialised()
            self._store = torch._C._distributed_c10d.HashStore()
            self.backend = "nccl" if device.type == "cuda" and dist.is_nccl_available() else "gloo"
            dist.init_process_group(self.backend, store=self._store, rank=0, world_size=1)
            self.data_group = dist.group.WORLD
        return self.data_group

    def all_gather(self, own: Tensor) -> Tensor:
        """Return the tensors of all ranks, of one shape, in a new first dimension, on the same device."""
        if self.num_ranks == 1:
            return own.unsqueeze(0)
        at = torch.device("cpu") if self.backend == "gloo" else own.device
        every = torch.empty(self.num_ranks * own.numel(), dtype=own.dtype, device=at)
        self.num_bytes_sent += (self.num_ranks - 1) * own.nbytes
        with self.collective():
            all_gather_single(every, own.flatten().to(at), group=self.data_group)
        return every.to(own.device).view(self.num_ranks, *own.shape)

    # Small values, on the control group

    def gather(self, value: Any) -> list[Any]:
        """Return the JSON values of all ranks, in their order."""
        if self.num_ranks == 1:
            return [value]
        own = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.num_ranks)]
        with self.collective():
            dist.all_gather(sizes, torch.tensor([len(own)]))
            longest = max(int(size) for size in sizes)
            padded = torch.zeros(longest, dtype=torch.uint8)
            padded[: len(own)] = own
            texts = [torch.empty_like(padded) for _ in range(self.num_ranks)]
            dist.all_gather(texts, padded)
        return [
            json.loads(bytes(text[: int(size)].tolist())) for text, size in zip(texts, sizes, strict=True)
        ]

    def largest(self, numbers: Sequence[int]) -> list[int]:
        """Return the largest of each number over all ranks; one small collective."""
        if self.num_ranks == 1:
            return list(numbers)
        values = torch.tensor(numbers, dtype=torch.int64)
        with self.collective():
            dist.all_reduce(values, op=dist.ReduceOp.MAX)
        return values.tolist()

    def concatenate(self, own: Tensor) -> Tensor:
        """Return the values of all ranks, one after the other, as float64 on the CPU; for small tensors."""
        if self.num_ranks == 1:
            return own.cpu().double()
        rows = self.gather(own.cpu().double().tolist())
        return torch.tensor([value for row in rows for value in row], dtype=torch.float64)

    # Agreement

    @contextlib.contextmanager
    def agree(self) -> Iterator[None]:
        """Run a block without collectives; if it raises on some ranks, all of them raise.

        The first of these ranks raises its own error, and all others `ReportedError` with its exit code.
        """
        if self.num_ranks == 1:
            yield
            return
        raised: BytewrightError | OSError | None = None
        try:
            yield
        except (BytewrightError, OSError) as error:
            raised = error
        codes = self.gather(None if raised is None else getattr(raised, "exit_code", 1))
        failed = [rank for rank, code in enumerate(codes) if code is not None]
        if not failed:
            return
        if raised is None or self.rank != failed[0]:
            raise ReportedError(f"rank {failed[0]} failed", exit_code=codes[failed[0]], found=failed[0])
        if len(failed) < self.num_ranks and not isinstance(raised, OSError | ReportedError):
            raised.args = (f"{raised} (on rank {self.rank} of {self.num_ranks})",)
        raise raised

    def check_equal(self, values: Mapping[str, Any]) -> None:
        """Raise `UsageError` on every rank if a named value differs between ranks; name key and rank."""
        everywhere = self.gather(dict(values))
        expected = everywhere[0]
        for rank, found in enumerate(everywhere):
            for key in {**expected, **found}:
                if found.get(key) != expected.get(key):
                    message = (
                        f"rank {rank} has {key} = {found.get(key)!r}, but rank 0 has {expected.get(key)!r};"
                        " start all ranks with the same recipe, options and data"
                    )
                    error = UsageError(message, key=key, expected=expected.get(key), found=found.get(key))
                    if self.is_main:
                        raise error
                    raise ReportedError(message, exit_code=error.exit_code, found=rank)

    # The loss of a rank

    @contextlib.contextmanager
    def collective(self) -> Iterator[None]:
        """Turn a failure of a collective in the block into an error that names the ranks that died."""
        try:
            yield
        except RuntimeError as error:
            if is_out_of_memory(error) or self.num_ranks == 1 or self._store is None:
                raise
            raise self._find_cause(error) from None

    def _find_cause(self, error: RuntimeError) -> BytewrightError:
        """Return the error of a failed collective: a rank has died, or has ended and reported why."""
        try:
            lost, codes, is_first = self._find_lost_ranks()
        except RuntimeError:  # the store is closed: it belongs to torchrun, or without torchrun to rank 0
            lost, codes, is_first = [0], {}, True
        if codes:
            rank = min(codes)
            message = f"rank {rank} has ended the run"
            return ReportedError(message, exit_code=codes[rank], found=rank)
        names = ", ".join(str(rank) for rank in lost) or "unknown"
        message = (
            f"rank {names} of {self.num_ranks} has died, so the others stop;"
            " resume the run from its last checkpoint, or let torchrun do it with --max-restarts"
        )
        if not lost:
            message = f"the ranks lost their connection ({first_line(error)}); resume the run"
        if not is_first:
            return ReportedError(message, exit_code=LostRankError.exit_code, found=lost)
        return LostRankError(message, found=lost)

    def _find_lost_ranks(self) -> tuple[list[int], dict[int, int], bool]:
        """Return the ranks that died, the exit codes of those that ended, and whether to report it.

        A rank checks which processes of its own machine have died. Ranks of other machines report theirs in
        the store of torchrun. A rank that does not report within `LOSS_SECONDS` counts as lost.
        """
        deadline = time.monotonic() + LOSS_SECONDS
        here = self._hosts[self.rank][0] if self._hosts else None  # no rank has described its host yet
        while True:
            dead = [
                rank for rank, (host, pid) in enumerate(self._hosts) if host == here and not _is_alive(pid)
            ]
            self._store.set(f"seen dead/{self.rank}", json.dumps(dead))
            answers: dict[int, Any] = {}
            codes: dict[int, int] = {}
            for rank in range(self.num_ranks):
                if self._store.check([f"ended/{rank}"]):
                    codes[rank] = int(self._store.get(f"ended/{rank}"))
                elif self._store.check([f"seen dead/{rank}"]):
                    answers[rank] = json.loads(self._store.get(f"seen dead/{rank}"))
            lost = sorted({rank for answer in answers.values() for rank in answer} - codes.keys())
            silent = [rank for rank in range(self.num_ranks) if rank not in {*answers, *codes}]
            if codes or lost or not silent or time.monotonic() > deadline:
                lost = lost or silent
                return lost, codes, self._store.add("reporters", 1) == 1
            time.sleep(0.05)

    # Closing

    def close(self, error: BaseException | None = None) -> None:
        """Leave the groups; `error` is why this rank ends early, which the others then do, too."""
        if self._store is None:
            return
        if error is not None and not isinstance(error, LostRankError | ReportedError):
            with contextlib.suppress(RuntimeError):
                self._store.set(f"ended/{self.rank}", str(_exit_code_of(error)))
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()
        self._store = self.data_group = None

    def __enter__(self) -> RankGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)


def _check_not_initialised() -> None:
    if dist.is_initialized():  # `close` would destroy the group of the caller
        message = "torch.distributed is initialised already; let Bytewright initialise it"
        raise UsageError(message, key="torch.distributed")


def _read_variables(environment: Mapping[str, str]) -> tuple[int, int, int, int]:
    """Return rank, number of ranks, and both within this machine."""
    missing = [name for name in VARIABLES if name not in environment]
    if missing:
        message = f"RANK is set, but {missing[0]} is not; start several ranks with torchrun"
        raise UsageError(message, key=missing[0])
    numbers = [environment[name] for name in VARIABLES[:4]]
    for name, text in zip(VARIABLES, numbers, strict=False):
        if not text.isdecimal():
            raise UsageError(f"{name} must be a whole number, but is {text!r}", key=name, found=text)
    rank, num_ranks, local_rank, num_local_ranks = map(int, numbers)
    if rank >= num_ranks:
        message = f"RANK is {rank}, but WORLD_SIZE is {num_ranks}; start several ranks with torchrun"
        raise UsageError(message, key="RANK", expected=num_ranks, found=rank)
    return rank, num_ranks, local_rank, num_local_ranks


def _describe_host() -> str:
    """Return a name of the machine, or of the container, in which process ids are comparable."""
    namespace = ""
    with contextlib.suppress(OSError):  # not Linux
        namespace = os.readlink("/proc/self/ns/pid")
    name = f"{socket.gethostname()} {namespace}"
    with contextlib.suppress(OSError):
        name += Path("/proc/sys/kernel/random/boot_id").read_text()
    return hashlib.sha256(name.encode()).hexdigest()


def _is_alive(pid: int) -> bool:
    """Return whether a process of this machine runs; one that its parent has not collected yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self").exists():
            return False
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True
    return state not in "ZX"


def _exit_code_of(error: BaseException) -> int:
    """Return the exit code of a process that an exception ends."""
    if isinstance(error, KeyboardInterrupt):
        return 130
    code = getattr(error, "exit_code", 1)
    return code if isinstance(code, int) else 1

"""Memory and threads of this machine and process: limits, peaks, malloc, the garbage collector.

A container is often allowed less memory than the machine has, and the system kills a process that uses more:
plan with `usable_memory`. This module does not import torch until a peak on a GPU is measured.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import os
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""The files with the memory limit of a container: control groups of version 2 and of version 1."""

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
"""Written to `clear_refs`, this resets the high-water mark of the resident memory (VmHWM): see proc(5)."""

# The options of mallopt(3). Setting any of them permanently disables glibc's dynamic thresholds, which follow
# the sizes of freed blocks. Afterwards they are therefore set to the largest values that glibc would choose.
_TRIM_THRESHOLD, _NEVER, _HIGHEST_TRIM = -1, -1, 64 * 2**20
_MMAP_THRESHOLD, _LOW_MMAP, _HIGHEST_MMAP = -3, 2**18, 32 * 2**20
_MMAP_MAX, _DEFAULT_MMAP_MAX = -4, 65536

TUNABLES = "GLIBC_TUNABLES"
"""The environment variable from which glibc reads settings of malloc when a process starts."""
WITHOUT_CACHES = "glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0"
"""Disables malloc's two caches of small blocks: of each thread, and the fast bins."""
FIRST_WITH_CACHE, FIRST_WITH_MERGING = (2, 26), (2, 39)
"""The version of glibc that introduced the cache of threads, and the one that fixed bug 30723."""
GPU_DRIVER = Path("/dev/nvidiactl")


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def total_memory() -> int:
    """Return the bytes of memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def usable_memory(limits: Sequence[Path] = LIMITS) -> int:
    """Return the bytes of memory that a process may use here: the machine's, or its container's limit."""
    return min([total_memory(), *(limit for path in limits if (limit := _read_limit(path)) is not None)])


def _read_limit(path: Path) -> int | None:
    try:
        content = path.read_text().strip()
    except OSError:  # no container, not Linux, or not readable for this user
        return None
    return int(content) if content.isdecimal() else None  # "max": no limit


def process_memory() -> int:
    """Return the private memory of this process in bytes; pages of mapped files do not count.

    Where the system is not Linux, return the largest resident size so far, which includes mapped files.
    """
    private = _read_status("RssAnon")
    if private is not None:
        return private
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024


def _read_status(field: str) -> int | None:
    """Return a size that Linux reports for this process, in bytes, or None if there is none."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), None)


class SampledPeakMemory:
    """The largest `process_memory` over all calls of `sample`."""

    def __init__(self) -> None:
        self._peak = 0
        self.sample()

    def sample(self) -> None:
        """Measure the memory now."""
        self._peak = max(self._peak, process_memory())

    def peak(self) -> int:
        """Measure the memory once more, and return the largest value in bytes."""
        self.sample()
        return self._peak


class DevicePeakMemory:
    """The peak memory of a training run on `device` since `begin`, minus the memory in use at the start.

    On a GPU the allocator counts it. On a CPU it is the kernel's high-water mark of the resident memory,
    which includes pages of the token file that were read. Only Linux has this figure. Building a model and
    compiling its first step have peaks of their own: `begin` discards them, except for memory that malloc
    keeps on a CPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.has_begun = False
        self._most_data: int | None = None
        self._highest = 0
        if device.type == "cuda":
            from torch import cuda

            self._before: int | None = cuda.memory_allocated(device)
        else:
            self._before = _read_status("VmRSS")

    def begin(self) -> None:
        """Discard the peak so far."""
        self.has_begun = True
        self._highest = 0
        if self.device.type == "cuda":
            from torch import cuda

            cuda.reset_peak_memory_stats(self.device)
        elif self._before is not None:
            try:
                _CLEAR_REFS.write_text(_RESET_PEAK)
            except OSError:  # forbidden in a sandbox: then the mark covers the whole life of the process
                self._before = None

    def leave_out(self, data_bytes: int) -> None:
        """Exclude the data of a new run, which is already on the device, from the peak of that run.

        The data of the first run was allocated before `begin`. Later data is subtracted if it is larger.
        """
        if self._most_data is None:
            self._most_data = data_bytes
        elif self._before is not None and data_bytes > self._most_data:
            self._before += data_bytes - self._most_data
            self._most_data = data_bytes

    def start_over(self) -> None:
        """Require another `begin`, except on a GPU, where replaying a captured step allocates nothing."""
        if self.device.type != "cuda":
            self.has_begun = False

    def peak(self) -> int | None:
        """Return the peak in bytes, or None before `begin` and where the system has no such figure."""
        if not self.has_begun or self._before is None:
            return None
        if self.device.type == "cuda":
            from torch import cuda

            return cuda.max_memory_allocated(self.device) - self._before
        highest = _read_status("VmHWM")
        if highest is None:
            return None
        # The kernel updates the mark late, so that a reading can be below an earlier one.
        self._highest = max(self._highest, highest)
        return max(0, self._highest - self._before)


def _load_glibc() -> ctypes.CDLL | None:
    """Return the C library if its malloc can be configured."""
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None


def restart_without_malloc_caches() -> None:
    """Restart this process without malloc's caches of small blocks, if training on its CPU needs that.

    torch aligns every tensor to 64 bytes. For that, glibc cuts small blocks off both ends of a larger block.
    Before version 2.39 it puts them into its caches, where they are not merged with their neighbours
    (https://sourceware.org/bugzilla/show_bug.cgi?id=30723). A freed tensor then has no room for the next one
    of the same size, and training takes up to twice the memory of its tensors.

    glibc reads this setting only when a process starts. The new process has the same id and arguments. Call
    this function first: everything that the process has done before is done again. Nothing happens if the
    user has set `GLIBC_TUNABLES`, if there is an NVIDIA GPU to train on, or if the path of Python is unknown.
    """
    if os.environ.get(TUNABLES) == WITHOUT_CACHES:
        del os.environ[TUNABLES]  # compilers and other child processes need the caches
        return
    version = _glibc_version()
    if TUNABLES in os.environ or version is None or GPU_DRIVER.exists() or not sys.executable:
        return
    if FIRST_WITH_CACHE <= version < FIRST_WITH_MERGING:
        environment = {**os.environ, TUNABLES: WITHOUT_CACHES}
        with contextlib.suppress(OSError):
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def _glibc_version() -> tuple[int, ...] | None:
    """Return the version of the C library if it is glibc."""
    name = "CS_GNU_LIBC_VERSION"
    library, _, version = ((name in os.confstr_names and os.confstr(name)) or "").partition(" ")
    return tuple(map(int, version.split("."))) if library == "glibc" else None


@contextlib.contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Let malloc keep freed memory until the block ends, instead of returning it to the system.

    glibc's malloc requests every large block from the system and returns it when it is freed. A training step
    on the CPU frees gigabytes that the next step requests again, and the system clears every page. On two
    cores this took a fifth of the time of the base experiment's step. MALLOC_ environment variables are
    overridden. Other C libraries than glibc are not changed.
    """
    libc = _load_glibc()
    if libc is None:
        yield
        return
    libc.mallopt(_MMAP_MAX, 0)
    libc.mallopt(_TRIM_THRESHOLD, _NEVER)
    try:
        yield
    finally:
        libc.mallopt(_MMAP_MAX, _DEFAULT_MMAP_MAX)
        libc.mallopt(_MMAP_THRESHOLD, _HIGHEST_MMAP)
        libc.mallopt(_TRIM_THRESHOLD, _HIGHEST_TRIM)
        libc.malloc_trim(0)


@contextlib.contextmanager
def return_freed_memory() -> Iterator[None]:
    """Suspend `keep_freed_memory`: return kept memory to the system, and large blocks when they are freed.

    Work between steps, such as an evaluation, allocates blocks of other sizes and would otherwise fragment
    the kept memory. The process would then hold the memory of the steps and also that of the other work.
    """
    libc = _load_glibc()
    if libc is None:
        yield
        return
    libc.malloc_trim(0)
    libc.mallopt(_MMAP_MAX, _DEFAULT_MMAP_MAX)
    libc.mallopt(_MMAP_THRESHOLD, _LOW_MMAP)
    try:
        yield
    finally:
        libc.mallopt(_MMAP_MAX, 0)
        libc.malloc_trim(0)


def freeze_objects() -> None:
    """Collect garbage now, and exclude all remaining objects from later collections.

    A collection visits every other object of the process. With torch and its compilers loaded, this takes 50
    to 200 ms.
    """
    gc.collect()
    gc.freeze()


@contextlib.contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Collect garbage now, freeze all objects, and disable automatic collection until the block ends.

    Automatic collections visit every object of the process, and a GPU is idle meanwhile. `gc.collect()` in
    the block still finds garbage that the block made. At the end all objects are unfrozen, including those
    that were frozen before (Python 3.12 freezes some at startup). Otherwise a run's model and data would
    never be freed.
    """
    was_enabled = gc.isenabled()
    freeze_objects()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


ROOM_FOR_THREAD = 64 * 2**20
"""Bytes of address space that must be free to start a thread: with too few, glibc ends the process."""

Result = TypeVar("Result")


class Background:
    """Runs functions on up to `num_threads` threads, in the order in which they are submitted.

    `submit` starts a thread while there are fewer than `num_threads`. If there is too little memory for any
    thread, `submit` runs the function itself. A `ThreadPoolExecutor` would raise, or end the process.

    >>> with Background(2) as background:
    ...     futures = [background.submit(pow, 2, power) for power in range(5)]
    ...     [future.result() for future in futures]
    [1, 2, 4, 8, 16]
    """

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._threads: list[Thread] = []
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def submit(self, function: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Run a function; the future receives its result or its exception."""
        future: Future[Result] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(*arguments))
                except BaseException as error:
                    future.set_exception(error)

        if len(self._threads) < self._num_threads:
            self._start_thread()
        if self._threads:
            self._tasks.put(run)
        else:
            run()
        return future

    def _start_thread(self) -> None:
        thread = Thread(target=self._work, daemon=True)
        try:
            mmap.mmap(-1, ROOM_FOR_THREAD).close()
            thread.start()
        except (OSError, MemoryError, RuntimeError):  # "can't start new thread"
            return
        self._threads.append(thread)

    def _work(self) -> None:
        while (run := self._tasks.get()) is not None:
            run()
            del run  # it holds the result

    def __enter__(self) -> Background:
        return self

    def __exit__(self, *raised: object) -> None:
        """Wait for the functions that are running; drop those that have not started."""
        with contextlib.suppress(Empty):
            while True:
                self._tasks.get_nowait()
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()

"""Run operations of the native core with too little memory: `python short_memory.py NUM_LIMITS`.

For each operation and limit, a child process limits its address space to its present size and a spare amount,
and runs the operation. The operation must return its result or raise MemoryError. Without a limit, it must
then return its result. The program prints one line for each operation and limit.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bytewright import _native
from bytewright.tokenizer.tokenizer import Tokenizer
from bytewright.tokenizer.train import count_texts, train_bpe

SMALLEST, LARGEST = 1 << 12, 1 << 28
"""The spare amount in bytes: with the smallest every operation fails, and with the largest it succeeds."""

draw = random.Random(0)
words = ["".join(draw.choices("abcdefgh", k=draw.randint(1, 30))) for _ in range(20_000)]
text = " ".join(words) + "\n"
broken = text.encode().replace(b"a", b"\xe9")
tokens = {id: bytes([id]) for id in range(256)} | {256: b"ab", 257: b"cd", 258: b"abcd", 259: b"<e>"}
merges = [(b"a", b"b"), (b"c", b"d"), (b"ab", b"cd")]
tokenizer = Tokenizer(tokens, merges, ["<e>"])
users = Tokenizer(tokens, merges, ["<e>"], pattern=r"\S+|\s+")
ids = tokenizer.encode(text)
array = tokenizer.encode_array(text, num_threads=1)
source = Path(tempfile.mkdtemp()) / "text.txt"
source.write_text(text)
lines = text.split(" ")


OPERATIONS: dict[str, Callable[[], object]] = {
    "encode": lambda: tokenizer.encode(text),
    "encode_selected": lambda: tokenizer.encode(text, allowed_special=[]),
    "encode_array": lambda: tokenizer.encode_array(text, num_threads=2).tobytes(),
    "encode_batch": lambda: [ids.tobytes() for ids in tokenizer.encode_batch(lines, num_threads=2)],
    "encode_iterable": lambda: list(tokenizer.encode_iterable(lines)),
    "encode_file": lambda: tokenizer.encode_file(source, source.with_suffix(".npy")).tokens.tobytes(),
    "encode_long_word": lambda: tokenizer.encode(text.replace(" ", "")),
    "encode_with_a_users_pattern": lambda: users.encode(broken),
    "decode": lambda: tokenizer.decode_bytes(ids),
    "decode_array": lambda: tokenizer.decode(array),
    "build": lambda: Tokenizer(tokens, merges, ["<e>"]).encode("abcd"),
    "train": lambda: train_bpe(source, 400, ["<e>"], num_threads=2),
    "train_on_texts": lambda: train_bpe(count_texts(lines), 300, []),
    "count": lambda: count_texts(lines).counts(),
    "pretokenize": lambda: _native.pretokenize(text, "gpt2"),
}


def address_space() -> int:
    """Return the size of this process's address space in bytes."""
    return int(Path("/proc/self/statm").read_bytes().split()[0]) * resource.getpagesize()


def limit_address_space(limit: int) -> None:
    """Set the limit of the address space to this many bytes."""
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def eat_free_memory() -> list[bytearray]:
    """Allocate the memory that was freed and not returned to the system."""
    hoard = []
    for size in (1 << 22, 1 << 18, 1 << 14, 1 << 12, 1 << 10):
        with contextlib.suppress(MemoryError):
            while True:
                hoard.append(bytearray(size))
    return hoard


def run_in_short_memory(operation: Callable[[], object], spare: int) -> str:
    """Run an operation with this much memory to spare and again without a limit; return the first outcome."""
    size = address_space()
    limit_address_space(size)
    hoard = eat_free_memory()
    limit_address_space(size + spare)
    found = None
    try:
        found = operation()
    except MemoryError:
        pass
    finally:
        limit_address_space(resource.RLIM_INFINITY)
        hoard.clear()
    assert operation() == found or found is None
    return "done" if found is not None else "MemoryError"


def run_in_child(operation: Callable[[], object], spare: int) -> str:
    """Run an operation in a child process, whose memory no earlier operation has used."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(120)  # ends a deadlock
        os.write(writer, run_in_short_memory(operation, spare).encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as stream:
        outcome = stream.read()
    _, status = os.waitpid(child, 0)
    return outcome if status == 0 else f"exit status {os.waitstatus_to_exitcode(status)}"


if __name__ == "__main__":
    for name, operation in OPERATIONS.items():
        for spare in np.geomspace(SMALLEST, LARGEST, int(sys.argv[1])):
            print(name, int(spare), run_in_child(operation, int(spare)), sep="\t", flush=True)

"""Encoding a stream needs almost no memory and no thread, even if the system provides neither."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from prose import END, the_tokenizer, write_documents

linux_only = pytest.mark.skipif(
    not Path("/proc/self/status").exists(),
    reason="reads /proc and limits the address space, as only Linux does",
)

MEGABYTE = 1 << 20

# Runs in its own process: it loads a tokenizer and torch, limits the address space to its current size plus 1
# MB, and encodes a file. Allocating 2 MB must fail before and after, which proves that the limit is
# effective.
UNDER_LIMIT = """
import json, os, resource, sys, zlib
import torch
from bytewright.tokenizer import Tokenizer

def status(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(key))

def canary():
    try:
        bytearray(2 << 20)
    except MemoryError:
        return "refused"
    return "granted"

tokenizer = Tokenizer.load(sys.argv[1])
unlimited = canary()
threads = {len(os.listdir("/proc/self/task"))}
_, hard = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (status("VmSize:") * 1024 + (1 << 20), hard))
before = canary()
num_ids = checksum = 0
with open(sys.argv[2], encoding="utf-8", newline="") as file:
    for id in tokenizer.encode_iterable(file):
        checksum = zlib.crc32(id.to_bytes(4, "little"), checksum)
        num_ids += 1
        if num_ids % 4096 == 0:
            threads.add(len(os.listdir("/proc/self/task")))
after = canary()
resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
threads.add(len(os.listdir("/proc/self/task")))
print(json.dumps({
    "without limit": unlimited, "before": before, "after": after,
    "numbers of threads seen": len(threads), "ids": num_ids, "checksum": checksum,
}))
"""


def checksum_of(ids: list[int]) -> int:
    checksum = 0
    for id in ids:
        checksum = zlib.crc32(id.to_bytes(4, "little"), checksum)
    return checksum


def write_text(path: Path) -> str:
    """Write 5 MB: prose, then distinct words that fill every cache without reuse."""
    draw = random.Random(0)
    lines = [document + END + "\n" for document in write_documents(1700, seed=11)]
    lines += [
        f"{draw.getrandbits(400):x} {draw.getrandbits(60):x} é{draw.getrandbits(30):x}\n"
        for _ in range(5_000)
    ]
    text = "".join(lines)
    path.write_text(text, encoding="utf-8", newline="")
    assert path.stat().st_size > 5 * MEGABYTE
    return text


@linux_only
def test_a_stream_of_5_mb_is_encoded_within_1_mb_and_without_a_thread(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt")
    the_tokenizer().save(tmp_path / "tokenizer")
    finished = subprocess.run(
        [sys.executable, "-c", UNDER_LIMIT, str(tmp_path / "tokenizer"), str(tmp_path / "text.txt")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    ids = the_tokenizer().encode(text)
    assert json.loads(finished.stdout) == {
        "without limit": "granted",
        "before": "refused",
        "after": "refused",
        "numbers of threads seen": 1,
        "ids": len(ids),
        "checksum": checksum_of(ids),
    }

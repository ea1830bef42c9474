"""Run one tokenizer job in this process: prepare, time, send the times, wait, then describe the output.

`harness.run_worker` starts this script with two pipe ends and a job in JSON. Standard output is discarded,
because the measured libraries print to it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import timeit
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from harness import Call, timed

from bytewright.corpus import END_OF_TEXT

WARM_CALLS = 5
WARM_BUDGET_SECONDS = 5.0
"""Warm calls stop after this time, so a slow encoder is called only once more."""


def run_training(job: dict[str, Any]) -> tuple[list[Call], Callable[[], str]]:
    """Train once; return the time and a function that saves the learned tokens and returns their hash."""
    from tokenizer_peers import TRAINERS, TrainingJob

    trainer = TRAINERS[job["contestant"]]
    import_module(trainer.module)
    training = TrainingJob(Path(job["corpus"]), job["vocab_size"], job["num_threads"])
    call, trained = timed(lambda: trainer.train(training))

    def describe() -> str:
        lines = "\n".join(token.hex() for token in trainer.tokens(trained, training))
        Path(job["output"]).write_text(lines)
        return hashlib.sha256(lines.encode()).hexdigest()

    return [call], describe


def run_encoding(job: dict[str, Any]) -> tuple[list[Call], Callable[[], str]]:
    """Encode once in a new process (cold), then several more times (warm)."""
    from tokenizer_peers import ENCODERS

    encoder = ENCODERS[job["contestant"]].build(job["num_threads"])
    path, out = Path(job["input"]), Path(job["output"])
    match job["input_kind"]:
        case "document":
            call = encoder.document(path.read_bytes())
        case "batch":
            call = encoder.batch(path.read_bytes().split(END_OF_TEXT.encode()))
        case "file":
            call = encoder.file(path)
        case "token_file":
            call = encoder.token_file(path, out.with_suffix(".tokens.npy"))
        case "tiny":
            call = encoder.tiny(path.read_text())
        case kind:
            raise ValueError(f"unknown input kind: {kind}")
    calls, result = time_tiny(call) if job["input_kind"] == "tiny" else time_cold_and_warm(call)

    def describe() -> str:
        ids = (
            np.load(out.with_suffix(".tokens.npy"))
            if job["input_kind"] == "token_file"
            else encoder.ids(result)
        )
        np.save(out, ids.astype(np.uint32))
        return f"{len(ids)} {hashlib.sha256(ids.astype(np.uint32).tobytes()).hexdigest()}"

    return calls, describe


def time_cold_and_warm(call: Callable[[], Any]) -> tuple[list[Call], Any]:
    """Time the first call, then up to `WARM_CALLS` more on the same input within the time budget."""
    first, result = timed(call)
    calls = [first]
    while len(calls) <= WARM_CALLS and (
        len(calls) == 1 or sum(cost.seconds for cost in calls[1:]) < WARM_BUDGET_SECONDS
    ):
        # Release the old result outside the timed call: freeing millions of objects is slow.
        result = None
        cost, result = timed(call)
        calls.append(cost)
    return calls, result


def time_tiny(call: Callable[[], Any]) -> tuple[list[Call], Any]:
    """Time a call of about a microsecond in loops of 0.2 seconds, with the garbage collector enabled."""
    timer = timeit.Timer(call, setup="import gc; gc.enable()")
    number, _ = timer.autorange()
    seconds = [total / number for total in timer.repeat(repeat=WARM_CALLS, number=number)]
    return [Call(value, value) for value in seconds], call()


def main() -> None:
    """Run the job given on the command line."""
    reads, writes, job = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    calls, describe = (run_training if job["kind"] == "train" else run_encoding)(job)
    with os.fdopen(reads) as reader, os.fdopen(writes, "w") as writer:
        writer.write(json.dumps([asdict(call) for call in calls]) + "\n")
        writer.flush()
        reader.readline()
        writer.write(describe() + "\n")


if __name__ == "__main__":
    main()

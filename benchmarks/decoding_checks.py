"""The checks of `decoding.py`: fused steps compared with the model, and requests alone and among others."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from generation import SHAPES, make_model

from bytewright.generate import Generator, SamplingConfig
from bytewright.generate.decoder import Decoder
from bytewright.model import ModelConfig, TransformerLM

TINY = ModelConfig(vocab_size=100, context_length=32, d_model=32, num_layers=1, num_heads=2)
GREEDY = SamplingConfig(max_new_tokens=200, temperature=0.0)
SAMPLINGS = {
    "greedy": GREEDY,
    "sampled": dataclasses.replace(GREEDY, temperature=1.0),
    "top-k 50, top-p 0.95": dataclasses.replace(GREEDY, temperature=1.0, top_k=50, top_p=0.95),
}
Rows = list[dict[str, Any]]


def is_mine(number: int, share: Sequence[int] | None) -> bool:
    """Return whether a case belongs to a share."""
    return share is None or number % share[1] == share[0]


def guarded(rows: Rows, label: dict[str, Any], measure: Callable[[], dict[str, Any]]) -> None:
    """Add a row of a measurement, or of its error."""
    try:
        rows.append({**label, **measure()})
    except Exception as error:
        rows.append({**label, "error": f"{type(error).__name__}: {error}"[:300]})


def fuse(decoder: Decoder, options: Any = None) -> Decoder:
    """Let a decoder take fused steps with some options, in the interpreter too."""
    from bytewright.generate.fused_step import FusedStep

    decoder.fused_step = FusedStep(decoder, options)
    return decoder


# Steps and ids


def measure_check(arguments: argparse.Namespace) -> Rows:
    """Compare fused steps with the model's own forward, and ids with the reference generator."""
    torch.set_float32_matmul_precision("highest")
    rows: Rows = []
    small = ModelConfig(vocab_size=999, context_length=300, d_model=192, num_layers=2, num_heads=6, d_ff=500)
    if arguments.device == "cpu":
        small = TINY
    configs = {
        "default": small,
        "grouped, qk-norm": dataclasses.replace(small, num_kv_heads=2, qk_norm=True),
        "others": dataclasses.replace(small, norm="none", ffn="silu", position="none", tie_embeddings=True),
        "gpt2": SHAPES["gpt2"],
    }
    on_gpu = arguments.device == "cuda"
    batch_sizes, precisions = ((1, 2, 33, 70), ("fp32", "bf16")) if on_gpu else ((1, 3), ("fp16",))
    for number, (name, precision) in enumerate(itertools.product(configs, precisions)):
        for batch_size in batch_sizes if is_mine(number, arguments.share) else ():
            label = {"model": name, "precision": precision, "rows": batch_size}
            measure = functools.partial(check_logits, configs[name], precision, batch_size, arguments.device)
            guarded(rows, label, measure)
            arguments.json.write_text(json.dumps(rows))
    for number, shape in enumerate(("base", "gpt2") if on_gpu else ()):
        if is_mine(number, arguments.share):
            guarded(rows, {"model": shape, "precision": "fp32"}, functools.partial(check_ids, shape))
    return rows


@torch.inference_mode()
def check_logits(config: ModelConfig, precision: str, batch_size: int, device: str) -> dict[str, Any]:
    """Return ‖ours - exact‖ / ‖exact‖ of the logits of several steps, fused and not; exact is float32."""
    model = make_model(config, device, "fp32")
    if precision != "fp32":
        dtype = torch.bfloat16 if precision == "bf16" else torch.float16
        model = model.to(dtype)
    num_steps, length = (4, config.context_length * 2 // 3) if device == "cuda" else (1, 12)
    ids = torch.randint(config.vocab_size, (batch_size, length + num_steps), device=device)
    exact = TransformerLM(config).to(device)
    exact.load_state_dict({name: value.float() for name, value in model.state_dict().items()})
    lengths = torch.full((batch_size,), length, device=device)
    lengths[batch_size // 2 :] -= 7
    errors: dict[str, Any] = {}
    all_logits = []
    for name in ("before", "fused", "fused again"):
        decoder = Decoder(model, batch_size)
        decoder.fused_step = None if name == "before" else fuse(decoder).fused_step
        cache = decoder.new_cache(batch_size, config.context_length)
        decoder.read(cache, ids[:, :length], lengths)
        logits = []
        for step in range(num_steps):
            new = ids.gather(1, (lengths + step)[:, None])[:, 0]
            logits.append(decoder.step(cache, new, lengths + step).float())
        all_logits.append(torch.stack(logits))
        if name == "fused again":
            errors["same bits"] = torch.equal(all_logits[1], all_logits[2])
            continue
        total = reference = 0.0
        for row in {0, batch_size - 1}:
            want = exact(ids[row : row + 1])[0].float()
            for step in range(num_steps):
                place = int(lengths[row]) + step
                total += float((logits[step][row] - want[place]).double().square().sum())
                reference += float(want[place].double().square().sum())
        errors[name] = (total / reference) ** 0.5
    return errors


def check_ids(shape: str) -> dict[str, Any]:
    """Compare greedy and sampled ids of fused generation with the reference generator in float32."""
    from bytewright.generate.reference import generate_reference

    model = make_model(SHAPES[shape], "cuda", "fp32")
    prompts = [[1, 2, 3], [7] * 140, list(range(200)), [5]]
    result: dict[str, Any] = {}
    for name, sampling in SAMPLINGS.items():
        sampling = dataclasses.replace(sampling, max_new_tokens=24, seed=3)
        same = []
        for batch in (prompts, prompts[1:2]):
            completions = Generator(model, len(batch)).generate(batch, sampling)
            ours = [completion.ids for completion in completions]
            theirs = [
                generate_reference(model, prompt, sampling, row).ids for row, prompt in enumerate(batch)
            ]
            same += [a == b for a, b in zip(ours, theirs, strict=True)]
        result[name] = f"{sum(same)}/{len(same)}"
    return result


# Requests in the engine


def measure_rows(arguments: argparse.Namespace) -> Rows:
    """Compare the ids of requests alone and among others in the engine."""
    on_gpu = arguments.device == "cuda"
    num_slots, num_new, longest = (256, 60, 90) if on_gpu else (3, 2, 9)
    precision = "bf16" if on_gpu else "fp32"

    def measure() -> dict[str, Any]:
        model = make_model(SHAPES["base"], arguments.device, precision).eval()
        runner = EngineRunner(model, num_slots)
        result: dict[str, Any] = {"equal slots": runner.engine.has_equal_slots}
        try:
            for name, sampling in SAMPLINGS.items():
                make = functools.partial(make_request, sampling=sampling, num_new=num_new, longest=longest)
                # Twice as many requests as slots: half of them take a slot that another one has left.
                compared = [number + half for half in (0, num_slots) for number in range(min(4, num_slots))]
                alone = [runner.run([make(number)])[0] for number in compared]
                among = runner.run([make(number) for number in range(2 * num_slots)])
                result[name] = alone == [among[number] for number in compared] and all(map(len, among))
        finally:
            runner.engine.stop()
        return result

    rows: Rows = []
    guarded(rows, {"precision": precision, "fused": on_gpu}, measure)
    return rows


def make_request(number: int, *, sampling: SamplingConfig, num_new: int, longest: int) -> Any:
    """Return a request with a prompt that depends on its number."""
    from bytewright.serve.jobs import Job

    torch.manual_seed(number)
    prompt = torch.randint(TINY.vocab_size, (1 + number * 37 % 90 % longest,)).tolist()
    num_new = 1 + number * 7 % num_new
    return Job(prompt, dataclasses.replace(sampling, max_new_tokens=num_new, seed=number))


class EngineRunner:
    """An engine of the server, and the ids that it reports for each request."""

    def __init__(self, model: TransformerLM, num_slots: int) -> None:
        from bytewright.serve.engine import Engine

        self._written: dict[int, list[int]] = {}
        self._ended = threading.Event()
        self._waiting: set[int] = set()
        self._kept: list[Any] = []  # so that each request has its own id
        self.engine = Engine(
            model, self._report, num_slots=num_slots, max_waiting=2**20, max_waiting_tokens=2**40
        )
        self.engine.start()

    def _report(self, updates: Any) -> None:
        for request, update in updates:
            self._written.setdefault(id(request), []).extend(update.ids)
            if update.is_last:
                self._waiting.discard(id(request))
        if not self._waiting:
            self._ended.set()

    def run(self, requests: list[Any]) -> list[list[int]]:
        """Return the ids of requests that are submitted at the same time."""
        self._ended.clear()
        self._kept.extend(requests)
        self._waiting.update(id(request) for request in requests)
        self.engine.submit(requests)
        self._ended.wait(60)
        return [self._written.get(id(request), []) for request in requests]

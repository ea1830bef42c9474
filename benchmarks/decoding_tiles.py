"""Measure the kernels of a fused decoding step one by one, with several tile sizes, and find the fastest.

`sweep` runs each kernel over the weights of all layers in one captured graph, as a step does, so that weights
come from memory and not from a cache. A time is that of one kernel in microseconds, including its launch.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from bytewright.generate.decoder import Decoder
from bytewright.generate.fused_step import StepOptions
from bytewright.generate.packed_weights import PackedSwiGLU
from bytewright.model.kernels import decoding, decoding_products
from bytewright.model.kernels.decoding_products import SWIGLU, Tiles
from bytewright.model.layers import EPSILON

PRODUCTS = ("qkv", "output", "up", "down", "head")


@dataclasses.dataclass(frozen=True)
class Trial:
    """One kernel with one choice of tiles."""

    product: str
    tiles: Any
    """`Tiles`, or (split, warps) of attention, or the name of another implementation."""
    call: Callable[[], Any]
    num_kernels: int
    num_bytes: int
    """Bytes of weights or of the cache that all kernels together read."""


def captured(call: Callable[[], Any]) -> Callable[[], Any]:
    """Return a replay of the call as a CUDA graph, or the call itself without a GPU."""
    if not torch.cuda.is_available():
        return call
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def seconds_of(call: Callable[[], Any], repeats: int) -> float:
    """Return the median of the seconds of a call, by device events on a GPU."""
    times: list[float] = []
    for _ in range(repeats):
        if torch.cuda.is_available():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            call()
            end.record()
            end.synchronize()
            times.append(float(start.elapsed_time(end)) / 1e3)
        else:
            begun = time.perf_counter()
            call()
            times.append(time.perf_counter() - begun)
    return statistics.median(times)


def candidates(product: str, num_rows: int, *, few: bool) -> list[Tiles]:
    """Return the tiles to try."""
    if num_rows == 1:
        wide = 2048 if product == "down" else 1024
        outputs = {"qkv": (4, 8, 16, 32), "output": (2, 4, 8, 16), "up": (4, 8, 16), "down": (2, 4, 8, 16)}
        found = [
            Tiles(outputs=size, inputs=inputs, warps=warps)
            for size in outputs.get(product, (8, 16, 32, 64))
            for inputs in (wide, 256)
            for warps in (2, 4, 8)
            if 8 <= size * inputs // (32 * warps) <= 256
        ]
    else:
        rows = min(max(16, 1 << (num_rows - 1).bit_length()), 64)
        sizes = (32, 64, 128) if product == "head" else (16, 32, 64)
        found = [
            Tiles(outputs=size, inputs=inputs, rows=rows, warps=warps, stages=stages)
            for size in sizes
            for inputs in (64, 128, 256)
            for warps in ((4, 8) if size == 128 else (4,))
            for stages in (3, 5)
            if size * inputs * stages * 2 <= 160_000
        ]
    return found[:1] if few else found


def trials(decoder: Decoder, num_rows: int, *, position: int, few: bool) -> Iterator[Trial]:
    """Yield all trials of the products and of attention for a number of rows."""
    options = StepOptions()
    overlap = options.overlap and torch.cuda.is_available()
    config, device, dtype = decoder.config, decoder.device, decoder.dtype
    x = torch.randn(num_rows, config.d_model, device=device, dtype=dtype)
    wide = torch.randn(num_rows, config.ffn_width, device=device, dtype=dtype)
    gains = torch.ones(config.d_model, device=device)
    blocks = decoder.blocks
    ffns = [block.ffn for block in blocks]
    assert all(isinstance(ffn, PackedSwiGLU) for ffn in ffns)
    weights: dict[str, list[Tensor]] = {
        "qkv": [block.attention.qkv.weight for block in blocks],
        "output": [block.attention.output.weight for block in blocks],
        "up": [ffn.up.weight for ffn in ffns if isinstance(ffn, PackedSwiGLU)],
        "down": [ffn.down.weight for ffn in ffns if isinstance(ffn, PackedSwiGLU)],
        "head": [decoder.head.weight],
    }
    arguments: dict[str, dict[str, Any]] = {
        "qkv": {"gains": gains, "eps": EPSILON},
        "output": {"residual": x},
        "up": {"gains": gains, "eps": EPSILON, "gate": SWIGLU},
        "down": {"residual": x},
        "head": {"gains": gains, "eps": EPSILON, "num_ids": config.vocab_size},
    }
    cache = decoder.new_cache(num_rows, config.context_length)
    for buffer in cache.keys + cache.values:
        buffer.normal_()
    positions = torch.full((num_rows,), position, device=device)
    width = (config.num_heads + 2 * config.kv_heads) * config.d_head
    qkv = torch.randn(num_rows, width, device=device, dtype=dtype)

    def attend(layer: int, split: int, warps: int) -> decoding.Splits:
        return decoding.attend_in_splits(
            *(qkv, None, decoder.angles, cache.keys[layer], cache.values[layer], positions),
            eps=EPSILON, split=split, warps=warps, overlap=overlap,
        )  # fmt: skip

    for product in PRODUCTS:
        total = sum(weight.nbytes for weight in weights[product])
        rows = wide if product == "down" else x
        splits = attend(0, options.split, 4)
        for tiles in candidates(product, num_rows, few=few):
            source: Any = splits if product == "output" and num_rows == 1 else rows
            for prefetch in (False, True) if num_rows > 1 and tiles.stages == 3 else (True,):

                def call(
                    product: str = product,
                    tiles: Tiles = tiles,
                    source: Any = source,
                    prefetch: bool = prefetch,
                ) -> None:
                    for weight in weights[product]:
                        decoding_products.multiply(
                            source, weight, tiles, **arguments[product], overlap=overlap, prefetch=prefetch
                        )

                name: Any = tiles if prefetch else ("no prefetch", tiles)
                yield Trial(product, name, call, len(weights[product]), total)

        def library(product: str = product, rows: Tensor = rows) -> None:
            for weight in weights[product]:
                torch.nn.functional.linear(rows, weight)

        yield Trial(product, "library", library, len(weights[product]), total)
    cache_bytes = 2 * config.num_layers * num_rows * config.kv_heads * config.d_head * position
    cache_bytes *= torch.finfo(dtype).bits // 8
    for split in (64,) if few else (64, 128, 256):
        for warps in (4,) if few else (2, 4, 8):

            def call_attention(split: int = split, warps: int = warps) -> None:
                for layer in range(config.num_layers):
                    attend(layer, split, warps)

            yield Trial("attention", (split, warps), call_attention, config.num_layers, cache_bytes)

    def whole() -> None:
        for layer in range(config.num_layers):
            decoding.attend_and_store(
                qkv, None, decoder.angles, cache.keys[layer], cache.values[layer], positions, eps=EPSILON
            )

    yield Trial("attention", "one program per head", whole, config.num_layers, cache_bytes)
    splits = attend(0, options.split, 4)

    def combine() -> None:
        for _ in range(config.num_layers):
            decoding.combine_splits(splits, dtype, overlap=overlap)

    yield Trial("combine", options.split, combine, config.num_layers, splits.sums.nbytes)


def sweep(
    decoder: Decoder,
    num_rows: int,
    *,
    position: int,
    share: tuple[int, int] | None,
    few: bool,
    deadline: float,
) -> list[dict[str, Any]]:
    """Measure all trials and return a row for each; with `share` only run a part of them, to compile."""
    rows: list[dict[str, Any]] = []
    for number, trial in enumerate(trials(decoder, num_rows, position=position, few=few)):
        if time.monotonic() > deadline or (share and number % share[1] != share[0]):
            continue
        row: dict[str, Any] = {"product": trial.product, "num_rows": num_rows, "tiles": describe(trial.tiles)}
        rows.append(row)
        try:
            if share:
                trial.call()
                continue
            seconds = seconds_of(captured(trial.call), 15 if torch.cuda.is_available() else 1)
            row["us"] = 1e6 * seconds / trial.num_kernels
            row["tb_per_s"] = trial.num_bytes / seconds / 1e12
        except Exception as error:  # too much shared memory, for example
            row["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:100]
            torch.cuda.synchronize() if torch.cuda.is_available() else None
    return rows


def describe(tiles: Any) -> Any:
    """Return tiles as JSON."""
    if isinstance(tiles, Tiles):
        return dataclasses.asdict(tiles)
    return [describe(it) for it in tiles] if isinstance(tiles, tuple) else tiles


def best_options(rows: list[dict[str, Any]], options: StepOptions) -> StepOptions:
    """Return the options with the fastest tiles of each product."""

    def fastest(product: str, several: bool) -> Tiles | None:
        fitting = [
            row
            for row in rows
            if row["product"] == product and (row["num_rows"] > 1) == several and "us" in row
            and isinstance(row["tiles"], dict)
        ]  # fmt: skip
        return Tiles(**min(fitting, key=lambda row: row["us"])["tiles"]) if fitting else None

    for several, name in ((False, "one_row"), (True, "some_rows")):
        found = {product: fastest(product, several) for product in PRODUCTS}
        changes = {product: tiles for product, tiles in found.items() if tiles is not None}
        options = dataclasses.replace(
            options, **{name: dataclasses.replace(getattr(options, name), **changes)}
        )
    return options

"""Measure generation: ours and `generate` of `transformers` with each of its caches.

    python benchmarks/generation.py                      # two cores: batch 1 and 32 in fp32
    python benchmarks/generation.py --device cuda --precision bf16 --batch-sizes 1 32 256
    python benchmarks/generation.py --device cuda --precision bf16 --shape gpt2 --batch-sizes 1 32

All contestants use the same weights (exported by `write_llama`, loaded as `LlamaForCausalLM`), the same
prompts and the same number of greedy tokens. The first call of each is not counted, because it compiles,
captures and allocates; then they take turns. The time includes the prompts. The table shows tokens per second
(median, min-max), the ratio to the fastest peer, the share of ids that agree with ours, and the time divided
by the floor: the plain matrix products of every step in the layout of our weights.

In bfloat16 different summation orders soon resolve near-ties differently, so ids of correct implementations
differ. Therefore a short unmeasured run in float32 compares the ids. The JSON is written after every batch
size.
"""

from __future__ import annotations

import argparse
import importlib
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from harness import (
    Figure,
    describe_machine,
    installed_versions,
    is_usable,
    source_commit,
    three_digits,
    wide_console,
)
from rich.table import Table

from bytewright.generate import Generator, SamplingConfig
from bytewright.generate.decoder import Decoder
from bytewright.generate.packed_weights import PackedSwiGLU
from bytewright.model import ModelConfig, TransformerLM
from bytewright.model.hf_llama import write_llama
from bytewright.storage import atomic

SHAPES = {
    "base": ModelConfig(vocab_size=10_000, context_length=256, d_model=512, num_layers=4, num_heads=16),
    "gpt2": ModelConfig(vocab_size=50_257, context_length=1024, d_model=768, num_layers=12, num_heads=12),
}
"""The model of the base experiment, and a model of the size of GPT-2 small."""
OURS = "bytewright"

Ids = list[list[int]]
GenerateCall = Callable[[Ids, int], Ids]
"""Extend prompts by a number of greedy tokens and return the new ids."""


@dataclass
class Contestant:
    """One implementation of generation and its times at one batch size."""

    name: str
    generate: GenerateCall
    seconds: list[float] = field(default_factory=list)
    ids: Ids = field(default_factory=list)
    error: str | None = None


def main() -> None:
    """Measure all batch sizes, print the tables and write the JSON."""
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads or torch.get_num_threads())
    console = wide_console()
    about = {
        "machine": describe_machine(),
        "device": torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu",
        "commit": source_commit(),
        "versions": installed_versions(["torch", "transformers"]),
        "settings": {key: str(value) for key, value in vars(arguments).items()},
    }
    console.print(about)
    config = SHAPES[arguments.shape]
    model = make_model(config, arguments.device, arguments.precision)
    rows: list[dict[str, Any]] = []
    checks: list[dict[str, Any]] = []

    def save() -> None:
        if arguments.json:
            atomic.write_json(arguments.json, {**about, "rows": rows, "in_float32": checks})

    for batch_size in () if arguments.check_only else arguments.batch_sizes:
        prompts = draw_prompts(batch_size, arguments)
        contestants = make_contestants(model, batch_size, arguments)
        measure_calls(contestants, prompts, arguments.new_tokens, arguments.repeats, arguments.device)
        floor = measure_floor(model, batch_size) * arguments.new_tokens
        rows += print_table(console, contestants, batch_size, arguments.new_tokens, floor)
        save()
    if arguments.precision != "fp32" and is_usable("transformers", "transformers", console):
        exact = make_model(config, arguments.device, "fp32")
        for batch_size in arguments.batch_sizes:
            checks.append(check_ids(exact, draw_prompts(batch_size, arguments), arguments.check_tokens))
            console.print(
                "in float32: {batch_size} x {num_tokens} ids, {same:.2%} the same".format(**checks[-1])
            )
            save()


def draw_prompts(batch_size: int, arguments: argparse.Namespace) -> Ids:
    """Return random prompts of equal length, the same in every run."""
    shape = (batch_size, arguments.prompt_tokens)
    vocab_size = SHAPES[arguments.shape].vocab_size
    drawn: Ids = torch.randint(vocab_size, shape, generator=torch.Generator().manual_seed(0)).tolist()
    return drawn


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--shape", choices=SHAPES, default="base", help="the model's shape")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--prompt-tokens", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--check-tokens", type=int, default=64, help="tokens of the float32 comparison")
    parser.add_argument("--check-only", action="store_true", help="only compare ids in float32")
    parser.add_argument("--threads", type=int, help="CPU threads (default: all cores)")
    parser.add_argument(
        "--static", action="store_true", help="include the peer's compiled static cache on a CPU"
    )
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def make_model(config: ModelConfig, device: str, precision: str) -> TransformerLM:
    """Build a model with doubled initial weights, so that its output depends on its input."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    model = TransformerLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(2)
    return model.to(device, dtype)


def make_contestants(
    model: TransformerLM, batch_size: int, arguments: argparse.Namespace
) -> list[Contestant]:
    """Return all contestants with the same weights."""
    contestants = [Contestant(OURS, generate_with_ours(model, batch_size))]
    try:
        theirs = load_peer(model)
    except ImportError:
        wide_console().print("transformers is skipped: it is not installed", style="bold red")
        return contestants
    contestants.append(Contestant("transformers, dynamic cache", generate_with_peer(theirs)))
    if arguments.device == "cuda" or arguments.static:
        contestants.append(
            Contestant(
                "transformers, static cache, compiled",
                generate_with_peer(theirs, cache_implementation="static"),
            )
        )
    return contestants


def generate_with_ours(model: TransformerLM, batch_size: int) -> GenerateCall:
    """Return a call of our generator."""
    generator = Generator(model, batch_size)

    def generate(prompts: Ids, new_tokens: int) -> Ids:
        sampling = SamplingConfig(max_new_tokens=new_tokens, temperature=0.0)
        return [completion.ids for completion in generator.generate(prompts, sampling)]

    return generate


def load_peer(model: TransformerLM) -> Any:
    """Load our weights into a model of `transformers`."""
    transformers = importlib.import_module("transformers")
    transformers.utils.logging.disable_progress_bar()
    weight = model.output_weight
    with tempfile.TemporaryDirectory() as folder:
        write_llama(model, Path(folder) / "llama")
        theirs = transformers.AutoModelForCausalLM.from_pretrained(Path(folder) / "llama", dtype=weight.dtype)
    return theirs.to(weight.device).eval()


def generate_with_peer(theirs: Any, **options: Any) -> GenerateCall:
    """Return a call of the peer's `generate` as its documentation recommends."""

    @torch.inference_mode()
    def generate(prompts: Ids, new_tokens: int) -> Ids:
        ids = torch.tensor(prompts, device=theirs.device)
        generated = theirs.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
            **options,
        )
        new_ids: Ids = generated[:, ids.shape[1] :].tolist()
        return new_ids

    return generate


def measure_calls(
    contestants: list[Contestant], prompts: Ids, new_tokens: int, repeats: int, device: str
) -> None:
    """Run every contestant once without counting, then `repeats` times in turns."""
    for turn in range(repeats + 1):
        for contestant in contestants:
            if contestant.error:
                continue
            try:
                start = time.perf_counter()
                contestant.ids = contestant.generate(prompts, new_tokens)
                if device == "cuda":
                    torch.cuda.synchronize()
                if turn:
                    contestant.seconds.append(time.perf_counter() - start)
            except Exception as error:  # a failing peer must not discard the results of the others
                if contestant.name == OURS:
                    raise
                contestant.error = f"{type(error).__name__}: {error}".splitlines()[0]


def check_ids(model: TransformerLM, prompts: Ids, new_tokens: int) -> dict[str, Any]:
    """Compare our greedy ids with those of the peer's dynamic cache, with all products in float32."""
    torch.set_float32_matmul_precision("highest")  # no TF32, which has only 10 bits of mantissa
    ours = generate_with_ours(model, len(prompts))(prompts, new_tokens)
    theirs = generate_with_peer(load_peer(model))(prompts, new_tokens)
    return {"batch_size": len(prompts), "num_tokens": new_tokens, "same": common_share(ours, theirs)}


def measure_floor(model: TransformerLM, batch_size: int, repeats: int = 30) -> float:
    """Return the seconds that the matrix products of one step take alone."""
    decoder = Decoder(model, batch_size)
    device, dtype = decoder.device, decoder.dtype
    narrow = torch.randn(batch_size, model.config.d_model, device=device, dtype=dtype)
    wide = torch.randn(batch_size, model.config.ffn_width, device=device, dtype=dtype)

    def products() -> None:
        for block in decoder.blocks:
            block.attention.qkv(narrow)
            block.attention.output(narrow)
            assert isinstance(block.ffn, PackedSwiGLU)
            block.ffn.up(narrow)
            block.ffn.down(wide)
        decoder.head(narrow)

    with torch.inference_mode():
        call = captured(products) if device.type == "cuda" else products
        call()
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            call()
            if device.type == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
    return Figure.of(times).median


def captured(call: Callable[[], None]) -> Callable[[], None]:
    """Capture a call as a CUDA graph, which excludes the time of kernel launches."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def print_table(
    console: Any, contestants: list[Contestant], batch_size: int, new_tokens: int, floor: float
) -> list[dict[str, Any]]:
    """Print the table of one batch size and return its rows."""
    num_tokens = batch_size * new_tokens
    peers = [c for c in contestants if c.name != OURS and c.seconds]
    fastest = max((speed_of(peer, num_tokens).median for peer in peers), default=None)
    table = Table(title=f"Batch {batch_size}, {new_tokens} greedy tokens", title_justify="left")
    for heading in ("", "tokens/s", "min-max", "÷ fastest peer", "ids as ours", "time ÷ floor"):
        table.add_column(heading, justify="left" if heading == "" else "right")
    rows = []
    for contestant in contestants:
        if contestant.error:
            table.add_row(contestant.name, "failed", "", "", contestant.error, "")
            continue
        speed = speed_of(contestant, num_tokens)
        agreement = common_share(contestants[0].ids, contestant.ids)
        ratio = None if fastest is None else speed.median / fastest
        over_floor = num_tokens / speed.median / floor
        table.add_row(
            contestant.name,
            f"{speed.median:,.0f}",
            f"{speed.lowest:,.0f}-{speed.highest:,.0f}",
            "" if ratio is None else f"{ratio:.2f}",
            f"{agreement:.1%}",
            three_digits(over_floor),
            style="bold" if contestant.name == OURS else None,
        )
        rows.append(
            {
                "batch_size": batch_size,
                "contestant": contestant.name,
                "tokens_per_second": asdict(speed),
                "ratio_to_fastest_peer": ratio,
                "share_of_ids_before_the_first_difference": agreement,
                "time_over_floor": over_floor,
            }
        )
    console.print(table)
    return rows


def speed_of(contestant: Contestant, num_tokens: int) -> Figure:
    """Return tokens per second over the turns."""
    return Figure.of(num_tokens / seconds for seconds in contestant.seconds)


def common_share(ours: Ids, theirs: Ids) -> float:
    """Return the share of ids before the first difference of each pair; later ids are not comparable."""
    common = total = 0
    for mine, other in zip(ours, theirs, strict=True):
        total += len(mine)
        for a, b in zip(mine, other, strict=False):
            if a != b:
                break
            common += 1
    return common / max(total, 1)


if __name__ == "__main__":
    main()

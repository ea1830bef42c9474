"""The tables of `bytewright account`: the answer, and as details parameters, FLOPs, memory and time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bytewright.account import Account, TimeAccount, TrainingCosts, TrainingSetup
from bytewright.account.flops import Growth, growth
from bytewright.account.predict import TOKENS_PER_PARAMETER
from bytewright.account.summary import SETTINGS
from bytewright.account.time import SECONDS_PER_DAY
from bytewright.cli import console
from bytewright.formatting import format_count, format_seconds, format_size
from bytewright.model import ModelConfig
from bytewright.report.charts import Axis, Chart, Series
from bytewright.report.draw import draw_chart
from bytewright.storage import atomic

PLOTTED_CONTEXTS = [2**power for power in range(8, 18)]


def print_answer(config: ModelConfig, setup: TrainingSetup, costs: TrainingCosts) -> None:
    """Print what a run needs as one short table, and next to it what was assumed."""
    heads = f"{config.num_heads} heads"
    if config.kv_heads != config.num_heads:
        heads += f" on {config.kv_heads} key heads"
    out = console.stdout()
    out.print(
        f"{config.num_layers} layers of width {config.d_model}, {heads}, feed-forward {config.ffn_width} "
        f"({config.ffn}), vocabulary {config.vocab_size:,}, context {config.context_length:,}"
    )
    out.print()
    console.print_table(("", "", ""), _list_answers(config, setup, costs), left=range(3))


def _list_answers(
    config: ModelConfig, setup: TrainingSetup, costs: TrainingCosts
) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of the answer: name, figure, and what it depends on."""
    tokens = f"{costs.num_tokens:,} tokens"
    if costs.has_assumed_tokens and setup.max_seconds is not None:
        tokens += f", {TOKENS_PER_PARAMETER} per parameter; a budget of minutes needs --device"
    elif costs.has_assumed_tokens:
        tokens += f", {TOKENS_PER_PARAMETER} per parameter; set their number with --tokens"
    yield "parameters", format_count(costs.parameters), f"{costs.parameters:,}"
    yield "training FLOPs", format_count(costs.flops, "FLOP"), tokens
    where = "compiled" if setup.compiled else "eager"
    batch = f"batch {setup.accumulate * setup.batch_size:,}"
    if setup.accumulate > 1:
        batch += f" in {setup.accumulate} parts"
    settings = f"{batch}, {setup.rate or setup.precision}, {setup.optimizer_name}, {where}, "
    settings += "GPU" if setup.device_kind == "cuda" else "CPU"
    if setup.num_ranks > 1:
        settings += f", each of {setup.num_ranks} ranks ({setup.strategy}, {setup.reduction})"
        parts = "; ".join(f"{name} {format_size(size)}" for name, size in costs.sent_bytes.items())
        yield "sent by each rank", format_size(sum(costs.sent_bytes.values())), f"in a step: {parts}"
    if costs.available_bytes is None:
        yield "memory", format_size(costs.memory_bytes), settings
        yield "largest batch", "unknown", "set --device or --memory"
    else:
        verdict = "fits into" if costs.fits else "does NOT fit into"
        limit = f"{verdict} {format_size(costs.available_bytes)}"
        yield "memory", format_size(costs.memory_bytes), f"{limit}; {settings}"
        yield "largest batch", f"{costs.largest_batch:,}", "sequences at once, without accumulation"
    if setup.device is None:
        yield "time", "unknown", "name a device with --device, such as h100, rtx4090 or cpu"
        return
    if costs.seconds is None and setup.num_ranks > 1:
        yield "time", "unknown", "it depends on the links between the ranks"
    elif costs.seconds is None:
        reason = f"no such step was measured ({setup.rate}, {where}, {config.implementation})"
        yield "time", "unknown", f"{reason}; state the share of the peak with --mfu"
    else:
        how = "stated" if setup.mfu is not None else "predicted"
        speed = f"{costs.tokens_per_second:,.0f} tokens/s, {costs.mfu:.0%} MFU ({how})"
        yield "time", _format_days(costs.seconds), f"on {setup.device.name}: {speed}"
    if costs.watts is None:
        yield "energy", "unknown", f"the power of {setup.device.name} is not known; set --device-watts"
    elif costs.kilowatt_hours is not None:
        assumption = f"at {costs.watts:,.0f} W, the power limit of the device alone, all the time"
        yield "energy", format_count(1000 * costs.kilowatt_hours, "Wh"), assumption


def _format_days(seconds: float) -> str:
    days = seconds / SECONDS_PER_DAY
    return f"{days:,.1f} days" if days >= 2 else format_seconds(seconds)


def print_details(
    account: Account,
    *,
    memory: str | None = None,
    batches: Mapping[str, int],
    time: TimeAccount | None = None,
) -> None:
    """Print all tables of an account."""
    console.stdout().print()
    console.stdout().print(f"Details, for {account.batch_size:,} x {account.num_tokens:,} tokens at once")
    _print_parameters(account)
    _print_flops(account)
    _print_memory(account, memory, batches)
    _print_inference(account)
    _print_updates(account)
    if time is not None:
        _print_time(account, time)


def _print_parameters(account: Account) -> None:
    count = account.parameters
    rows = {
        "embeddings": count.embeddings,
        "attention": count.attention,
        "feed-forward": count.feed_forward,
        "norms in blocks": count.norms_in_blocks,
        "final norm": count.final_norm,
        "head": count.head,
        "total": count.total,
        "without embeddings": count.without_embeddings,
        "without embeddings and head": count.without_embeddings_and_head,
    }
    console.print_table(
        ("", "parameters", "share", "fp32", "bf16"),
        (
            (name, f"{number:,}", f"{number / count.total:.1%}", *map(format_size, (4 * number, 2 * number)))
            for name, number in rows.items()
        ),
        title="\nParameters",
    )


def _print_flops(account: Account) -> None:
    causal = account.causal_flops
    halved = (causal.attention_scores + causal.attention_weighting) // 2
    rows = []
    for matmul in account.matmuls:
        of_causal = (
            halved if matmul.component in ("attention_scores", "attention_weighting") else matmul.flops
        )
        shape = f"({matmul.m:,} x {matmul.k:,}) ({matmul.k:,} x {matmul.n:,})"
        shares = f"{matmul.flops / account.flops.forward:.1%}", f"{of_causal / causal.forward:.1%}"
        rows.append((matmul.name, f"{matmul.times:,}", shape, _format_flops(matmul.flops), *shares))
    headings = ("product", "times", "shape", "FLOP", "share", "causal")
    console.print_table(headings, rows, title="\nFLOPs of a forward pass, one batch")
    totals = []
    for name in ("forward", "backward", "training"):
        full, half = getattr(account.flops, name), getattr(causal, name)
        counts = (full, full / account.tokens, half, half / account.tokens)
        totals.append((name, *map(_format_flops, counts)))
    console.print_table(("", "every score", "per token", "causal", "per token"), totals)


def _format_flops(flops: float) -> str:
    return format_count(flops, "FLOP")


def _print_memory(account: Account, memory: str | None, batches: Mapping[str, int]) -> None:
    textbook, out = account.textbook_memory, console.stdout()
    out.print()
    out.print("Memory of training, textbook formula (fp32, AdamW, each tensor counted once)")
    out.print(f"  P = {textbook.parameters_formula} = {textbook.parameters // 4:,}")
    out.print(f"  a = {textbook.per_sequence_formula} = {format_size(textbook.a)} a sequence")
    out.print(f"  b = 16·P = {format_size(textbook.b)}")
    out.print(f"  a·{account.batch_size} + b = {format_size(textbook.peak(account.batch_size))}")
    if memory:
        out.print(f"  largest batch in {memory}: {batches['textbook formula']:,}")
    headings = ["GB", "peak", "GiB", "at", "weights", "gradients", "state", "kept", "of it T²", "logits"]
    headings += ["other", *([f"largest batch in {memory}"] if memory else [])]
    rows = []
    for setting, predicted in account.training.items():
        moment = predicted.peak_moment
        part = moment.parts
        squares = part.get("attention matrices", 0)
        kept = part.get("activations", 0) + squares + part.get("weight copies", 0)
        other = part.get("temporaries", 0) + part["workspace"]
        sizes = (part["parameters"], part["gradients"], part["optimizer state"], kept, squares)
        rows.append(
            (
                *(setting.name, _format_gigabytes(moment.total), f"{moment.total / 2**30:,.2f}", moment.name),
                *map(_format_gigabytes, (*sizes, part.get("logits", 0), other)),
                *([f"{batches[setting.name]:,}"] if memory else []),
            )
        )
    title = "\nPeak memory of a training step, as implemented (AdamW)"
    console.print_table(headings, rows, title=title)
    for setting in (SETTINGS[0], SETTINGS[-2]):  # the reference and the fused implementation
        tensors = account.training[setting].kept_by_block
        title = f"\nKept by each block for the backward pass: {setting.name}"
        console.print_table(
            ("", "bytes"), ((kept.name, format_size(kept.num_bytes)) for kept in tensors), title=title
        )


def _format_gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.2f}"


def _print_inference(account: Account) -> None:
    rows = [
        (precision, *map(format_size, (memory.total, memory.weights, memory.cache, memory.logits)))
        for precision, memory in account.inference.items()
    ]
    title = f"\nMemory of generating {account.batch_size:,} x {account.num_tokens:,} tokens"
    console.print_table(("", "total", "weights", "keys and values", "logits"), rows, title=title)
    console.stdout().print(f"the last token costs {_format_flops(account.flops_of_last_token)}")


def _print_updates(account: Account) -> None:
    rows = [
        (name, *map(_format_flops, (cost.matmul_flops, cost.elementwise_flops)), format_size(cost.num_bytes))
        for name, cost in account.updates.items()
    ]
    headings = ("", "products", "elementwise", "least traffic")
    console.print_table(headings, rows, title="\nOne update of the weights")


def _print_time(account: Account, time: TimeAccount) -> None:
    device = time.device
    kind = "measured" if device.is_measured else "data sheet"
    out = console.stdout()
    out.print()
    out.print(
        f"Time on {device.name} ({kind}: {format_count(device.peak(time.rate), 'FLOP/s')} in {time.rate}, "
        f"{format_count(device.bytes_per_second, 'B/s')}; "
        f"balance {device.balance(time.rate):.0f} FLOP per byte)"
    )
    rows = []
    for part in time.parts:
        intensity = f"{part.intensity:.1f}" if part.num_bytes else ""
        costs = _format_flops(part.flops), format_size(part.num_bytes), intensity
        rows.append((part.name, *costs, _format_step_seconds(part.seconds), part.bound))
    console.print_table(("", "FLOP", "bytes", "FLOP per byte", "least time", "bound by"), rows)
    if time.seconds_per_step is None:
        console.print_line(
            f"a step: at least {_format_step_seconds(time.least_seconds)}; the efficiency of the "
            f"{account.config.implementation} implementation in {time.rate} was not measured on such a "
            "device; set the share of the peak with --mfu"
        )
    else:
        out.print(f"a step: {_format_step_seconds(time.seconds_per_step)}")


def _format_step_seconds(seconds: float) -> str:
    return f"{seconds * 1000:,.2f} ms" if seconds < 1 else format_seconds(seconds)


def print_growth(rows: Sequence[Growth]) -> None:
    """Print the shares of the FLOPs for each model and context length."""
    console.print_table(
        ("model", "context", "FLOP", "projections", "attention", "feed-forward", "head"),
        (
            (
                *(row.name, f"{row.context_length:,}", _format_flops(row.flops.forward)),
                *(f"{share:.1%}" for share in row.shares().values()),
            )
            for row in rows
        ),
        title="Shares of a forward pass as models and contexts grow",
    )


def write_plot(path: Path) -> None:
    """Write a chart of the share of attention over the context length, one line per model."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in growth(contexts=PLOTTED_CONTEXTS):
        lines.setdefault(row.name, []).append((row.context_length, row.shares()["attention"]))
    chart = Chart(
        title="Share of attention in the FLOPs of a forward pass",
        description="Attention grows with the square of the context, everything else in proportion to it.",
        x=Axis("context (tokens)", log=True),
        y=Axis("share of scores and weighting", limits=(0.0, 1.0)),
        series=[Series(name, points) for name, points in lines.items()],
        ordered=True,
    )
    atomic.write_text(path, draw_chart(chart))

"""The tables of `bytewright account`: the answer, and as details parameters, FLOPs, memory and time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from bytewright.account import Account, TimeAccount, TrainingCosts, TrainingSetup
from bytewright.account.flops import Growth, growth
from bytewright.account.predict import TOKENS_PER_PARAMETER
from bytewright.account.summary import SETTINGS
from bytewright.account.time import SECONDS_PER_DAY
from bytewright.cli import console
from bytewright.formatting import format_count, format_seconds, format_size
from bytewright.model import ModelConfig
from bytewright.report import Axis, Chart, Series, draw_chart
from bytewright.storage import atomic

PLOTTED_CONTEXTS = [2**power for power in range(8, 18)]


def print_answer(config: ModelConfig, setup: TrainingSetup, costs: TrainingCosts) -> None:
    """Print what a run needs as one short table, and below it what was assumed."""
    out = console.stdout()
    heads = f"{config.num_heads} heads"
    if config.kv_heads != config.num_heads:
        heads += f" on {config.kv_heads} key heads"
    out.print(
        f"{config.num_layers} layers of width {config.d_model}, {heads}, feed-forward {config.ffn_width} "
        f"({config.ffn}), vocabulary {config.vocab_size:,}, context {config.context_length:,}"
    )
    out.print()
    table = console.table("", "", "")
    for column in table.columns:
        column.justify = "left"
    table.show_header = False
    for row in _answers(config, setup, costs):
        table.add_row(*row)
    out.print(table)


def _answers(
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
    if costs.seconds is None:
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
    out = console.stdout()
    out.print(f"\nDetails, for {account.batch_size:,} x {account.num_tokens:,} tokens at once")
    _print_parameters(out, account)
    _print_flops(out, account)
    _print_memory(out, account, memory, batches)
    _print_inference(out, account)
    _print_updates(out, account)
    if time is not None:
        _print_time(out, account, time)


def _print_parameters(out: Console, account: Account) -> None:
    count = account.parameters
    table = console.table("", "parameters", "share", "fp32", "bf16", title="\nParameters")
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
    for name, number in rows.items():
        share = f"{number / count.total:.1%}"
        style = "bold" if name == "total" else None
        table.add_row(
            name, f"{number:,}", share, format_size(4 * number), format_size(2 * number), style=style
        )
    out.print(table)


def _print_flops(out: Console, account: Account) -> None:
    table = console.table(
        "product", "times", "shape", "FLOP", "share", "causal", title="\nFLOPs of a forward pass, one batch"
    )
    causal = account.causal_flops
    halved = causal.attention_scores + causal.attention_weighting
    for it in account.matmuls:
        of_causal = it.flops
        if it.component in ("attention_scores", "attention_weighting"):
            of_causal = halved // 2
        table.add_row(
            it.name,
            f"{it.times:,}",
            f"({it.m:,} x {it.k:,}) ({it.k:,} x {it.n:,})",
            format_count(it.flops, "FLOP"),
            f"{it.flops / account.flops.forward:.1%}",
            f"{of_causal / causal.forward:.1%}",
        )
    out.print(table)
    totals = console.table("", "every score", "per token", "causal", "per token")
    for name in ("forward", "backward", "training"):
        full, half = getattr(account.flops, name), getattr(causal, name)
        totals.add_row(
            name,
            format_count(full, "FLOP"),
            format_count(full / account.tokens, "FLOP"),
            format_count(half, "FLOP"),
            format_count(half / account.tokens, "FLOP"),
        )
    out.print(totals)


def _print_memory(out: Console, account: Account, memory: str | None, batches: Mapping[str, int]) -> None:
    textbook = account.textbook_memory
    out.print()
    out.print("Memory of training, textbook formula (fp32, AdamW, each tensor counted once)")
    out.print(f"  P = {textbook.parameters_formula} = {textbook.parameters // 4:,}")
    out.print(f"  a = {textbook.per_sequence_formula} = {format_size(textbook.a)} a sequence")
    out.print(f"  b = 16·P = {format_size(textbook.b)}")
    out.print(f"  a·{account.batch_size} + b = {format_size(textbook.peak(account.batch_size))}")
    if memory:
        out.print(f"  largest batch in {memory}: {batches['simplified inventory']:,}")
    headings = ["GB", "peak", "GiB", "at", "weights", "gradients", "state", "kept", "of it T²", "logits"]
    headings += ["other", *([f"largest batch in {memory}"] if memory else [])]
    table = console.table(*headings, title="\nPeak memory of a training step, as implemented (AdamW)")
    for setting, predicted in account.training.items():
        moment = predicted.peak_moment
        part = moment.parts
        squares = part.get("attention matrices", 0)
        kept = part.get("activations", 0) + squares + part.get("weight copies", 0)
        other = part.get("temporaries", 0) + part["workspace"]
        sizes = (part["parameters"], part["gradients"], part["optimizer state"], kept, squares)
        table.add_row(
            setting.name,
            _gigabytes(moment.total),
            f"{moment.total / 2**30:,.2f}",
            moment.name,
            *map(_gigabytes, (*sizes, part.get("logits", 0), other)),
            *([f"{batches[setting.name]:,}"] if memory else []),
        )
    out.print(table)
    _print_kept(out, account)


def _print_kept(out: Console, account: Account) -> None:
    """Print the tensors that one block keeps for the backward pass, reference and fused."""
    for setting in (SETTINGS[0], SETTINGS[-2]):
        out.print()
        out.print(f"Kept by each block for the backward pass: {setting.name}")
        table = console.table("", "bytes")
        for kept in account.training[setting].kept_by_block:
            table.add_row(kept.name, format_size(kept.num_bytes))
        out.print(table)


def _gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.2f}"


def _print_inference(out: Console, account: Account) -> None:
    title = f"\nMemory of generating {account.batch_size:,} x {account.num_tokens:,} tokens"
    table = console.table("", "total", "weights", "keys and values", "logits", title=title)
    for precision, memory in account.inference.items():
        parts = (memory.total, memory.weights, memory.cache, memory.logits)
        table.add_row(precision, *map(format_size, parts))
    out.print(table)
    out.print(f"the last token costs {format_count(account.flops_of_last_token, 'FLOP')}")


def _print_updates(out: Console, account: Account) -> None:
    table = console.table("", "products", "elementwise", "least traffic", title="\nOne update of the weights")
    for name, cost in account.updates.items():
        table.add_row(
            name,
            format_count(cost.matmul_flops, "FLOP"),
            format_count(cost.elementwise_flops, "FLOP"),
            format_size(cost.num_bytes),
        )
    out.print(table)


def _print_time(out: Console, account: Account, time: TimeAccount) -> None:
    device = time.device
    kind = "measured" if device.is_measured else "data sheet"
    out.print()
    out.print(
        f"Time on {device.name} ({kind}: {format_count(device.peak(time.rate), 'FLOP/s')} in {time.rate}, "
        f"{format_count(device.bytes_per_second, 'B/s')}; "
        f"balance {device.balance(time.rate):.0f} FLOP per byte)"
    )
    table = console.table("", "FLOP", "bytes", "FLOP per byte", "least time", "bound by")
    for part in time.parts:
        table.add_row(
            part.name,
            format_count(part.flops, "FLOP"),
            format_size(part.num_bytes),
            f"{part.intensity:.1f}" if part.num_bytes else "",
            _format_step_seconds(part.seconds),
            part.bound,
        )
    out.print(table)
    if time.seconds_per_step is None:
        out.print(
            f"a step: at least {_format_step_seconds(time.least_seconds)}; the efficiency of the "
            f"{account.config.implementation} implementation in {time.rate} was not measured on such a "
            "device; set the share of the peak with --mfu",
            soft_wrap=True,
        )
        return
    out.print(f"a step: {_format_step_seconds(time.seconds_per_step)}")


def _format_step_seconds(seconds: float) -> str:
    return f"{seconds * 1000:,.2f} ms" if seconds < 1 else format_seconds(seconds)


def print_growth(rows: Sequence[Growth]) -> None:
    """Print the shares of the FLOPs for each model and context length."""
    title = "Shares of a forward pass as models and contexts grow"
    table = console.table(
        "model", "context", "FLOP", "projections", "attention", "feed-forward", "head", title=title
    )
    for row in rows:
        shares = [f"{share:.1%}" for share in row.shares().values()]
        table.add_row(row.name, f"{row.context_length:,}", format_count(row.flops.forward, "FLOP"), *shares)
    console.stdout().print(table)


def write_plot(path: Path) -> None:
    """Write a chart of the share of attention over the context length, one line per model."""
    rows = growth(contexts=PLOTTED_CONTEXTS)
    names = dict.fromkeys(row.name for row in rows)
    chart = Chart(
        title="Share of attention in the FLOPs of a forward pass",
        description="Attention grows with the square of the context, everything else in proportion to it.",
        x=Axis("context (tokens)", log=True),
        y=Axis("share of scores and weighting", limits=(0.0, 1.0)),
        series=[
            Series(
                name,
                [(row.context_length, row.shares()["attention"]) for row in rows if row.name == name],
            )
            for name in names
        ],
        ordered=True,
    )
    atomic.write_text(path, draw_chart(chart))

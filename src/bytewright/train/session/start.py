"""Start or continue a run: `train` creates a folder, `resume` continues from its last checkpoint.

Config, data, disk space, predicted memory and, on several ranks, their equality are checked before anything
is written. `loop` then takes the steps.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict, Unpack

from rich.console import Console

from bytewright.errors import BytewrightError, StorageError, UsageError, is_out_of_memory
from bytewright.model.fused import LanguageModelLoss as Loss
from bytewright.optim.build import OptimizerFactory
from bytewright.parallel.rank_group import RankGroup
from bytewright.storage import atomic
from bytewright.train import run_files, setup
from bytewright.train.checkpoint import SavedState
from bytewright.train.config import TrainConfig
from bytewright.train.recipe import to_plain
from bytewright.train.session.console import Display, import_summary_writer
from bytewright.train.session.costs import check_memory
from bytewright.train.session.engine import CompiledStepCache, check_strategy
from bytewright.train.session.initial_weights import InitialWeights, read_recorded
from bytewright.train.session.loop import Probe, TextSampler, Trainer, TrainResult
from bytewright.train.session.part_check import check_parts
from bytewright.train.session.ranks import (
    check_same,
    check_shares,
    open_writer,
    recorded_threads,
    use_threads,
)
from bytewright.train.session.recorder import TrainState
from bytewright.train.session.resume_policy import (
    change_config,
    check_not_finished,
    check_saved,
    find_step_to_continue,
)


class SessionOptions(TypedDict, total=False):
    """Optional arguments of `train` and `resume`; only `loss` and `optimizer` change what is learned."""

    console: Console
    """Where the display writes; standard output by default."""
    display: Callable[[Console, str], Display]
    """Makes the display from the console and a title."""
    sample: TextSampler | None
    """Writes the samples of `sample_every`; by default the model continues `sample_prompt`."""
    probe: Probe | None
    loss: Loss | None
    """Replaces the loss of the config, in training and evaluation; the run does not record it."""
    optimizer: OptimizerFactory | None
    """Builds any `torch.optim.Optimizer` from model and config, instead of the one that the config names. A
    resume needs it too; the run does not record it. A registered optimizer has neither disadvantage."""
    engines: CompiledStepCache | None
    """Reuses the compiled step of the previous run; without it, every run compiles its own."""
    final_checkpoint: bool
    """Whether the end of the run is saved; False if only the metrics are of interest."""
    clock: Callable[[], float]
    """Returns seconds; `time.perf_counter` by default."""
    ranks: RankGroup
    """The ranks that train the run; by default those of torchrun, or without it this process."""


def train(
    config: TrainConfig,
    run: atomic.StrPath,
    *,
    init: InitialWeights | atomic.StrPath | None = None,
    **options: Unpack[SessionOptions],
) -> TrainResult:
    """Train a model in the new folder `run`; check the config, the data and the disk before creating it.

    `init` names the model whose weights the run starts from, instead of random ones: see `InitialWeights`.
    """
    run = Path(run)
    with contextlib.ExitStack() as stack:
        if "ranks" not in options:
            options["ranks"] = stack.enter_context(RankGroup.open())
        ranks = options["ranks"]
        if ranks.restart_count and (run / run_files.CONFIG).exists():
            return _restart(config, run, **options)
        stack.enter_context(use_threads(config.parallel.threads))
        return _train(config, run, init, **options)


def _restart(config: TrainConfig, run: Path, **options: Unpack[SessionOptions]) -> TrainResult:
    """Resume the run that torchrun started with this config before a rank failed."""
    with options["ranks"].agree():
        if to_plain(run_files.read_run_config(run), run=run) != to_plain(config, run=run):
            message = "holds another run than the one that torchrun starts again; choose another folder"
            raise UsageError.at(run, message)
    return resume(run, **options)


def _train(
    config: TrainConfig,
    run: Path,
    init: InitialWeights | atomic.StrPath | None,
    **options: Unpack[SessionOptions],
) -> TrainResult:
    ranks = options["ranks"]
    with ranks.agree():
        inputs = setup.open_inputs(config)
        if init is not None:
            if not isinstance(init, InitialWeights):
                init = InitialWeights.read(init, mapped=is_sharded(config))
            fitted = init.fit(config.model, inputs)
        sampler = setup.make_window_sampler(config, inputs)
        if options.get("sample") is None:
            options["sample"] = setup.text_sampler_of(config, inputs)
        check_parts(config, setup.select_device(config.device))
        if config.tensorboard:
            import_summary_writer()
        check_shares(config, ranks)
        check_strategy(config, options.get("optimizer"))
        if ranks.is_main:
            run_files.check_new_run(run)
            setup.check_checkpoint_space(run, config)
            if ranks.num_ranks == 1:
                check_memory(config)
    check_same(ranks, config, inputs)
    config = dataclasses.replace(config, data=config.data.absolute())
    try:
        described = None if init is None else init.describe(run)
        with open_writer(
            ranks, run, lambda: run_files.RunWriter.create(run, config, init=described)
        ) as writer:
            if inputs.vocabulary is not None:
                writer.write_tokenizer(inputs.vocabulary)
            trainer = Trainer(config, inputs, sampler, writer, **options)
            if init is not None:
                try:
                    trainer.start_from(fitted)
                except BytewrightError:
                    if ranks.is_main:  # the state of another optimizer: nothing has been computed yet
                        run_files.discard_run(run)
                    raise
                del init, fitted  # as large as the model
            return trainer.run()
    except (MemoryError, RuntimeError) as error:
        if ranks.is_main and is_out_of_memory(error) and not run_files.has_records(run):
            # Nothing is lost, and the same folder can be used with a smaller batch.
            run_files.discard_run(run)
        raise


def resume(
    run: atomic.StrPath, *, changes: Mapping[str, Any] | None = None, **options: Unpack[SessionOptions]
) -> TrainResult:
    """Continue the run in the folder `run` from its last checkpoint, or from step 0 if it has none.

    A run that has ended and has no checkpoint raises `UsageError`: resuming it would erase its metrics.
    `changes`, such as `{"budget.steps": 2000}`, replaces values of its config: see `resume_policy`.
    """
    run = Path(run)
    with contextlib.ExitStack() as stack:
        if "ranks" not in options:
            options["ranks"] = stack.enter_context(RankGroup.open())
        ranks = options["ranks"]
        writer = stack.enter_context(open_writer(ranks, run, lambda: run_files.RunWriter.open(run)))
        with ranks.agree():
            config, inputs, saved, progress = _read_saved_run(writer, changes, ranks)
            check_strategy(config, options.get("optimizer"))
            sampler = setup.make_window_sampler(config, inputs)
            if options.get("sample") is None:
                options["sample"] = setup.text_sampler_of(config, inputs)
        check_same(ranks, config, inputs, progress.step)
        if changes:  # after all checks; a kill between the two leaves the run with its former length
            writer.checkpoints.remove_after(progress.step)
            writer.write_config(config)
        if inputs.vocabulary is not None:  # a run killed in its first moments has not stored it yet
            writer.write_tokenizer(inputs.vocabulary)
        stack.enter_context(use_threads(recorded_threads(run, config)))
        trainer = Trainer(config, inputs, sampler, writer, **options)
        if saved is not None:
            saved.load_into(trainer.model, trainer.optimizer, trainer.rows)
            trainer.progress = progress
            del saved  # as large as the model and its optimizer
        elif (init := read_recorded(run, mapped=is_sharded(config))) is not None:
            trainer.start_from(init.fit(config.model, inputs))
        is_restart = trainer.progress.step == 0 and run_files.has_records(run)
        return trainer.run(environment_changes=run_files.find_environment_changes(run), is_restart=is_restart)


def _read_saved_run(
    writer: run_files.RunWriter, changes: Mapping[str, Any] | None, ranks: RankGroup
) -> tuple[TrainConfig, setup.Inputs, SavedState | None, TrainState]:
    """Return the config, the data and the checkpoint that a run continues from, all checked."""
    run = writer.path
    config = run_files.read_run_config(run)
    check_not_finished(writer, config)
    if changes:
        config = change_config(config, changes, run)
    check_shares(config, ranks)
    try:
        inputs = setup.open_inputs(config)
    except StorageError as error:
        if error.errno == errno.ENOENT:
            advice = f"`bytewright resume {run} --set data.train=…`"
            error.args = (f"{error}; if the run or its data was moved, name the new place: {advice}",)
        raise
    step = find_step_to_continue(writer.checkpoints, config, run) if changes else None
    mapped = is_sharded(config)
    checkpoints = writer.checkpoints
    saved = checkpoints.read_last(mapped=mapped) if step is None else checkpoints.read(step, mapped=mapped)
    return config, inputs, saved, check_saved(saved, config, inputs, run)


def is_sharded(config: TrainConfig) -> bool:
    """Return whether a rank holds a share of the model only, so it must not read all into memory."""
    return config.parallel.strategy == "shard"

"""The training loop: run steps until the budget is spent; record, evaluate, sample and save when due.

`start` opens or creates a run and calls `Trainer.run`. The batch and the learning rate of a step depend on
its number alone. Everything else that the next step depends on is in the checkpoint. So a run that is killed
at any moment and resumed has the same weights, optimizer state and metrics as an uninterrupted one, except
`metrics.MEASURED_FIELDS`. `step` computes one update, `recorder` and `checkpoint` store results, `outcome`
names why a run ended. This module decides *when* each of them acts.

Under torchrun every rank executes this loop with its share of each batch; `ranks` describes what differs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import math
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from bytewright.account import flops_utilisation, peak_flops
from bytewright.account.flops import extra_loss_flops
from bytewright.data.sampler import Batch, DocumentSampler, TokenStore, WindowSampler
from bytewright.errors import DivergenceError, StorageError, UsageError, first_line, is_out_of_memory
from bytewright.model import TransformerLM
from bytewright.model.fused import LanguageModelLoss as Loss
from bytewright.optim.build import OptimizerFactory, has_built_in_rule, read_peak_rates, set_rates
from bytewright.parallel.rank_group import RankGroup
from bytewright.system import keep_freed_memory, pause_garbage_collection, return_freed_memory
from bytewright.train import outcome
from bytewright.train.checkpoint import check_savable, load_weights
from bytewright.train.config import LossConfig, TrainConfig
from bytewright.train.evaluate import EVALUATED_AT_ONCE, Evaluation, EvaluationSet
from bytewright.train.metrics import RANK_MEMORY, RANK_SENT
from bytewright.train.metrics_log import MetricsLog
from bytewright.train.recipe import to_plain
from bytewright.train.run_files import RunWriter
from bytewright.train.session.console import Display, TensorBoard, make_display
from bytewright.train.session.costs import describe_costs
from bytewright.train.session.engine import CompiledStepCache, StepParts
from bytewright.train.session.initial_weights import InitialWeights, load_optimizer_state
from bytewright.train.session.ranks import Decision, SilentLog, agree_on, check_same_weights
from bytewright.train.session.recorder import Recorder, StepPlanner, TrainState
from bytewright.train.session.resume_policy import find_step_before_decay
from bytewright.train.setup import Inputs, seed_step, select_device
from bytewright.train.step import has_own_modules

TextSampler = Callable[[TransformerLM, int], str]
"""Returns text of the model at a step; must be deterministic and not change the global random state."""

Probe = Callable[[TransformerLM], Mapping[str, float]]
"""Returns further metrics of the model at every evaluation; must be as deterministic as a sampler."""


@dataclass(frozen=True)
class TrainResult:
    """How a session ended."""

    run: Path
    step: int
    validation_loss: float | None
    best_step: int | None
    ending: outcome.Ending
    received: signal.Signals | None
    """The signal that ended the session, or None if the run is complete."""
    num_new_steps: int
    """Steps that this session took; 0 if the run was complete before."""


class Trainer:
    """One session of a run: from its last checkpoint to the end of the budget, or to a signal."""

    def __init__(
        self,
        config: TrainConfig,
        inputs: Inputs,
        sampler: WindowSampler | DocumentSampler,
        writer: RunWriter,
        *,
        console: Console | None = None,
        display: Callable[[Console, str], Display] = make_display,
        sample: TextSampler | None = None,
        probe: Probe | None = None,
        loss: Loss | None = None,
        optimizer: OptimizerFactory | None = None,
        engines: CompiledStepCache | None = None,
        final_checkpoint: bool = True,
        clock: Callable[[], float] = time.perf_counter,
        ranks: RankGroup | None = None,
    ) -> None:
        self.config, self.inputs, self.sampler, self.writer = config, inputs, sampler, writer
        self.console, self.display, self.ranks = console or Console(), display, ranks or RankGroup()
        self.sample, self.probe, self.final_checkpoint, self.clock = sample, probe, final_checkpoint, clock
        self.device = self.ranks.connect(select_device(config.device))
        engines = engines or CompiledStepCache()
        parts = StepParts(loss, inputs.is_masked, optimizer)
        engines.make_room(config, self.device, parts)
        self.store = TokenStore(inputs.train, self.device, mask=inputs.train_mask)
        self.validation = self._open_validation()
        # The memory of the data, which is loaded already, does not count.
        self.engine = engine = engines.engine_for(config, self.device, parts, self.ranks)
        self.model, self.optimizer, self.rows = engine.model, engine.optimizer, engine.rows
        self.train_step, self.memory = engine.step, engine.memory
        stores = [self.store, *([self.validation.store] if self.validation else [])]
        self.memory.leave_out(sum(store.num_resident_bytes for store in stores))
        # Built-in parts draw no random numbers in a step; those of a user may, such as dropout.
        has_own_loss = loss is not None or config.loss.name != LossConfig.name
        has_own_part = has_own_loss or has_own_modules(self.model)
        self._is_seeded = has_own_part or not has_built_in_rule(self.optimizer)
        self.peak_rates = read_peak_rates(self.optimizer)
        self.progress = TrainState(num_steps=config.num_steps)
        self.evaluation: Evaluation | None = None
        self._factor = 0.0
        self._session_steps = 0
        self._num_bytes_sent = 0
        self._has_new_weights = False

    def start_from(self, init: InitialWeights) -> None:
        """Replace the random weights by those of another model, and save them before the first step."""
        if init.optimizer is not None:
            if self.rows is not None:
                message = 'its optimizer state cannot be loaded with parallel.strategy = "shard"'
                message += '; use "replicate" for the first step'
                raise UsageError.at(init.source, message, key="parallel.strategy")
            load_optimizer_state(self.optimizer, init.optimizer, init.source)
        if self.rows is not None:
            self.rows.load_weights(init.weights, self.model)
        else:
            load_weights(self.model, init.weights, str(init.source))
        self._has_new_weights = True

    def _open_validation(self) -> EvaluationSet | None:
        if self.inputs.validation is None:
            return None
        return EvaluationSet(
            self.inputs.validation,
            self.device,
            context_length=self.config.model.context_length,
            batch_size=max(
                self.config.batch_size // self.config.accumulate,
                EVALUATED_AT_ONCE // self.config.model.context_length,
            ),
            starts=self.inputs.validation_starts,
            max_tokens=self.config.eval_tokens,
            token_bytes=self.inputs.token_bytes,
            mask=self.inputs.validation_mask,
        )

    def run(
        self, *, environment_changes: Mapping[str, Any] | None = None, is_restart: bool = False
    ) -> TrainResult:
        """Train until the budget is spent or a signal arrives; record why the session ended.

        `is_restart` means that an earlier session left no checkpoint, so its steps are lost.
        """
        self.writer.write_costs(describe_costs(self.config, self.device))
        with contextlib.ExitStack() as stack:
            metrics, position = self.writer.metrics, self.progress.metrics_position
            log = MetricsLog(metrics, position) if self.ranks.is_main else SilentLog(metrics)
            stack.callback(log.close)
            self._open_recorder(log, stack, is_restart)
            if environment_changes and self._find_ending() is None:
                self.recorder.event("environment_changed", changes=environment_changes)
            stack.enter_context(pause_garbage_collection())
            if self.device.type == "cpu":
                stack.enter_context(keep_freed_memory())
            signals = stack.enter_context(outcome.StopSignals())
            try:
                ending = self._take_steps(signals)
                self._record_ending(log, ending, signals)
            except BaseException as error:
                if log.position or not is_out_of_memory(error):  # `train` discards a run without records
                    self._record_ending(log, outcome.ending_of_error(error), signals, error)
                raise
            finally:
                self.writer.check_unchanged()  # also if a write failed for that reason, to name the folder
        return TrainResult(
            self.writer.path,
            self.progress.step,
            None if self.evaluation is None else self.evaluation.loss,
            self.progress.best_step,
            ending,
            signals.received if ending is outcome.Ending.SIGNAL else None,
            self._session_steps,
        )

    def _open_recorder(self, log: MetricsLog, stack: contextlib.ExitStack, is_restart: bool) -> None:
        peak = peak_flops(self.device, self.config.precision)
        of_loss = extra_loss_flops(self.config.model, self.config.loss.name, self.config.loss.options)
        self.recorder = Recorder(
            self.progress,
            log,
            windows_of=lambda step: self.sampler.windows(step - 1).tolist(),
            tokens_per_step=self.config.tokens_per_step,
            max_refused=self.config.max_refused,
            peak_memory=self.memory.peak,
            utilisation=lambda speed: flops_utilisation(
                self.config.model, speed / self.ranks.num_ranks, peak, of_loss=of_loss
            ),
            clock=self.clock,
        )
        # Rank 0 alone cannot evaluate a sharded model; the planner then waits for the first evaluation.
        validation = None if self.rows else self.validation
        self.planner = StepPlanner(self.config, self.recorder, validation, self.train_step.measure)
        if self.config.tensorboard and self.ranks.is_main:
            board = TensorBoard(self.writer.path / "tensorboard", self.progress.step + 1)
            stack.callback(board.close)
            self.recorder.others.append(board)
        num_parameters = sum(parameter.numel() for parameter in self.model.parameters())
        title = f"{self.writer.path.name}: {num_parameters:,} parameters on {self.device}"
        if self.ranks.num_ranks > 1:
            title += f", {self.ranks.num_ranks} ranks"
        if self.progress.step:
            title += f", from step {self.progress.step:,} on"
        elif is_restart:
            title += ", again from step 0: no checkpoint was saved"
        if self.ranks.is_main:
            self.recorder.display = self.display(self.console, title)
            stack.callback(self.recorder.display.close)

    def _take_steps(self, signals: outcome.StopSignals) -> outcome.Ending:
        if self._has_new_weights:
            self._save()
        ending = self._decide_with_others(signals).ending
        while ending is None:
            self._advance()
            # Once per step, because the deadline can pass between two checks.
            decision = self._decide_with_others(signals)
            ending = decision.ending
            if ending and self.progress.step != self.progress.num_steps:
                self.recorder.event("budget_exhausted")
            saved = self._run_due_actions(is_last=ending is not None)
            # A rank alone must not act on a signal that arrived since all ranks decided.
            received = signals.received if self.ranks.num_ranks == 1 else decision.received
            if received and ending is None:
                ending, signals.received = outcome.Ending.SIGNAL, received
                if not saved:
                    self._save()
                    if self.progress.since_line:
                        self._record_stop()
        return ending

    def _decide_with_others(self, signals: outcome.StopSignals) -> Decision:
        """Return what all ranks do after this step; adopt the length that rank 0 has planned for the run."""
        own = Decision(self._find_ending(), self.progress.num_steps, signals.received)
        decision = agree_on(self.ranks, own)
        if decision.num_steps is not None and decision.num_steps != self.progress.num_steps:
            self.progress.set_length(decision.num_steps)
        return decision

    def _find_ending(self) -> outcome.Ending | None:
        return outcome.find_budget_ending(
            self.config,
            step=self.progress.step,
            num_steps=self.progress.num_steps,
            seconds=self.recorder.seconds(),
        )

    def _record_ending(
        self,
        log: MetricsLog,
        ending: outcome.Ending,
        signals: outcome.StopSignals,
        error: BaseException | None = None,
    ) -> None:
        """Record and show the event `ended`; it follows the last checkpoint, so a resume truncates it."""
        fields: dict[str, Any] = {"step": self.progress.step, "event": "ended", "ending": ending.value}
        if ending in outcome.BUDGET_ENDINGS:
            fields["limit"] = getattr(self.config.budget, ending.value)
        elif ending is outcome.Ending.SIGNAL:
            fields["detail"] = (signals.received or signal.SIGINT).name
        elif isinstance(error, DivergenceError) and error.key == "weights":
            fields["limit"] = error.found
        elif error is not None and ending is not outcome.Ending.DIVERGED:
            fields["detail"] = first_line(error)
        with contextlib.suppress(StorageError):  # a full disk: the status then follows from the other lines
            log.write_last(fields)
        if self.recorder.display:
            self.recorder.display.record(fields, self.progress.num_steps)

    def _advance(self) -> None:
        """Make the next update; its result stays on the device."""
        step = self.progress.step
        self._factor = self.config.schedule.planned_factor(step + 1, self.progress.plan)
        set_rates(self.optimizer, self.peak_rates, self._factor)
        if self._is_seeded:
            seed_step(self.config, step)
            self.train_step.seed_part = functools.partial(seed_step, self.config, step)
        sent_before = self.ranks.num_bytes_sent
        self.recorder.add(step + 1, self.train_step(self._batches(step)))
        self._num_bytes_sent = self.ranks.num_bytes_sent - sent_before
        self.progress.step += 1
        self._session_steps += 1
        if self._session_steps == 1 and not has_built_in_rule(self.optimizer):
            check_savable(self.optimizer)  # the first step has created its state
        if not self.memory.has_begun:
            self.memory.begin()
        if self.config.num_steps is None and self.ranks.is_main:
            self.planner.check(self._session_steps)

    def _batches(self, step: int) -> list[Batch]:
        """Return the parts of the batch of a step, counted from 0, that this rank computes."""
        starts = self.sampler.starts(step)
        size = self.config.batch_size // self.config.accumulate
        return [
            self.store.batch(starts[part * size : (part + 1) * size], self.config.model.context_length)
            for part in self.train_step.part_numbers(self.config.accumulate // self.ranks.num_ranks)
        ]

    def _run_due_actions(self, *, is_last: bool) -> bool:
        """Evaluate, record, sample and save if due after this step; return whether it was saved."""
        config, step = self.config, self.progress.step

        def due(every: int) -> bool:
            return bool(every) and (is_last or step % every == 0)

        if is_last:
            self._check_learned()
        save_due = due(config.save_every) and (self.final_checkpoint or not is_last)
        if save_due and not is_last:
            self.recorder.process_results()
            # After a refused step the weights may be broken: keep the existing checkpoints.
            save_due = not self.progress.refused_in_a_row
        evaluation = None
        if self.validation and (save_due or due(config.eval_every)):
            with self.recorder.untimed(), self._separate_memory():
                evaluation = self.evaluation = self.validation.evaluate(
                    self.train_step.measure, ranks=self.ranks, is_sharded=self.rows is not None
                )
        if evaluation or save_due or due(config.log_every) or due(config.norms_every):
            self._record(evaluation, with_norms=due(config.norms_every), is_last=is_last)
        if self.sample and due(config.sample_every):
            with self.recorder.untimed(), self._separate_memory():
                model = self.engine.gather_model(self.config, self.ranks)
                if model is not None:
                    self.writer.write_sample(step, self._write_text(self.sample, model))
        if save_due:
            self._update_best(evaluation)
            self._save()
        elif is_last:
            self.recorder.flush()  # the records must survive a power cut, as those before a checkpoint do
        return save_due

    def _check_learned(self) -> None:
        """Raise `DivergenceError` at the end of a run whose weights are not finite, or that accepted no step.

        A run can be shorter than `max_refused`, and the update of its last step can overflow.
        """
        self.recorder.process_results()
        refused = self.progress.refused_in_a_row
        is_broken = not all(bool(torch.isfinite(weights).all()) for weights in self.engine.own_weights())
        if self.ranks.largest([is_broken])[0] or refused >= self.progress.step:
            cause = "the weights are not finite"
            if refused:
                cause = f"the last {refused} steps had a loss or gradient that is not finite"
            message = f"{cause}, so the model cannot be used; train with a lower learning rate"
            raise DivergenceError.at(self.writer.path, message, key="weights", found=refused)

    def _separate_memory(self) -> contextlib.AbstractContextManager[None]:
        """Return a context for work between steps, whose memory is not added to that of steps on a CPU."""
        return return_freed_memory() if self.device.type == "cpu" else contextlib.nullcontext()

    def _write_text(self, sample: TextSampler, model: TransformerLM) -> str:
        try:
            return sample(model, self.progress.step)
        except DivergenceError as error:  # the loss shows whether the run has diverged
            return f"{error}\n"

    def _record(self, evaluation: Evaluation | None, *, with_norms: bool, is_last: bool) -> None:
        extra: dict[str, Any] = {"is_last": True} if is_last else {}
        if self.ranks.num_ranks > 1:
            extra[RANK_MEMORY] = self.ranks.gather(self.memory.peak())
            extra[RANK_SENT] = self._num_bytes_sent
        if with_norms and (self.rows or self.ranks.is_main):
            with self.recorder.untimed(), self._separate_memory():
                first = self.sampler.starts(self.progress.step - 1)[:1]
                ids, _ = self.store.batch(first, self.config.model.context_length)
                extra |= self.engine.measure_norms(ids)
        if evaluation and self.probe:
            with self.recorder.untimed(), self._separate_memory():
                model = self.engine.gather_model(self.config, self.ranks)
                extra |= {} if model is None else self.probe(model)
        self.recorder.line(lr=self.config.optimizer.lr * self._factor, evaluation=evaluation, extra=extra)

    def _record_stop(self) -> None:
        """Record the last step after the checkpoint, in the log only: a resume truncates it."""
        lr = self.config.optimizer.lr * self._factor
        self.recorder.line(lr=lr, evaluation=None, extra={}, in_log_alone=True)

    def _update_best(self, evaluation: Evaluation | None) -> None:
        best = self.progress.best_loss
        if evaluation and math.isfinite(evaluation.loss) and (best is None or evaluation.loss < best):
            self.progress.best_step, self.progress.best_loss = self.progress.step, evaluation.loss

    def _save(self) -> None:
        """Write the checkpoint of this step, and remove those that are no longer needed."""
        self.writer.check_unchanged()
        if self.config.parallel.strategy == "replicate":
            check_same_weights(self.ranks, self.model)
        with self.recorder.untimed():
            self.recorder.flush()
            state = dataclasses.asdict(self.progress)
            config = to_plain(self.config, run=self.writer.path)
            state |= {"data": dict(self.inputs.identity), "config": config}
            self.writer.checkpoints.save(self.model, self.optimizer, state, self.rows)
            if not self.progress.refused_in_a_row:
                checkpoints = self.writer.checkpoints
                undecayed = find_step_before_decay(checkpoints.steps(), self.config)
                checkpoints.prune(self.config.keep_last, self.progress.best_step, undecayed)
            gc.collect()  # garbage collection is paused while steps run

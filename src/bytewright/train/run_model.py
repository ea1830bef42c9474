"""The models of runs: open one by its path, measure it on a token file, and import one of another program.

A path means the best or last checkpoint of a run or of an imported model, or one checkpoint.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bytewright.data.tokenfile import TokenFile
from bytewright.errors import FormatError, UsageError
from bytewright.formatting import Progress
from bytewright.model import TransformerLM, language_model_loss
from bytewright.model.fused import masked_language_model_loss
from bytewright.model.hf_llama import read_llama
from bytewright.plugins import check_loaded
from bytewright.registry import accepting_unknown_parts
from bytewright.storage import atomic
from bytewright.train import run_files
from bytewright.train.checkpoint_list import CHECKPOINTS, Which
from bytewright.train.config import DeviceName, Precision, TrainConfig, Windows
from bytewright.train.evaluate import Evaluation, EvaluationSet
from bytewright.train.recipe import read_config
from bytewright.train.run import Run
from bytewright.train.run_files import find_checkpoint
from bytewright.train.saved_model import load_model, read_model_config
from bytewright.train.session.initial_weights import InitialWeights
from bytewright.train.setup import count_token_bytes, dtype_of, open_tokens, select_device

if TYPE_CHECKING:
    from bytewright.tokenizer import Vocabulary  # at run time only if a model has a tokenizer

BATCH_SIZE = 32
"""Windows that `evaluate_run` evaluates at a time."""


@dataclass(frozen=True)
class SavedModel:
    """A checkpoint on disk, and the run that it belongs to; an imported model has no config."""

    checkpoint: Path
    run: Run

    @property
    def config(self) -> TrainConfig | None:
        """The config of the run, or None for an imported model or a checkpoint outside a run.

        Plugins that registered only parts of the training, such as an optimizer, need not be loaded.
        """
        if not self.run.exists:
            return None
        with accepting_unknown_parts():
            return read_config(self.run.path / run_files.CONFIG)

    @property
    def training_precision(self) -> Precision:
        """The precision that the model was trained in; fp32 if it is not on record."""
        return self.config.precision if self.config else "fp32"

    def generation_precision(self, device: torch.device) -> Precision:
        """Return the precision to generate in: on a GPU that of training, elsewhere fp32.

        On a CPU, bf16 is slower than fp32.
        """
        return self.training_precision if device.type == "cuda" else "fp32"

    def load(self, *, device: torch.device | str = "cpu", precision: Precision = "fp32") -> TransformerLM:
        """Load the model."""
        return load_model(self.checkpoint, device=device, compute_dtype=dtype_of(precision))


def open_model(path: atomic.StrPath, *, which: Which = "best") -> SavedModel:
    """Find the model that `path` means: a run, an imported model, or the folder of one checkpoint.

    The plugins that registered parts of the model must be loaded.
    """
    checkpoint = find_checkpoint(path, which=which)
    folder = checkpoint.absolute().parent
    if folder.name != CHECKPOINTS:  # outside a run, without config and tokenizer
        return SavedModel(checkpoint, Run(checkpoint))
    check_loaded(folder.parent, of_model_only=True)
    return SavedModel(checkpoint, Run(folder.parent))


@dataclass(frozen=True)
class RecordedLoss:
    """The validation figures that training recorded at the step of a checkpoint."""

    step: int
    validation_loss: float
    bits_per_byte: float | None
    eval_tokens: int
    """How many tokens of the validation data training measures at most."""
    windows: Windows
    """Where training's windows begin; those of `evaluate_run` are side by side."""


@dataclass(frozen=True)
class RunEvaluation:
    """The evaluation of one checkpoint on one token file."""

    checkpoint: Path
    file: Path
    evaluation: Evaluation
    recorded: RecordedLoss | None
    """None if training did not evaluate this checkpoint on this file."""


def evaluate_run(
    path: atomic.StrPath,
    file: Path | None = None,
    *,
    which: Which = "best",
    device: DeviceName = "auto",
    progress: Progress | None = None,
) -> RunEvaluation:
    """Evaluate a saved model on a token file, by default the validation data of its run.

    The windows are side by side from the start of the file; the tokens after the last whole window are left
    out. The precision is that of training. A file that another tokenizer encoded raises `FormatError`. If the
    file has a mask, only the tokens that it selects count.
    """
    saved = open_model(path, which=which)
    config = saved.config
    file = file or (config.data.validation if config else None)
    if file is None:
        raise UsageError(f"{path} has no validation data of its own; name a token file to evaluate on")
    model_config = read_model_config(saved.checkpoint)
    tokenizer = saved.run.tokenizer_path or "the tokenizer of the model"
    tokens = open_tokens(file, model_config, f"encode the text with {tokenizer}")
    token_bytes = _find_token_bytes(saved, tokens)
    target = select_device(device)
    model = saved.load(device=target, precision=saved.training_precision)
    evaluation_set = EvaluationSet(
        tokens.tokens,
        target,
        context_length=model_config.context_length,
        batch_size=BATCH_SIZE,
        token_bytes=token_bytes,
        mask=tokens.mask,
    )
    loss = language_model_loss if tokens.mask is None else masked_language_model_loss
    with torch.no_grad():
        evaluation = evaluation_set.evaluate(lambda ids, targets: loss(model, ids, targets), progress)
    is_own = config and config.data.validation and file.resolve() == config.data.validation.resolve()
    recorded = _find_recorded_loss(saved, config) if config and is_own else None
    return RunEvaluation(saved.checkpoint, file, evaluation, recorded)


def _find_token_bytes(saved: SavedModel, tokens: TokenFile) -> Any:
    """Return the bytes of each token if the run has its tokenizer; reject tokens of another tokenizer."""
    from bytewright.tokenizer.formats import read_vocabulary_of

    if saved.run.tokenizer_path is not None:
        return count_token_bytes(read_vocabulary_of(tokens, saved.run.tokenizer_path))
    if saved.config and saved.config.data.train.exists():
        tokens.require_tokenizer(type(tokens).open(saved.config.data.train).manifest.tokenizer_fingerprint)
    return None


def _find_recorded_loss(saved: SavedModel, config: TrainConfig) -> RecordedLoss | None:
    with contextlib.suppress(FormatError):  # damaged metrics do not change the evaluation
        for record in saved.run.records:
            step, loss = record["step"], record.get("validation_loss")
            if isinstance(loss, float) and saved.checkpoint.name == f"step-{step:06d}":
                bits = record.get("bits_per_byte")
                return RecordedLoss(step, loss, bits, config.eval_tokens, config.data.windows)
    return None


class _NoOptimizer:
    """The optimizer of an imported model: it has no state."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: Any) -> None:
        pass


def import_llama(folder: atomic.StrPath, path: atomic.StrPath, *, with_tokenizer: bool = True) -> Run:
    """Read a Hugging Face Llama folder and write it as a run; raise if model or tokenizer are unsupported."""
    from bytewright.tokenizer.formats import read_huggingface

    folder, path = Path(folder), Path(path)
    run_files.check_new_run(path)
    model = read_llama(folder)
    vocabulary = read_huggingface(folder / "tokenizer.json") if with_tokenizer else None
    if vocabulary is not None and vocabulary.size > model.config.vocab_size:
        message = (
            f"{folder}: the tokenizer has ids up to {vocabulary.size - 1}, but the model has only"
            f" {model.config.vocab_size} ids; use the tokenizer of this model, or import without a tokenizer"
        )
        raise UsageError(
            message, path=folder, key="vocab_size", expected=vocabulary.size, found=model.config.vocab_size
        )
    return write_imported_model(path, model, vocabulary, source=folder)


def write_imported_model(
    path: Path, model: TransformerLM, vocabulary: Vocabulary | None, *, source: Path | None = None
) -> Run:
    """Write a model as a run without training: one checkpoint, of step 0, and a tokenizer, but no config.

    `source` is recorded as the origin of the weights. After an error nothing is left of the run.
    """
    from bytewright.tokenizer.formats import write_bytewright

    run_files.check_new_run(path)
    with atomic.explain("write", path):
        path.mkdir(parents=True, exist_ok=True)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    costs = {"predicted": {}, "counted": {"parameters": num_parameters}}
    run = Run(path)
    with contextlib.ExitStack() as on_error:
        on_error.callback(run_files.discard_run, path)
        atomic.write_document(path / run_files.ENVIRONMENT, run_files.describe_environment(), within=path)
        atomic.write_document(path / run_files.COSTS, costs, within=path)
        if source is not None:
            init = InitialWeights(source=source, weights=model.state_dict())
            atomic.write_document(path / run_files.INIT, init.describe(path), within=path)
        if vocabulary is not None:
            write_bytewright(vocabulary, path / run_files.TOKENIZER, within=path)
        run.checkpoints.save(model, _NoOptimizer(), {"step": 0})
        on_error.pop_all()
    return run

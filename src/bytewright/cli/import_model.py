"""`bytewright import`: read a model that `transformers` wrote."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from bytewright.cli import inputs, options
from bytewright.errors import UsageError
from bytewright.storage import atomic


@dataclass(frozen=True, kw_only=True)
class ImportModel:
    """Read a Llama from a folder of `transformers`, and write it as a run that can write and be measured.

    The folder holds config.json, model.safetensors (or several files and model.safetensors.index.json) and
    tokenizer.json (byte-level BPE). What our model or tokenizer cannot do is refused. The run has no record
    of training, so it cannot be resumed.

    For example:
      bytewright import base-hf --out runs/imported
      bytewright generate runs/imported --prompt 'Once upon a time'
    """

    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
    """The folder to read."""

    out: options.OutputFolder
    """The folder of the run to write."""

    without_tokenizer: bool = False
    """Read the model alone; it can then be measured on token files but not write text."""

    def run(self) -> None:
        """Read, and write."""
        from bytewright.cli import console
        from bytewright.model.hf_llama import read_llama
        from bytewright.tokenizer.files import read_huggingface, write_folder
        from bytewright.train.checkpoint import CheckpointFolder
        from bytewright.train.run import refuse_existing_run

        refuse_existing_run(self.out)
        model = read_llama(inputs.require_exists(self.path))
        vocabulary = None if self.without_tokenizer else read_huggingface(self.path / "tokenizer.json")
        if vocabulary is not None and vocabulary.size > model.config.vocab_size:
            raise UsageError(
                f"{self.path}: the tokenizer has ids up to {vocabulary.size - 1}, the model only "
                f"{model.config.vocab_size} of them"
            )
        with atomic.explain("write", self.out):
            self.out.mkdir(parents=True, exist_ok=True)
        if vocabulary is not None:
            write_folder(vocabulary, self.out / "tokenizer", within=self.out)
        CheckpointFolder(self.out / "checkpoints").save(model, NoOptimizer(), {"step": 0})
        sentence = f"Wrote {self.out}: {sum(p.numel() for p in model.parameters()):,} parameters."
        console.stdout().print(sentence, soft_wrap=True)


class NoOptimizer:
    """Stands where a checkpoint keeps the state of an optimizer; there was none."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def load_state_dict(self, state_dict: Any) -> None:
        """Take nothing."""

"""`bytewright export` and `bytewright import`: exchange models with Hugging Face's `transformers`."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from bytewright.cli import console, options
from bytewright.corpus import END_OF_TEXT
from bytewright.errors import UsageError
from bytewright.storage import atomic

if TYPE_CHECKING:
    from bytewright.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Export:
    """Write the model of a run and its tokenizer as a folder that `transformers` can load.

    It is loaded as a LlamaForCausalLM and computes the same logits. Options that Llama lacks (post-norm or no
    norm, no positions, no gate, norms of queries and keys) are an error.

    For example:
      bytewright export runs/base --to hf --out base-hf
    """

    path: options.RunPath

    to: Literal["hf"]
    """The format to write: hf for Hugging Face's transformers."""

    out: options.OutputFolder
    """The folder to write."""

    which: Literal["best", "last"] = "best"
    """The checkpoint of the run."""

    plugin: options.Plugins = ()

    replace: options.Replace = False

    def run(self) -> None:
        """Load the model and write it in the other format."""
        options.require_exists(self.path)
        from bytewright.model.hf_llama import write_llama
        from bytewright.tokenizer.formats import warn_of_pattern
        from bytewright.train.run import open_model

        atomic.check_target(self.out, folder=True, replace=self.replace)
        saved = open_model(self.path, which=self.which)
        model, tokenizer = saved.load(), saved.run.tokenizer
        write_llama(
            model,
            self.out,
            tokenizer_json=tokenizer_json_of(tokenizer),
            end_of_text=find_end_of_text(tokenizer),
            replace=self.replace,
        )
        if (warning := warn_of_pattern(tokenizer.vocabulary)) is not None:
            console.stderr().print(warning, soft_wrap=True)
        sentence = f"Wrote {self.out}: load it with AutoModelForCausalLM.from_pretrained({str(self.out)!r})."
        console.stdout().print(sentence, soft_wrap=True)


def tokenizer_json_of(tokenizer: Tokenizer) -> bytes:
    """Return the contents of a `tokenizer.json`."""
    from bytewright.tokenizer.formats import write_huggingface

    with tempfile.TemporaryDirectory() as folder:
        write_huggingface(tokenizer.vocabulary, Path(folder) / "tokenizer.json")
        return (Path(folder) / "tokenizer.json").read_bytes()


def find_end_of_text(tokenizer: Tokenizer) -> tuple[str, int] | None:
    """Return the special token that ends a text, with its id: `END_OF_TEXT`, or else the first one."""
    specials = tokenizer.special_tokens
    if not specials:
        return None
    name = END_OF_TEXT if END_OF_TEXT in specials else min(specials, key=lambda special: specials[special])
    return name, specials[name]


@dataclass(frozen=True, kw_only=True)
class ImportModel:
    """Read a Llama model from a folder of `transformers`, and write it as a run.

    The folder contains config.json, model.safetensors (or several files and model.safetensors.index.json) and
    tokenizer.json (byte-level BPE). Unsupported features are an error. The run can be used by
    `generate`, `evaluate` and `export`, but not resumed.

    For example:
      bytewright import base-hf --out runs/imported
      bytewright generate runs/imported --prompt 'Once upon a time'
    """

    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
    """The folder to read."""

    out: options.OutputFolder
    """The folder of the run to write."""

    without_tokenizer: bool = False
    """Read the model only; the run can then be evaluated on token files, but not generate text."""

    def run(self) -> None:
        """Read the model and write it as a run."""
        options.require_exists(self.path)
        from bytewright.model.hf_llama import read_llama
        from bytewright.tokenizer.formats import read_huggingface
        from bytewright.train.run import write_imported_model
        from bytewright.train.run_files import check_new_run

        check_new_run(self.out)
        model = read_llama(self.path)
        vocabulary = None if self.without_tokenizer else read_huggingface(self.path / "tokenizer.json")
        if vocabulary is not None and vocabulary.size > model.config.vocab_size:
            raise UsageError(
                f"{self.path}: the tokenizer has ids up to {vocabulary.size - 1}, but the model has only"
                f" {model.config.vocab_size} ids",
                path=self.path,
                key="vocab_size",
                expected=vocabulary.size,
                found=model.config.vocab_size,
            )
        write_imported_model(self.out, model, vocabulary)
        sentence = f"Wrote {self.out}: {sum(p.numel() for p in model.parameters()):,} parameters."
        console.stdout().print(sentence, soft_wrap=True)

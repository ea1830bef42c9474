"""`bytewright export`, `import` and `corpus storybook-tasks`: exchange models and tasks with other tools."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from bytewright.cli import console, options
from bytewright.errors import UsageError
from bytewright.formatting import format_bytes
from bytewright.storage import atomic

if TYPE_CHECKING:
    from bytewright.model import TransformerLM
    from bytewright.tokenizer import Vocabulary


@dataclass(frozen=True, kw_only=True)
class Export:
    """Write the model of a run and its tokenizer for another program.

    hf is a folder that `transformers` loads as a LlamaForCausalLM. gguf is a file that llama.cpp loads; it
    needs the package gguf (pip install gguf). Both compute the same logits. A model with an option that the
    format lacks is rejected: post-norm or no norm, no positions, no gate. The format hf also lacks norms of
    queries and keys, and gguf patterns of the tokenizer other than gpt2, gpt4 and that of Qwen 2.

    For example:
      bytewright export runs/base --to hf --out base-hf
      bytewright export runs/base --to gguf --out base.gguf --type q8_0
    """

    path: options.RunPath
    to: Literal["hf", "gguf"]
    """The format to write: hf for Hugging Face's transformers, gguf for llama.cpp."""
    out: options.OutputPath
    """The folder (hf) or file (gguf) to write."""
    type: Annotated[
        Literal["f32", "f16", "bf16", "q8_0"] | None, options.arg("{f32,f16,bf16,q8_0}", "(default: f32)")
    ] = None
    """The type of the matrices in a gguf file; with f32 the logits are those of Bytewright."""
    which: options.Which = "best"
    plugin: options.Plugins = ()
    replace: options.Replace = False

    def run(self) -> None:
        """Load the model and write it in the other format."""
        options.require_exists(self.path)
        if self.type is not None and self.to != "gguf":
            raise UsageError(f"--type applies to --to gguf only, not to {self.to}", key="--type")
        atomic.check_target(self.out, folder=self.to == "hf", replace=self.replace)
        from bytewright.train.run_model import open_model

        saved = open_model(self.path, which=self.which)
        model, vocabulary = saved.load(), saved.run.tokenizer.vocabulary
        if self.to == "gguf":
            self._write_gguf(model, vocabulary)
        else:
            self._write_hf(model, vocabulary)

    def _write_hf(self, model: TransformerLM, vocabulary: Vocabulary) -> None:
        from bytewright.model.hf_llama import write_llama
        from bytewright.tokenizer.formats import to_tokenizer_json, warn_of_pattern
        from bytewright.tokenizer.vocabulary import find_end_of_text

        write_llama(
            model,
            self.out,
            tokenizer_json=to_tokenizer_json(vocabulary),
            end_of_text=find_end_of_text(vocabulary),
            replace=self.replace,
        )
        if (warning := warn_of_pattern(vocabulary)) is not None:
            console.print_remark(warning)
        loading = f"AutoModelForCausalLM.from_pretrained({str(self.out)!r})"
        console.print_line(f"Wrote {self.out}: load it with {loading}.")

    def _write_gguf(self, model: TransformerLM, vocabulary: Vocabulary) -> None:
        from bytewright.interop.gguf import write_gguf

        with console.phase_progress("write", "bytes") as progress:
            write_gguf(
                model,
                vocabulary,
                self.out,
                weight_type=self.type or "f32",
                name=self.path.resolve().name,
                replace=self.replace,
                progress=progress,
            )
        size = format_bytes(self.out.stat().st_size)
        console.print_line(f"Wrote {self.out}: {size}; load it with llama-cli -m {self.out}.")


@dataclass(frozen=True, kw_only=True)
class ImportModel:
    """Read a Llama model from a folder of `transformers`, and write it as a run.

    The folder contains config.json, model.safetensors (or several files and model.safetensors.index.json) and
    tokenizer.json (byte-level BPE). Unsupported features are an error. The run is listed by `runs` and can be
    used by `report`, `generate`, `evaluate` (with a token file), `export` and `train --init`. There is no
    training to resume.

    For example:
      bytewright import base-hf --out runs/imported
      bytewright generate runs/imported --prompt 'Once upon a time'
      bytewright train tune.toml --init runs/imported --out runs/tuned
    """

    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
    """The folder to read."""
    out: options.OutputFolder
    """The folder of the run to write."""
    without_tokenizer: bool = False
    """Read the model only; the run can then be evaluated on token files, but not generate text."""

    def run(self) -> None:
        """Read the model and write it as a run."""
        if not (options.require_exists(self.path) / "config.json").is_file():
            problem = f"{self.path} is not the folder of a model of transformers: it has no config.json"
            raise UsageError(f"{problem}; name a folder that `save_pretrained` has written", path=self.path)
        from bytewright.train.run_model import import_llama

        run = import_llama(self.path, self.out, with_tokenizer=not self.without_tokenizer)
        console.print_line(f"Wrote {self.out}: {run.costs['counted']['parameters']:,} parameters.")


@dataclass(frozen=True, kw_only=True)
class WriteStorybookTasks:
    """Write tasks for lm-evaluation-harness: choose the consistent ending of a story.

    The facts of the three tasks were stated 1 to 3, 4 to 7, and 8 or more sentences before the ending.
    The stories are validation stories of the storybook. A quarter of the answers is right by chance. The
    harness is a package of its own (pip install lm-eval); `evaluate --endings` scores a model without it.

    For example:
      bytewright corpus storybook-tasks --out tasks
      lm_eval --model bytewright --model_args run=runs/tiny --tasks tasks
      bytewright evaluate runs/tiny --endings tasks
    """

    out: options.OutputFolder
    """The folder to write: for each task a YAML file and its questions as JSON lines."""
    count: int = 200
    """The number of questions in each task."""
    seed: int = 1
    """The seed of the stories and questions; another seed gives others."""
    replace: options.Replace = False

    def run(self) -> None:
        """Make the questions and write the tasks."""
        from bytewright.interop.endings import TASKS, write_tasks

        options.require_at_least(1, self.count, "--count")
        options.require_at_least(0, self.seed, "--seed")
        atomic.check_target(self.out, folder=True, replace=self.replace)
        with console.phase_progress("make questions", "questions") as progress:
            write_tasks(self.out, self.count, seed=self.seed, replace=self.replace, progress=progress)
        names = ", ".join(TASKS)
        console.print_line(f"Wrote {self.out}: {len(TASKS)} tasks of {self.count:,} questions ({names}).")

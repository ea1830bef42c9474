"""`bytewright export`: write a run's model in the form that other tools load."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bytewright.cli import inputs, options
from bytewright.end_of_text import END_OF_TEXT
from bytewright.storage import atomic

if TYPE_CHECKING:
    from bytewright.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Export:
    """Write the model of a run, and its tokenizer, as a folder that `transformers` loads.

    It is loaded as a LlamaForCausalLM and gives the same scores. Models that are no Llama (another place for
    the norms, no positions, no gate, norms on queries and keys) are refused.

    For example:
      bytewright export runs/base --to hf --out base-hf
    """

    path: options.RunPath

    to: Literal["hf"]
    """The form to write: hf for Hugging Face's transformers."""

    out: options.OutputFolder
    """The folder to write."""

    which: Literal["best", "last"] = "best"
    """Which checkpoint of the run."""

    replace: options.Replace = False

    def run(self) -> None:
        """Read, and write."""
        from bytewright.cli import console
        from bytewright.model.hf_llama import write_llama
        from bytewright.tokenizer.files import warn_of_pattern
        from bytewright.train.checkpoint import find_checkpoint, load_model
        from bytewright.train.run import load_tokenizer_of

        atomic.check_target(self.out, folder=True, replace=self.replace)
        checkpoint = find_checkpoint(inputs.require_exists(self.path), which=self.which)
        model = load_model(checkpoint)
        tokenizer = load_tokenizer_of(checkpoint)
        write_llama(
            model,
            self.out,
            tokenizer_json=describe_tokenizer(tokenizer),
            end_of_text=find_end_of_text(tokenizer),
            replace=self.replace,
        )
        if (warning := warn_of_pattern(tokenizer.vocabulary)) is not None:
            console.stderr().print(warning, soft_wrap=True)
        sentence = f"Wrote {self.out}: load it with AutoModelForCausalLM.from_pretrained({str(self.out)!r})."
        console.stdout().print(sentence, soft_wrap=True)


def describe_tokenizer(tokenizer: Tokenizer) -> bytes:
    """Return the content of a `tokenizer.json`."""
    from bytewright.tokenizer.files import write_huggingface

    with tempfile.TemporaryDirectory() as folder:
        write_huggingface(tokenizer.vocabulary, Path(folder) / "tokenizer.json")
        return (Path(folder) / "tokenizer.json").read_bytes()


def find_end_of_text(tokenizer: Tokenizer) -> tuple[str, int] | None:
    """Find the special token that ends a text: the usual one, or else the first there is."""
    specials = tokenizer.special_tokens
    if not specials:
        return None
    name = END_OF_TEXT if END_OF_TEXT in specials else min(specials, key=lambda special: specials[special])
    return name, specials[name]

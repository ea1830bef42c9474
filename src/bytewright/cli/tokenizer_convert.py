"""`bytewright tokenizer convert`: read a tokenizer in any of the four formats, write it in another."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from bytewright.cli import inputs, options
from bytewright.errors import UsageError
from bytewright.storage import atomic

if TYPE_CHECKING:
    from bytewright.tokenizer.vocabulary import Vocabulary


@dataclass(frozen=True, kw_only=True)
class ConvertTokenizer:
    """Read a tokenizer in whichever format it is, and write it in another.

    bytewright and gpt2 (vocab.json, merges.txt) are folders; huggingface (tokenizer.json) and
    tiktoken (ranks) are files. gpt2 and tiktoken do not say which tokens are special, and tiktoken
    has no pattern either: give these when reading such files. Anything else that a format cannot
    say is refused.

    For example:
      bytewright tokenizer convert stories-10k --to huggingface --out tokenizer.json
      bytewright tokenizer convert gpt2/ --special-tokens '<|endoftext|>' --to bytewright --out gpt2-ours
      bytewright tokenizer convert ranks.tiktoken --pattern gpt4 --to huggingface --out tokenizer.json
    """

    tokenizer: options.TokenizerPath

    to: Literal["bytewright", "gpt2", "huggingface", "tiktoken"]
    """The format to write."""

    out: Annotated[Path, tyro.conf.arg(metavar="PATH")]
    """The folder or file to write."""

    special_tokens: Annotated[
        tuple[str, ...], tyro.conf.arg(metavar="TOKEN [TOKEN ...]", help_behavior_hint="(optional)")
    ] = ()
    """Special tokens, for the formats that do not name them."""

    pattern: Annotated[str | None, tyro.conf.arg(metavar="PATTERN", help_behavior_hint="(default: gpt2)")] = (
        None
    )
    """How text is cut into words, for tiktoken ranks, which do not say: gpt2, gpt4, or an expression."""

    replace: options.Replace = False

    def run(self) -> None:
        """Read, and write."""
        from bytewright.cli import console
        from bytewright.tokenizer import files

        if self.to == "huggingface" and self.out.suffix != ".json":
            raise UsageError(f"{self.out}: the name must end in .json, by which this format is recognised")
        if self.to == "tiktoken" and self.out.suffix == ".json":
            raise UsageError(f"{self.out}: the name must not end in .json, which stands for huggingface")
        atomic.check_target(self.out, folder=self.to in ("bytewright", "gpt2"), replace=self.replace)
        vocabulary = inputs.load_vocabulary(self.tokenizer, self.special_tokens, self.pattern)
        match self.to:
            case "bytewright":
                files.write_folder(vocabulary, self.out, replace=self.replace)
            case "gpt2":
                write_gpt2_folder(vocabulary, self.out, replace=self.replace)
            case "huggingface":
                files.write_huggingface(vocabulary, self.out)
            case "tiktoken":
                files.write_tiktoken(vocabulary, self.out)
        written = vocabulary.ids_of_ordinary_tokens if self.to == "tiktoken" else vocabulary.tokens
        sentence = f"Wrote {self.out}: {len(written):,} tokens in the {self.to} format."
        console.stdout().print(sentence, soft_wrap=True)
        if self.to == "huggingface" and (warning := files.warn_of_pattern(vocabulary)) is not None:
            console.stderr().print(warning, soft_wrap=True)
        if self.to == "tiktoken":
            console.stdout().print(tell_what_ranks_leave_out(vocabulary), soft_wrap=True)


def tell_what_ranks_leave_out(vocabulary: Vocabulary) -> str:
    """Say what whoever reads the file of ranks has to know besides."""
    by_id = sorted(vocabulary.special_tokens.items(), key=lambda item: item[1])
    specials = ", ".join(f"{special} (id {id})" for special, id in by_id)
    return f"Left out, to be given again when the file is read: the pattern ({vocabulary.pattern})" + (
        f" and the special tokens {specials}." if specials else "."
    )


def write_gpt2_folder(vocabulary: Vocabulary, out: Path, *, replace: bool) -> None:
    """Write GPT-2's two files as one folder, so that there are never a new one and an old one together."""
    from bytewright.tokenizer import files

    with tempfile.TemporaryDirectory() as folder, atomic.write_folder(out, replace=replace) as writer:
        paths = [Path(folder) / name for name in files.GPT2_FILES]
        files.write_gpt2(vocabulary, *paths)
        for path in paths:
            writer.write_bytes(path.name, path.read_bytes())

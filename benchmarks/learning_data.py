"""Prepare the data of `learning.py` from one text: a tokenizer and token files for training and validation.

    python benchmarks/learning_data.py novels.txt --out benchmarks/data/novels

Documents end with `<|endoftext|>`. Every fifteenth document goes to validation as a whole. The tokenizer is
trained on the training documents only. The same text always gives the same files.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from bytewright.corpus import END_OF_TEXT
from bytewright.tokenizer import Tokenizer, train_bpe

HELD_OUT = 15
"""One of this many documents goes to validation."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Input and output."""

    text: Annotated[Path, tyro.conf.Positional]
    """A text file, UTF-8."""
    out: Path
    """The folder to create, with `train.npy`, `validation.npy` and `tokenizer/`."""
    vocab_size: int = 10_000


def split(text: str) -> tuple[str, str]:
    """Split a text into the documents for training and those for validation.

    >>> split(f"a{END_OF_TEXT}b{END_OF_TEXT}")
    ('a<|endoftext|>', 'b<|endoftext|>')
    """
    documents = [document + END_OF_TEXT for document in text.split(END_OF_TEXT) if document.strip()]
    period = min(HELD_OUT, len(documents))
    held_out = documents[period - 1 :: period]
    del documents[period - 1 :: period]
    return "".join(documents), "".join(held_out)


def main() -> None:
    """Split the text, train the tokenizer and encode both parts."""
    options = tyro.cli(Options, description=__doc__)
    options.out.mkdir(parents=True, exist_ok=True)
    parts = dict(zip(("train", "validation"), split(options.text.read_text()), strict=True))
    with tempfile.TemporaryDirectory() as scratch:
        for name, text in parts.items():
            Path(scratch, name).write_text(text)
        vocab, merges = train_bpe(Path(scratch, "train"), options.vocab_size, [END_OF_TEXT])
        tokenizer = Tokenizer(vocab, merges, [END_OF_TEXT])
        tokenizer.save(options.out / "tokenizer", replace=True)
        for name, text in parts.items():
            tokens = tokenizer.encode_file(Path(scratch, name), options.out / f"{name}.npy")
            num_documents = text.count(END_OF_TEXT)
            print(f"{name}: {num_documents} documents, {len(text.encode()):,} bytes, {len(tokens):,} tokens")


if __name__ == "__main__":
    main()

"""The vocabulary of the encoding benchmarks, in the format of each library.

All encoders use the same vocabulary with the same ids: GPT-2's if `gpt2_vocab.json` and `gpt2_merges.txt`
exist in `../shared/data`, otherwise 32,000 tokens trained on the 5 MB corpus.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from bytewright.corpus import END_OF_TEXT

if TYPE_CHECKING:
    import tiktoken

from corpora import DATA, SHARED

GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The pattern for every trainer that accepts one."""


def vocabulary_files() -> tuple[Path, Path]:
    """Return the paths of `vocab.json` and `merges.txt`: GPT-2's, or those of a tokenizer trained here."""
    if (SHARED / "gpt2_vocab.json").exists():
        return SHARED / "gpt2_vocab.json", SHARED / "gpt2_merges.txt"
    vocab_path, merges_path = DATA / "trained_vocab.json", DATA / "trained_merges.txt"
    if not vocab_path.exists():
        _train_vocabulary(vocab_path, merges_path)
    return vocab_path, merges_path


def _train_vocabulary(vocab_path: Path, merges_path: Path) -> None:
    train_bpe = import_module("bytewright.tokenizer.train").train_bpe
    vocab, merges = train_bpe(DATA / "technical-5mb.txt", 32_000, [END_OF_TEXT])
    printable = printable_bytes()

    def spell(token: bytes) -> str:
        return "".join(printable[byte] for byte in token)

    special = END_OF_TEXT.encode()
    vocab_path.write_text(
        json.dumps({END_OF_TEXT if token == special else spell(token): id for id, token in vocab.items()})
    )
    lines = ["#version: 0.2", *(f"{spell(left)} {spell(right)}" for left, right in merges)]
    merges_path.write_text("\n".join(lines) + "\n")


def printable_bytes() -> list[str]:
    """Return GPT-2's character for every byte: itself if printable, otherwise the next from U+0100.

    >>> printable_bytes()[ord("A")], printable_bytes()[ord(" ")]
    ('A', 'Ġ')
    """
    spelling: list[str] = []
    hidden = 0
    for byte in range(256):
        if 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or byte >= 0xAE:
            spelling.append(chr(byte))
        else:
            spelling.append(chr(256 + hidden))
            hidden += 1
    return spelling


def ranks() -> tuple[dict[bytes, int], int]:
    """Return tiktoken's mergeable ranks (token bytes to id) and the id of `<|endoftext|>`."""
    byte_of = {character: byte for byte, character in enumerate(printable_bytes())}
    vocab: dict[str, int] = json.loads(vocabulary_files()[0].read_text())
    end_of_text = vocab.pop(END_OF_TEXT)
    return {bytes(byte_of[character] for character in token): id for token, id in vocab.items()}, end_of_text


def tiktoken_encoding() -> tiktoken.Encoding:
    """Build the tiktoken encoding of this vocabulary, without a download."""
    import tiktoken

    # An equivalent pattern: tiktoken's regex engine fails with ours on a megabyte of spaces.
    pattern = import_module("tiktoken_ext.openai_public").r50k_pat_str
    mergeable_ranks, end_of_text = ranks()
    return tiktoken.Encoding(
        name="bench",
        pat_str=pattern,
        mergeable_ranks=mergeable_ranks,
        special_tokens={END_OF_TEXT: end_of_text},
    )


def tokenizer_json() -> Path:
    """Write Hugging Face's `tokenizer.json` of this vocabulary (once) and return its path."""
    vocab_path, merges_path = vocabulary_files()
    path = DATA / f"{vocab_path.stem}.tokenizer.json"
    if not path.exists():
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

        tokenizer = Tokenizer(models.BPE.from_file(str(vocab_path), str(merges_path)))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True)])
        path.parent.mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(path))
    return path

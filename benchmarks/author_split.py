"""Split novels by author: token files for training, validation and test, in which no author occurs twice.

    python benchmarks/author_split.py novels.txt --out benchmarks/data/authors

The text has 75 English novels of 1840 to 1925 (github.com/computationalstylistics/100_english_novels, without
those of some authors), each followed by `<|endoftext|>`. `AUTHORS` lists the novels of each author by number.
The tokenizer is trained on the training authors only. The same text always gives the same files.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from bytewright.corpus import END_OF_TEXT
from bytewright.tokenizer import Tokenizer, train_bpe

AUTHORS = {
    "Barclay": range(3),
    "Bennett": range(3, 5),
    "Blackmore": range(5, 8),
    "Braddon": range(8, 11),
    "Brontë": range(11, 14),
    "Chesterton": range(14, 17),
    "Conrad": range(17, 20),
    "Corelli": range(20, 23),
    "Doyle": range(23, 26),
    "Eliot": range(26, 29),
    "Ford": range(29, 31),
    "Forster": range(31, 34),
    "Gaskell": range(34, 37),
    "Gissing": range(37, 40),
    "Haggard": range(40, 43),
    "Hardy": range(43, 46),
    "Kipling": range(46, 49),
    "Lawrence": range(49, 51),
    "Lee": range(51, 54),
    "Lytton": range(54, 57),
    "Morris": range(57, 60),
    "Schreiner": range(60, 62),
    "Stevenson": range(62, 65),
    "Thackeray": range(65, 68),
    "Ward": range(68, 71),
    "Collins": range(71, 74),
    "Woolf": range(74, 75),
}
"""The numbers of each author's novels in the file."""
VALIDATION = ("Bennett", "Conrad", "Ward")
"""The authors that settings are chosen on."""
TEST = ("Forster", "Hardy", "Stevenson")
"""The authors that the chosen settings are compared on."""


def split_by_author(text: str) -> dict[str, str]:
    """Return the text of each part; raise unless the text has the expected number of novels."""
    novels = [novel + END_OF_TEXT for novel in text.split(END_OF_TEXT) if novel.strip()]
    expected = sum(map(len, AUTHORS.values()))
    if len(novels) != expected:
        raise SystemExit(f"the text has {len(novels)} documents, expected the {expected} novels of AUTHORS")
    parts = {"train": "", "validation": "", "test": ""}
    for author, numbers in AUTHORS.items():
        part = "validation" if author in VALIDATION else "test" if author in TEST else "train"
        parts[part] += "".join(novels[number] for number in numbers)
    return parts


def main() -> None:
    """Split the text, train the tokenizer and encode the three parts."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("text", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--vocab-size", type=int, default=10_000)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    sizes = {}
    with tempfile.TemporaryDirectory() as folder:
        parts = split_by_author(options.text.read_text())
        for name, text in parts.items():
            Path(folder, name).write_text(text)
        vocab, merges = train_bpe(Path(folder, "train"), options.vocab_size, [END_OF_TEXT])
        tokenizer = Tokenizer(vocab, merges, [END_OF_TEXT])
        tokenizer.save(options.out / "tokenizer", replace=True)
        for name, text in parts.items():
            tokens = tokenizer.encode_file(Path(folder, name), options.out / f"{name}.npy")
            sizes[name] = {
                "novels": text.count(END_OF_TEXT),
                "bytes": len(text.encode()),
                "tokens": len(tokens),
            }
            print(name, sizes[name])
    (options.out / "sizes.json").write_text(json.dumps(sizes) + "\n")


if __name__ == "__main__":
    main()

"""Training on token ids works without the native extension; text features raise an error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bytewright.storage import atomic
from bytewright.tokenizer import Tokenizer
from bytewright.train.recipe import to_plain
from runs import make_config

HIDDEN = "import sys; sys.modules['bytewright._native'] = None\n"


def run_without_native(code: str, *arguments: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN + code, *map(str, arguments)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_tokenizer_folder_is_read_without_the_extension(tokenizer: Path) -> None:
    code = (
        "from bytewright.tokenizer.formats import read_vocabulary\n"
        "print(read_vocabulary(sys.argv[1]).fingerprint)"
    )
    assert run_without_native(code, tokenizer) == Tokenizer.load(tokenizer).vocabulary.fingerprint


def test_features_that_need_the_extension_raise_when_they_are_used() -> None:
    code = (
        "from bytewright.tokenizer import Vocabulary\n"
        "try: from bytewright.tokenizer import Tokenizer\n"
        "except ImportError as error: print(error)"
    )
    assert "bytewright._native" in run_without_native(code)


def test_samples_of_text_without_the_extension_are_rejected(tokenizer: Path) -> None:
    code = (
        "from bytewright.errors import UsageError\n"
        "from bytewright.generate.text import make_text_sampler\n"
        "from bytewright.model import ModelConfig\n"
        "from bytewright.tokenizer.formats import read_vocabulary\n"
        "config = ModelConfig(vocab_size=400, context_length=8, d_model=16, num_layers=1, num_heads=2)\n"
        "try: make_text_sampler(config, read_vocabulary(sys.argv[1]), 'owl')\n"
        "except UsageError as error: print(error)"
    )
    assert "samples of text need the native extension" in run_without_native(code, tokenizer)


def test_a_run_that_keeps_its_tokenizer_trains_and_is_measured_without_the_extension(
    tmp_path: Path, stories: Path, tokenizer: Path
) -> None:
    file = tmp_path / "stories.npy"
    Tokenizer.load(tokenizer).encode_file(stories, file)
    data = {"train": str(file), "validation": str(file), "tokenizer": str(tokenizer)}
    config = to_plain(make_config(tmp_path)) | {"data": data, "budget": {"steps": 2}}
    config["model"]["vocab_size"] = 400
    atomic.write_json(tmp_path / "config.json", config)
    code = (
        "from pathlib import Path\n"
        "from bytewright.train import train\n"
        "from bytewright.train.run_model import evaluate_run\n"
        "from bytewright.train.recipe import read_config\n"
        "folder = Path(sys.argv[1])\n"
        "train(read_config(folder / 'config.json'), folder / 'run')\n"
        "print(evaluate_run(folder / 'run').evaluation.bits_per_byte is not None)"
    )
    assert run_without_native(code, tmp_path).splitlines()[-1] == "True"

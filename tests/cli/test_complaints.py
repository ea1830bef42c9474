"""Mistakes in options: one short sentence that says what is wrong, whatever the parser draws around it."""

from __future__ import annotations

import pytest

from bytewright.cli.complaints import one_sentence
from conftest import Run


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("train", "RECIPE and --out FOLDER are missing"),
        ("train recipes/tiny.toml", "--out FOLDER is missing"),
        ("train --bogus 3", "RECIPE is missing"),
        ("report --json", "there is no option --json"),
        ("generate runs/x --temprature 3", "there is no option --temprature; did you mean --temperature?"),
        ("tokenizer train a --out b --vocab-size 3 --frob --pat x", "there is no option --frob or --pat"),
        ("evaluate runs/x a b", "there is nothing that b could mean here"),
        ("generate runs/x --temperature", "--temperature needs a value"),
        ("generate runs/x --temperature warm", "--temperature must be a number, found 'warm'"),
        ("generate runs/x --top-k abc", "--top-k must be a whole number or None, found 'abc'"),
        ("account --context 1e3", "--context/--context-length must be a whole number, found '1e3'"),
        ("account --norm batch", "--norm must be one of none, post, pre, None, found 'batch'"),
        ("export runs/x --out y --to gguf", "--to must be hf, found 'gguf'"),
        ("generate runs/x --device gpu", "--device must be one of auto, cpu, cuda, mps, found 'gpu'"),
    ],
)
def test_a_mistake_in_options_is_one_short_sentence(run: Run, arguments: str, sentence: str) -> None:
    outcome = run(*arguments.split())
    assert outcome.code == 2
    command = arguments.split()[0] + (" train" if arguments.startswith("tokenizer") else "")
    assert outcome.err == f"bytewright: {sentence} (see bytewright {command} --help)\n"


def test_a_complaint_of_a_new_kind_is_told_as_it_is() -> None:
    assert one_sentence("╭─ New ─╮\n│ Something   odd │\n│ happened. │\n╰───╯") == "something odd happened."

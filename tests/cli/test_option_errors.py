"""A mistake in the options of a command is reported in one short sentence."""

from __future__ import annotations

import pytest

from bytewright.cli.doctor import Doctor
from bytewright.cli.option_errors import describe_option_error
from conftest import RunCommand


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("train", "RECIPE is missing"),
        ("import tiny-hf", "--out FOLDER is missing"),
        ("train --bogus 3", "RECIPE is missing"),
        ("report --json", "there is no option --json"),
        ("generate runs/x --temprature 3", "there is no option --temprature; did you mean --temperature?"),
        ("tokenizer train a --out b --vocab-size 3 --frob --pat x", "there is no option --frob or --pat"),
        (
            "tokenizer encode x --tokenizer y",
            "there is no option --tokenizer; give the value of TOKENIZER alone, without an option name",
        ),
        (
            "generate --run runs/x",
            "there is no option --run; give the value of RUN alone, without an option name",
        ),
        ("train tiny --device=cuda", "there is no option --device; write --set device=VALUE"),
        ("train tiny --lr 3e-4", "there is no option --lr; write --set optimizer.lr=VALUE"),
        ("train tiny --batch-size 3", "there is no option --batch-size; write --set batch_size=VALUE"),
        ("generate runs/x --greedy", "there is no option --greedy"),
        ("report", "RUN is missing"),
        ("corpus stats", "FILE is missing"),
        ("evaluate runs/x a b", "unexpected argument 'b'"),
        ("generate runs/x --temperature", "--temperature needs a value"),
        ("generate runs/x --temperature warm", "--temperature must be a number, found 'warm'"),
        ("generate runs/x --top-k abc", "--top-k must be a whole number, found 'abc'"),
        ("account --context 1e3", "--context/--context-length must be a whole number, found '1e3'"),
        ("account --parameters many", "--parameters must be a number, found 'many'"),
        ("account --norm batch", "--norm must be one of none, post, pre, found 'batch'"),
        ("export runs/x --out y --to onnx", "--to must be one of gguf, hf, found 'onnx'"),
        ("completion tcsh", "SHELL must be one of bash, fish, zsh, found 'tcsh'"),
        ("completion", "SHELL is missing"),
        ("tokenizer decode x --ids a", "--ids must be whole numbers, found 'a'"),
        ("generate runs/x --device gpu", "--device must be one of auto, cpu, cuda, mps, found 'gpu'"),
    ],
)
def test_a_mistake_in_options_is_one_short_sentence(run: RunCommand, arguments: str, sentence: str) -> None:
    outcome = run(*arguments.split())
    assert outcome.code == 2
    command = " ".join(arguments.split()[: 2 if arguments.startswith(("tokenizer", "corpus")) else 1])
    assert outcome.err == f"bytewright: {sentence} (see bytewright {command} --help)\n"


def test_an_unknown_kind_of_error_is_left_to_the_parser() -> None:
    assert describe_option_error(object(), Doctor, []) is None


def test_without_the_hook_of_the_parser_its_own_message_is_printed(
    run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("tyro._errors")
    outcome = run("generate", "runs/x", "--temperature", "warm")
    assert outcome.code == 2
    assert "--temperature" in outcome.err


def test_help_after_arguments_shows_the_arguments_too(run: RunCommand) -> None:
    assert run("train", "tiny", "--help").out == run("train", "--help").out
    assert "RECIPE" in run("train", "tiny", "-h").out

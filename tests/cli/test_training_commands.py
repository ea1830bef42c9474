"""The commands for runs: train, resume, evaluate and generate."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor

import bytewright
from bytewright.cli import console
from bytewright.generate import SamplingConfig, device_steps, generator, text
from bytewright.storage import filesystem
from bytewright.tokenizer import Tokenizer
from bytewright.train.run import Run
from bytewright.train.session import costs
from conftest import Outcome, RunCommand
from runs import STORY_RECIPE, digest

RECIPE = f"""
log_every = 5
eval_every = 10
save_every = 10
sample_every = 10
sample_prompt = "One morning"
{STORY_RECIPE}
steps = 20
"""


@pytest.fixture
def place(tmp_path: Path, stories: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a recipe and the data that it names, to which the command's paths are relative."""
    monkeypatch.chdir(tmp_path)
    loaded = Tokenizer.load(tokenizer)
    loaded.save(tmp_path / "tok")
    loaded.encode_file(stories, tmp_path / "train.npy")
    loaded.encode_file(stories, tmp_path / "valid.npy")
    (tmp_path / "small.toml").write_text(RECIPE)
    return tmp_path


def assert_rejected(outcome: Outcome, *words: str, code: int = 2) -> None:
    assert outcome.code == code, outcome
    progress = [line for line in outcome.err.splitlines() if line.startswith("reading the weights of ")]
    assert outcome.err.count("\n") == 1 + len(progress), outcome.err
    for word in words:
        assert word in outcome.err


def test_from_a_recipe_to_text(place: Path, run: RunCommand) -> None:
    trained = run("train", "small.toml", "--out", "runs/a")
    assert trained.code == 0, trained
    assert "step 20/20" in trained.err
    assert trained.out.startswith(
        "runs/a: complete after 20 steps, its budget of steps is spent, validation loss "
    )
    assert "step 20/20  ended: steps\n" in trained.err
    sample = (place / "runs/a/samples/step-000020.txt").read_text()
    assert sample.startswith("One morning")

    evaluated = run("evaluate", "runs/a", "--json")
    figures = json.loads(evaluated.out)
    assert 0 < figures["bits_per_byte"] < figures["loss"]

    written = run("generate", "runs/a", "--prompt", "One morning", "--max-new-tokens", "5", "--seed", "1")
    assert written.code == 0, written
    assert written.out.startswith("One morning")
    assert (
        written.out
        == run("generate", "runs/a", "--prompt", "One morning", "--max-new-tokens", "5", "--seed", "1").out
    )
    two = run("generate", "runs/a", "--prompt", "One morning", "--prompt", "Two", "--max-new-tokens", "3")
    assert two.out.count("One morning") == two.out.count("Two") == 1
    assert "<|endoftext|>" not in two.out
    assert two.err.splitlines()[-1] == (
        "2 of 2 texts were cut off and have no <|endoftext|> after them: 2 reached --max-new-tokens, 3"
    )
    assert run("generate", "runs/a/checkpoints/step-000010", "--max-new-tokens", "3").code == 0
    assert_rejected(run("generate", "runs/a", "--prompt", "owl " * 30), "shorten it", "--slide")
    assert_rejected(run("train", "runs/a"), "runs/a is a run", "`bytewright resume runs/a`")


@pytest.mark.parametrize(("key", "name"), [("train", "train.npy"), ("tokenizer", "tok")])
def test_missing_data_is_reported_with_its_key_and_the_recipe(
    place: Path, run: RunCommand, key: str, name: str
) -> None:
    (place / name).rename(place / "elsewhere")
    recipe = (place / "small.toml").read_text()
    for comment in ("", "# Encode stories.txt first.\n"):
        (place / "small.toml").write_text(comment + recipe)
        rejected = run("train", "small.toml", "--out", "a")
        assert_rejected(rejected, f"data.{key} is {name}, which does not exist")
        assert ("the comments at the top of small.toml" in rejected.err) == bool(comment)
    assert not (place / "a").exists()


def test_evaluate_explains_the_difference_to_the_recorded_figures(
    place: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("train", "small.toml", "--out", "runs/a").code == 0
    (line,) = [line for line in Run(place / "runs/a").metrics if line["step"] == 20]
    reported: list[tuple[str, int, int, str]] = []
    monkeypatch.setattr(console, "progress", lambda: nullcontext(lambda *words: reported.append(words)))
    for file in ([], ["valid.npy"]):
        shown = run("evaluate", "runs/a", *file, "--which", "last")
        assert "runs/a/checkpoints/step-000020" in shown.out
        assert "valid.npy" in shown.out
        assert f"At step 20 training recorded a loss of {line['validation_loss']:.4f}" in shown.out
        assert "eval_tokens = 256" in shown.out
    figures = json.loads(run("evaluate", "runs/a", "--which", "last", "--json").out)
    assert figures["checkpoint"] == "runs/a/checkpoints/step-000020"
    assert figures["file"] == str(place / "valid.npy")
    assert figures["training_validation_loss"] == line["validation_loss"]
    assert figures["training_bits_per_byte"] == line["bits_per_byte"]
    assert f" and {line['bits_per_byte']:.4f} bits per byte: it measures windows" in shown.out
    assert reported[-1] == ("measure", figures["num_tokens"], figures["num_tokens"], "tokens")
    assert len({done for _, done, _, _ in reported}) > 2, "progress is reported batch by batch"
    elsewhere = run("evaluate", "runs/a", "train.npy")
    assert "train.npy" in elsewhere.out
    assert "training recorded" not in elsewhere.out  # it did not measure this file


def test_evaluate_names_a_remedy_for_tokens_of_another_tokenizer_and_for_a_text(
    place: Path, run: RunCommand, stories: Path
) -> None:
    assert run("train", "small.toml", "--out", "a").code == 0
    assert run("tokenizer", "train", stories, "--out", "larger", "--vocab-size", "450").code == 0
    assert run("tokenizer", "encode", "larger", stories, "--out", "larger.npy").code == 0
    assert f"encode the text with {place / 'a/tokenizer'}" in run("evaluate", "a", "larger.npy").err
    rejected = run("evaluate", "a", stories)
    assert_rejected(rejected, "`bytewright tokenizer encode`, or measure its stories with --stories")


def test_only_texts_that_the_model_ended_have_an_end_token(
    place: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("train", "small.toml", "--out", "a").code == 0
    end = Tokenizer.load(place / "a/tokenizer").special_tokens["<|endoftext|>"]
    monkeypatch.setattr(text, "encode_prompt", lambda tokenizer, prompt: [end] * len(prompt))
    letter = Tokenizer.load(place / "a/tokenizer").encode("x")[0]

    calls: list[None] = []

    def choose(logits: Tensor, sampling: SamplingConfig, uniforms: Tensor) -> Tensor:
        """End every second text at its third token."""
        calls.append(None)
        ids = torch.full((len(logits),), letter)
        ids[1::2] = end if len(calls) == 3 else letter
        return ids

    monkeypatch.setattr(device_steps, "choose_tokens", choose)
    monkeypatch.setattr(generator, "choose_tokens", choose)  # chooses past the context

    def written(*options: str) -> Outcome:
        calls.clear()
        return run("generate", "a", *options)

    prompts = ("--prompt", "12", "--prompt", "1234")
    both = written(*prompts, "--max-new-tokens", "4")
    assert both.out == "12xxxx\n\n1234xx\n<|endoftext|>\n"
    reason = "1 of 2 texts were cut off and have no <|endoftext|> after them: 1 reached --max-new-tokens, 4"
    assert both.err.splitlines()[-1] == reason
    full = written(*prompts, "--max-new-tokens", "100")
    assert full.out == "12" + 14 * "x" + "\n\n1234xx\n<|endoftext|>\n"
    assert full.err.splitlines()[-1].endswith(
        ": 1 filled the model's context of 16 tokens (--slide continues past it)"
    )
    alone = written("--prompt", "12", "--max-new-tokens", "100")
    assert alone.out == "12" + 14 * "x" + "\n"
    reason = "the text was cut off: it filled the model's context of 16 tokens (--slide continues past it)"
    assert alone.err.splitlines()[-1] == reason
    alone = written("--prompt", "12", "--max-new-tokens", "20", "--slide")
    assert alone.out == "12" + 20 * "x" + "\n"
    assert alone.err.splitlines()[-1] == "the text was cut off: it reached --max-new-tokens, 20"
    alone = written("--prompt", "12", "--max-new-tokens", "14")
    assert alone.err.splitlines()[-1] == "the text was cut off: it reached --max-new-tokens, 14"


def test_more_texts_than_a_batch_are_generated(place: Path, run: RunCommand) -> None:
    assert run("train", "small.toml", "--out", "a").code == 0
    command = ("generate", "a", "--count", "40", "--max-new-tokens", "8", "--seed", "7")
    written = run(*command)
    assert written.code == 0, written
    num_cut = int(written.err.splitlines()[-1].split(" of 40 texts were cut off")[0])
    assert num_cut + written.out.count("\n<|endoftext|>\n") == 40
    assert run(*command).out == written.out
    assert run(*command[:-1], "8").out != written.out
    rejected = run("generate", "a", "--count", "0")
    assert (rejected.code, rejected.err) == (2, "bytewright: --count must be at least 1, but is 0\n")


def test_a_run_that_spends_its_budget_succeeds_although_its_loss_diverged(
    place: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bytewright.train.outcome.DIVERGED_RISE", -100.0)  # any loss counts as diverged
    for command in (("train", "small.toml", "--out", "a"), ("resume", "a")):
        done = run(*command)
        assert done.code == 0, done
        assert "diverged (" in done.out
        assert "after 20 steps, its budget of steps is spent" in done.out


def test_a_run_that_diverges_during_sampling_ends_as_diverged(place: Path, run: RunCommand) -> None:
    exploding = [
        "model.norm=none",
        "optimizer.lr=1e30",
        "optimizer.max_grad_norm=0",
        "sample_every=1",
        "budget.steps=30",
    ]
    trained = run("train", "small.toml", "--out", "a", "--set", "model.num_layers=6", *exploding)
    assert trained.code == 1
    assert "steps in a row" in trained.err.splitlines()[-1]
    samples = [path.read_text() for path in sorted((place / "a/samples").iterdir())]
    assert "are not finite" in samples[-1]


def test_an_allocation_that_fails_is_one_sentence_and_leaves_no_run(
    place: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs, "usable_memory", lambda: 10**18)  # more than the prediction
    outcome = run("train", "small.toml", "--out", "a", "--set", "batch_size=100_000_000_000")
    assert outcome.code == 1
    assert outcome.err.splitlines()[-1].startswith("bytewright: there is not enough memory (Unable to")
    assert not (place / "a").exists()


def test_a_model_with_a_larger_vocabulary_generates_only_ids_of_its_tokenizer(
    place: Path, run: RunCommand
) -> None:
    larger = ["--set", "model.vocab_size=5000", "budget.steps=4", "sample_every=2"]
    trained = run("train", "small.toml", "--out", "a", *larger)
    assert trained.code == 0, trained
    assert run("generate", "a", "--max-new-tokens", "10").code == 0


def test_values_of_the_recipe_can_be_replaced(place: Path, run: RunCommand) -> None:
    settings = ["--set", "budget.steps=3", "--set", "sample_every=0", "log_every=1"]
    assert run("train", "small.toml", "--out", "a", *settings).code == 0
    config = json.loads((place / "a" / "config.json").read_text())
    assert config["budget"]["steps"] == 3
    assert config["log_every"] == 1
    assert not (place / "a" / "samples").exists()


def test_a_terminated_run_saves_exits_with_143_and_resumes_identically(place: Path, run: RunCommand) -> None:
    assert (
        run("train", "small.toml", "--out", "whole", "--set", "budget.steps=200", "save_every=50").code == 0
    )
    environment = os.environ | {"PYTHONPATH": str(Path(bytewright.__file__).parents[1])}
    arguments = ["train", "small.toml", "--out", "parts", "--set", "budget.steps=200", "save_every=50"]
    process = subprocess.Popen(
        [sys.executable, "-m", "bytewright.cli.main", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = place / "parts" / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate()
    if process.returncode != 0:  # it may have been quicker than the signal
        assert process.returncode == 143, err
        assert "after SIGTERM; continue with `bytewright resume parts`" in out
    assert run("resume", "parts").code == 0
    assert digest(place / "parts")["step"] == "step-000200"
    assert digest(place / "parts") == digest(place / "whole")


def test_resuming_a_complete_run_reports_that_it_is_complete(place: Path, run: RunCommand) -> None:
    short = ["--set", "budget.steps=2", "--set", "sample_every=0"]
    assert run("train", "small.toml", "--out", "a", *short).code == 0
    resumed = run("resume", "a")
    assert resumed.code == 0
    assert resumed.out == (
        "a: already complete after 2 steps, its budget of steps is spent (best checkpoint: step 2).\n"
    )


@pytest.mark.parametrize(
    ("number", "code", "saved", "sentence"),
    [
        (signal.SIGINT, 130, 5, "interrupted at once; `bytewright resume a` continues from step 5"),
        (signal.SIGINT, 130, 100, "interrupted at once; `bytewright resume a` continues from step 0"),
        (signal.SIGTERM, 143, 5, "terminated at once; `bytewright resume a` continues from step 5"),
    ],
)
def test_a_second_signal_during_the_save_reports_where_a_resume_continues(
    place: Path,
    run: RunCommand,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    code: int,
    saved: int,
    sentence: str,
) -> None:
    lines_until_signal = 2 if saved == 5 else 1  # step 7 has one, and so has a step that is saved

    def interrupt(operation: str, *paths: Path) -> None:
        """Send the signal when the line of step 7 is written, and again while its checkpoint is."""
        nonlocal lines_until_signal
        lines_until_signal -= operation == "append"
        if lines_until_signal == 0 and (operation == "append" or "step-000007" in str(paths[0])):
            os.kill(os.getpid(), number)

    monkeypatch.setattr(filesystem, "before_operation", interrupt)
    settings = ["--set", "sample_every=0", "log_every=7", "eval_every=100", f"save_every={saved}"]
    stopped = run("train", "small.toml", "--out", "a", *settings)
    assert stopped.code == code
    assert stopped.err.splitlines()[-1] == f"bytewright: {sentence}"
    monkeypatch.undo()
    assert Run.open(place / "a").status.ending == "signal"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("train nowhere.toml --out a", ["nowhere.toml"]),
        ("train sweep.toml --out a", ["sweep.toml: is a sweep, not a recipe"]),
        ("train small.toml --out taken", ["taken", "is not empty"]),
        (
            "train small.toml --out a --set batch_sise=3",
            ["--set: unknown key batch_sise; did you mean batch_size?"],
        ),
        ("train small.toml --out a --set seed=1 optimizer.lr=high", ["bytewright: --set: optimizer.lr must"]),
        ("train small.toml --out a --set optimizer=1", ["bytewright: --set: optimizer must be a table"]),
        (
            "train small.toml --out a --set model.d_model=7",
            ["bytewright: small.toml with --set model.d_model=7: d_model (7) must be a multiple of"],
        ),
        ("train wrong.toml --out a --set seed=1", ["bytewright: wrong.toml: unknown key lrr"]),
        ("train small.toml --out a --set model.context_length=99999", ["train.npy", "needs at least 100000"]),
        (
            "train small.toml --out a --set model.vocab_size=399",
            ["train.npy", "a vocabulary of 400 tokens", "but the model has 399"],
        ),
        (
            "train small.toml --out a --set sample_prompt=owl-owl-owl-owl-owl-owl-owl-owl-owl-owl-owl",
            ["sample_prompt cannot be continued", "leaves no room in the model's context of 16"],
        ),
        ("train small.toml --out a --set optimizer.lr=inf", ["optimizer.lr must be a number above 0"]),
        ("train small.toml --out a --set model.rope_theta=inf", ["rope_theta must be a positive number"]),
        ("resume nowhere", ["nowhere does not exist"]),
        ("resume taken", ["taken: is not a run"]),
        ("evaluate taken", ["taken: is not a run: it has no config.json"]),
        ("generate taken", ["taken: is not a run: it has no config.json"]),
        ("train small.toml --out a --set batch_size=10_000_000_000", ["batch_size", "memory"]),
        ("resume small.toml", ["small.toml: is a file; name the folder of a run"]),
        ("generate small.toml", ["small.toml: is a file"]),
        ("fit taken", ["taken: is not the folder of a sweep", "a JSON file of points"]),
        ("evaluate taken --endings taken", ["taken: has no tasks", "storybook-tasks --out FOLDER"]),
        ("import taken --out a", ["taken is not the folder of a model", "no config.json"]),
        ("corpus storybook --size 100_000TB --out z.txt", ["'100_000TB' is not a size"]),
        (
            "corpus storybook --size 100000TB --out z.txt",
            ["z.txt: the disk has no space for the text: 100000.0 TB are needed"],
        ),
        (
            "corpus worldbook --size 100000TB --out z.txt",
            ["z.txt: the disk has no space for the text: 100000.0 TB are needed"],
        ),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    place: Path, run: RunCommand, command: str, words: list[str]
) -> None:
    (place / "taken").mkdir()
    (place / "taken" / "thesis.txt").write_text("years of work")
    (place / "sweep.toml").write_text('question = "How fast?"\nbase = "small.toml"\n')
    (place / "wrong.toml").write_text("lrr = 1")
    before = sorted(place.rglob("*"))
    outcome = run(*command.split())
    assert outcome.code in (1, 2), outcome
    assert outcome.err.startswith("bytewright: ")
    progress = [line for line in outcome.err.splitlines() if line.startswith("reading the weights of ")]
    assert outcome.err.count("\n") == 1 + len(progress), outcome.err
    for word in words:
        assert word in outcome.err
    assert sorted(place.rglob("*")) == before


def test_a_run_starts_from_weights_and_a_finished_one_is_lengthened(place: Path, run: RunCommand) -> None:
    settings = ("--set", "schedule.kind=constant", "sample_every=0")
    assert run("train", "small.toml", "--out", "runs/a", *settings).code == 0
    started = run(
        "train", "small.toml", "--init", "runs/a", "--init-which", "last", "--out", "runs/b", *settings
    )
    assert started.code == 0, started
    assert Run("runs/b").init["step"] == 20
    longer = run("resume", "runs/b", "--set", "budget.steps=25", "log_every=1")
    assert longer.code == 0, longer
    assert [line["step"] for line in Run("runs/b").metrics][-2:] == [24, 25]
    assert_rejected(run("resume", "runs/b", "--set", "optimizer.lr=1"), "optimizer.lr")
    assert_rejected(run("train", "small.toml", "--out", "x", "--init-optimizer"), "--init")
    assert_rejected(run("train", "small.toml", "--out", "x", "--init", "nothing"), "does not exist")
    assert_rejected(
        run("train", "small.toml", "--out", "x", "--init", "runs/a", "--set", "model.d_model=8"),
        "model.d_model is 8",
        "set model.d_model = ",
    )
    assert run("train", "small.toml", "--out", "runs/c", "--set", "sample_every=0").code == 0
    assert_rejected(run("resume", "runs/c", "--set", "budget.steps=30"), "cosine", "--init runs/c")

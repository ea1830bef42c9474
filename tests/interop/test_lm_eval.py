"""lm-evaluation-harness finds our model class, and its scores are those of Bytewright."""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bytewright.corpus import END_OF_TEXT
from bytewright.errors import UsageError
from bytewright.experiments.evaluation.document_eval import evaluate_text
from bytewright.generate import SamplingConfig, generate
from bytewright.interop.endings import TASKS, read_questions, score_questions, write_tasks
from bytewright.train.run import Run
from bytewright.train.run_model import evaluate_run
from conftest import HANG_SECONDS
from rejection import rejects
from trained_runs import train_runs

pytest.importorskip("lm_eval", reason="lm-eval is missing: pip install '.[interop]'")
# Packages that the harness imports cause these; they say nothing about Bytewright.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

OFFLINE = {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_runs(tmp_path_factory.mktemp("trained"))["llama"]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lm-eval") / "story-tasks"
    write_tasks(folder, 12)
    return folder


@pytest.fixture(scope="module")
def harness(trained: Path) -> Iterator[Any]:
    """Yield the class of the harness with the model of the run."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in OFFLINE.items():
            patch.setenv(name, value)
        module = importlib.import_module("bytewright.interop.lm_eval")
        yield module.BytewrightLM(str(trained), batch_size=8, device="cpu")


def requests(*arguments: tuple[Any, ...]) -> list[Any]:
    return [SimpleNamespace(args=each) for each in arguments]


def test_the_sum_over_windows_is_the_loss_of_evaluate(harness: Any, trained: Path) -> None:
    evaluated = evaluate_run(trained, device="cpu")
    length = harness.max_length
    tokens = np.load(evaluated.file)
    windows = [
        tokens[start : start + length + 1].tolist() for start in range(0, len(tokens) - length, length)
    ]
    scores = harness._loglikelihood_tokens([(None, ids[:1], ids[1:]) for ids in windows], disable_tqdm=True)
    assert len(windows) * length == evaluated.evaluation.num_tokens
    loss = -sum(score for score, _ in scores) / evaluated.evaluation.num_tokens
    assert loss == pytest.approx(evaluated.evaluation.loss, abs=1e-5)


def test_rolling_scores_of_stories_are_the_bits_of_evaluate(
    harness: Any, trained: Path, tmp_path: Path
) -> None:
    texts = ["Kate met an owl.", "The owl had a hat. It was red."]
    (tmp_path / "stories.txt").write_text("".join(f"{text}{END_OF_TEXT}" for text in texts))
    bits = evaluate_text(trained, tmp_path / "stories.txt", device="cpu").evaluation.bits
    scores = harness.loglikelihood_rolling(
        requests(*((text + END_OF_TEXT,) for text in texts)), disable_tqdm=True
    )
    assert [-score / math.log(2) for score in scores] == pytest.approx(bits.tolist(), abs=1e-3)


def test_a_long_text_is_scored_token_by_token_in_windows(harness: Any, trained: Path) -> None:
    text = " ".join(["The owl and Kate sat in the old oak."] * 60)
    ids = Run.open(trained).tokenizer.encode(text)
    length = harness.max_length
    assert len(ids) > 2 * length
    (score,) = harness.loglikelihood_rolling(requests((text,)), disable_tqdm=True)
    first, _ = harness._loglikelihood_tokens(
        [(None, [harness.eot_token_id], ids[:length])], disable_tqdm=True
    )[0]
    assert score < first < 0


def test_a_context_and_its_continuation(harness: Any) -> None:
    ((score, is_greedy),) = harness.loglikelihood(requests(("Kate had a", " hat")), disable_tqdm=True)
    ((whole, _),) = harness.loglikelihood(requests(("", "Kate had a hat")), disable_tqdm=True)
    ((start, _),) = harness.loglikelihood(requests(("", "Kate had a")), disable_tqdm=True)
    assert score < 0
    assert isinstance(is_greedy, bool)
    assert whole < start < 0  # these two also have the end-of-text token before them


def test_the_classes_of_the_harness_stay_registered(harness: Any) -> None:
    registry = importlib.import_module("lm_eval.api.registry")
    assert registry.get_model("bytewright") is type(harness)
    assert registry.get_model("dummy") is not None


def test_an_end_token_precedes_contexts_on_request(trained: Path) -> None:
    module = importlib.import_module("bytewright.interop.lm_eval")
    model = module.BytewrightLM(str(trained), device="cpu", add_bos_token=True)
    end = model.eot_token_id
    assert model.tok_encode("owl")[0] == end
    assert model.tok_encode(f"{END_OF_TEXT}owl").count(end) == 1
    assert model.tok_encode("owl", add_special_tokens=False)[0] != end


def test_generation_is_ours_up_to_the_stop_strings(harness: Any, trained: Path) -> None:
    run = Run.open(trained)
    tokenizer = run.tokenizer
    prompts = ["Kate had a", "One fresh spring evening, Kate"]
    sampling = SamplingConfig(
        max_new_tokens=40, temperature=0.0, num_ids=512, stop_tokens=(harness.eot_token_id,)
    )
    completions = generate(run.load_model(), [tokenizer.encode(prompt) for prompt in prompts], sampling)
    whole = [tokenizer.decode(completion.ids) for completion in completions]
    settings = {"until": ["."], "max_gen_toks": 40, "do_sample": False}
    found = harness.generate_until(requests(*((prompt, settings) for prompt in prompts)), disable_tqdm=True)
    assert found == [text.split(".")[0] for text in whole]
    settings = {"until": [], "max_gen_toks": 40}
    assert harness.generate_until(requests((prompts[0], settings)), disable_tqdm=True) == whole[:1]


def test_sampling_uses_the_given_seed(harness: Any) -> None:
    settings = {"until": [], "max_gen_toks": 20, "do_sample": True, "temperature": 1.0, "seed": 4}
    asked = requests(("Kate", settings), ("Kate", settings | {"seed": 5}), ("Kate", settings))
    first, second, third = harness.generate_until(asked, disable_tqdm=True)
    assert first != second
    assert harness.generate_until(asked[:1], disable_tqdm=True) == [first]
    assert third != first  # another row of the same batch


def test_unknown_settings_are_rejected(harness: Any, trained: Path) -> None:
    with rejects(UsageError, key="num_beams"):
        harness.generate_until(requests(("Kate", {"until": [], "num_beams": 4})), disable_tqdm=True)
    module = importlib.import_module("bytewright.interop.lm_eval")
    with rejects(UsageError, key="which", found="worst"):
        module.BytewrightLM(str(trained), which="worst")


# The command of the harness


def run_harness(*command: str, folder: Path) -> tuple[subprocess.CompletedProcess[str], dict[str, float]]:
    """Run the harness in a process of its own, offline; return the accuracy of each task too."""
    environment = os.environ | OFFLINE | {"HF_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--output_path", str(folder / "results.json")],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    found = sorted(folder.glob("results*.json"))
    if not found:
        return done, {}
    results = json.loads(found[-1].read_text())["results"]
    return done, {task: figures["acc,none"] for task, figures in results.items()}


@pytest.fixture(scope="module")
def expected(trained: Path, tasks: Path) -> dict[str, float]:
    """Return the accuracy of each task by Bytewright alone."""
    run = Run.open(trained)
    model, tokenizer = run.load_model(), run.tokenizer
    return {
        task: score_questions(model, tokenizer, read_questions(tasks / f"{task}.jsonl")).accuracy
        for task in TASKS
    }


def test_the_command_lm_eval_scores_the_stories_as_we_do(
    trained: Path, tasks: Path, expected: dict[str, float], tmp_path: Path
) -> None:
    command = [str(Path(sys.executable).with_name("lm_eval")), "--model", "bytewright", "--device", "cpu"]
    arguments = ["--model_args", f"run={trained}", "--tasks", str(tasks), "--batch_size", "16"]
    done, found = run_harness(*command, *arguments, folder=tmp_path)
    assert found == expected, done.stderr[-3000:]


def test_our_module_runs_the_harness_with_tasks_by_name(
    trained: Path, tasks: Path, expected: dict[str, float], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "bytewright.interop.lm_eval", "--model", "bytewright", "--device", "cpu"]
    arguments = ["--model_args", f"run={trained}", "--include_path", str(tasks), "--tasks", "storybook"]
    done, found = run_harness(*command, *arguments, folder=tmp_path)
    assert found == expected, done.stderr[-3000:]
    assert done.returncode == 0


def test_a_missing_run_is_one_sentence(tasks: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bytewright.interop.lm_eval", "--model", "bytewright"]
    done, _ = run_harness(*command, "--model_args", "run=nowhere", "--tasks", str(tasks), folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("bytewright: ")
    assert "Traceback" not in done.stderr

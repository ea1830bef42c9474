"""The examples of plugins go through train, kill, resume, sweep, report, generate and export."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import bytewright
from bytewright.generate import SamplingConfig, generate
from bytewright.generate.generator import GenerationWarning
from bytewright.generate.reference import generate_reference
from bytewright.plugins import load_plugin, unload_plugin
from bytewright.tokenizer import Tokenizer
from bytewright.train.checkpoint import CheckpointFolder
from bytewright.train.run import Run
from conftest import HANG_SECONDS, Outcome, RunCommand
from runs import STORY_RECIPE, digest

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("lion", "relu_squared", "z_loss")

PARTS = """
[schedule]
kind = "constant"
[loss]
name = "z_loss"
[sampler]
name = "top_k"
[budget]
"""
RECIPE = (
    STORY_RECIPE.replace("[model]", 'save_every = 10\nsample_every = 10\n[model]\nffn = "relu_squared"')
    .replace("[optimizer]", '[optimizer]\nname = "lion"')
    .replace("[budget]\n", f"{PARTS}steps = 100_000\n")
)
SWEEP = """
base = "lab.toml"
question = "Does it work?"
seeds = 2
keep = "model"
[set]
"budget.steps" = 20
"""


@pytest.fixture
def place(tmp_path: Path, stories: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a recipe, a sweep, their data and copies of the examples."""
    monkeypatch.chdir(tmp_path)
    loaded = Tokenizer.load(tokenizer)
    loaded.save(tmp_path / "tok")
    loaded.encode_file(stories, tmp_path / "train.npy")
    loaded.encode_file(stories, tmp_path / "valid.npy")
    (tmp_path / "lab.toml").write_text(RECIPE)
    (tmp_path / "two.toml").write_text(SWEEP)
    for name in NAMES:
        (tmp_path / f"{name}.py").write_bytes((EXAMPLES / f"{name}.py").read_bytes())
    yield tmp_path
    unload_all(tmp_path)


def unload_all(folder: Path) -> None:
    """Unload the plugins, as at the end of a process."""
    for path in folder.rglob("*.py"):
        unload_plugin(path)


def assert_rejected(outcome: Outcome, *words: str) -> None:
    assert (outcome.code, outcome.err.count("\n")) == (2, 1), outcome
    for word in words:
        assert word in outcome.err


def train_and_kill(arguments: list[str], run: Path) -> None:
    """Start a training process, and kill it after it has written a checkpoint."""
    source = str(Path(bytewright.__file__).parents[1])
    process = subprocess.Popen(
        [sys.executable, "-m", "bytewright", "train", "lab.toml", "--out", str(run), *arguments],
        env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + HANG_SECONDS
    while not CheckpointFolder(run / "checkpoints").steps():
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.fault
@pytest.mark.filterwarnings("ignore::bytewright.generate.generator.GenerationWarning")
def test_the_examples_go_through_all_commands(place: Path, run: RunCommand) -> None:
    plugins = [word for name in NAMES for word in ("--plugin", f"{name}.py")]

    def run_alone(*arguments: str) -> Outcome:
        outcome = run(*arguments)
        unload_all(place)
        return outcome

    assert_rejected(run_alone("train", "lab.toml", "--out", "runs/a"), "lab.toml: ", "plugin")
    train_and_kill(plugins, place / "runs" / "a")
    killed = Run(place / "runs/a")
    assert {path.name for path in (killed.path / "plugins").iterdir()} == {f"{name}.py" for name in NAMES}
    recorded = {plugin.copy.name: plugin for plugin in killed.plugins}
    assert dict(recorded["z_loss.py"].parts) == {"loss.name": "z_loss"}
    assert recorded["z_loss.py"].sha256 == hashlib.sha256((place / "z_loss.py").read_bytes()).hexdigest()

    # Resume: only with the same files
    num_steps = killed.checkpoints.steps()[-1] + 20
    killed.change_setting("budget", {"steps": num_steps})
    all_files = " ".join(f"--plugin {place / name}.py" for name in ("relu_squared", "z_loss", "lion"))
    assert_rejected(run_alone("resume", "runs/a"), "'relu_squared'", all_files)
    source = (place / "z_loss.py").read_text()
    (place / "z_loss.py").write_text(source + "\n")
    changed = run_alone("resume", "runs/a", *plugins)
    assert_rejected(changed, "'z_loss'", recorded["z_loss.py"].sha256[:12], "plugins/z_loss.py")
    (place / "z_loss.py").write_text(source)
    assert run_alone("resume", "runs/a", *plugins).code == 0
    steps = f"budget.steps={num_steps}"
    assert run_alone("train", "lab.toml", "--out", "runs/whole", *plugins, "--set", steps).code == 0
    resumed, whole = digest(killed.path), digest(place / "runs/whole")
    assert [resumed[name] for name in ("step", "weights", "optimizer")] == [
        whole[name] for name in ("step", "weights", "optimizer")
    ]

    # A sweep with two processes, and reports without the plugins
    swept = run_alone("sweep", "two.toml", *plugins, "--jobs", "2")
    assert swept.code == 0, swept
    for seed in (0, 1):
        of_seed = Run(place / f"runs/two/seed-{seed}")
        assert of_seed.outcome["status"] == "complete"
        assert of_seed.plugin_digests == killed.plugin_digests
    assert "seed-1" in (place / "runs/two/report.html").read_text()
    assert run_alone("report", "runs/a").code == 0
    assert "z_loss.py" in (place / "runs/a/report.md").read_text()
    listed = run_alone("runs", "runs")
    assert listed.code == 0, listed
    assert json.loads(run_alone("runs", "runs/a", "--json").out)[0]["plugins"].startswith("relu_squared.py (")

    # Generation and evaluation need the part of the model only
    of_model = ("--plugin", "relu_squared.py")
    prompt = ("--prompt", "One morning", "--max-new-tokens", "6")
    assert_rejected(run_alone("generate", "runs/a", *prompt), "'relu_squared'", "relu_squared.py")
    written = run_alone("generate", "runs/a", *prompt, *of_model)
    assert written.code == 0, written
    assert written.out.startswith("One morning")
    assert len(killed.samples) > 1
    one_left = run_alone(
        "generate", "runs/a", *prompt, *of_model, "--sampler", "top_k", "--sampler-options", "k=1"
    )
    assert one_left.code == 0, one_left
    assert one_left.out == run_alone("generate", "runs/a", *prompt, *of_model, "--temperature", "0").out
    evaluated = run_alone("evaluate", "runs/a", "--json", *of_model)
    assert 0 < json.loads(evaluated.out)["bits_per_byte"] < 8
    assert_rejected(run_alone("export", "runs/a", "--to", "hf", "--out", "hf"), "'relu_squared'")
    refused = run_alone("export", "runs/a", "--to", "hf", "--out", "hf", *of_model)
    assert_rejected(refused, "relu_squared")
    assert not (place / "hf").exists()

    load_plugin(place / "relu_squared.py")
    model = killed.load_model()
    sampling = SamplingConfig(max_new_tokens=12, seed=5)
    prompts = [[3, 4, 5], [6]]
    with pytest.warns(GenerationWarning, match="ReLUSquared"):
        completions = generate(model, prompts, sampling)
    assert completions == [generate_reference(model, ids, sampling, row) for row, ids in enumerate(prompts)]

"""`bytewright account` prints predictions, and one sentence for invalid options."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from bytewright.account import DEVICES, PRESETS, account, count_parameters, find_preset
from bytewright.model import ModelConfig
from bytewright.train.recipe import read_recipe
from bytewright.train.session.costs import predict_run
from conftest import RunCommand

RECIPES = Path(__file__).parents[2] / "recipes"


def figures(run: RunCommand, *arguments: str) -> dict[str, Any]:
    outcome = run("account", *arguments, "--json")
    assert outcome.code == 0, outcome.err
    found: dict[str, Any] = json.loads(outcome.out)
    return found


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_has_an_account(run: RunCommand, preset: str) -> None:
    found = figures(run, "--preset", preset)
    added = ("setup", "answer")
    assert {key: value for key, value in found.items() if key not in added} == json.loads(
        json.dumps(account(find_preset(preset)).to_dict())
    )
    assert found["batch_size"] == 1
    assert found["answer"]["num_tokens"] == 20 * found["parameters"]["total"]


XL_ON_H100 = ["--preset", "gpt2-xl", "--memory", "80GB", "--device", "h100", "--tokens", "1e9"]


def test_the_answer_is_one_short_table(run: RunCommand) -> None:
    outcome = run("account", *XL_ON_H100)
    assert outcome.code == 0
    rows = [line.split("  ")[0] for line in outcome.out.splitlines()[2:]]
    assert rows == ["parameters", "training FLOPs", "memory", "largest batch", "time", "energy"]
    for words in ("2,127,057,600", "1,000,000,000 tokens", "fits into 80.00 GB", "at 700 W"):
        assert words in outcome.out, words


def test_the_details_contain_the_expected_figures(run: RunCommand) -> None:
    outcome = run("account", *XL_ON_H100, "--details")
    assert outcome.code == 0
    assert outcome.out.startswith(run("account", *XL_ON_H100).out)
    assert "\\n" not in outcome.out  # an escaped line break
    for words in (
        "2,127,057,600",
        "8.51 GB (7.92 GiB)",
        "(1,024 x 1,600) (1,600 x 50,257)",
        "4.513 TFLOP",
        "32·L·T·d + 8·H·L·T² + 16·L·T·f + 4·T·d + 8·T·V",
        "b = 16·P = 34.03 GB",
        "largest batch in 80GB: 2",
        "reference, fp32, eager",
        "fused, bf16, compiled",
        "keys and values",
        "29.78 GFLOP",
        "bound by",
        "a step: ",
    ):
        assert words in outcome.out, words


def test_any_size_can_be_changed_and_context_has_two_names(run: RunCommand) -> None:
    changed = figures(run, "--preset", "gpt2-xl", "--d-ff", "4288", "--context", "16384", "--batch", "3")
    assert changed["config"]["d_ff"] == 4288
    assert changed["num_tokens"] == 16_384
    assert changed["batch_size"] == 3
    assert changed == figures(
        run, "--preset", "gpt2-xl", "--d-ff", "4288", "--context-length", "16384", "--batch", "3"
    )
    other = figures(
        run, "--preset", "base", "--norm", "post", "--tie-embeddings", "True", "--num-kv-heads", "4"
    )
    assert other["parameters"]["head"] == 0
    assert other["parameters"]["final_norm"] == 0


def test_a_recipe_and_the_config_of_a_run_are_read(run: RunCommand, tmp_path: Path) -> None:
    recipe = Path(__file__).parents[2] / "recipes" / "base.toml"
    expected = figures(run, "--preset", "base")["parameters"]
    assert figures(run, "--config", str(recipe))["parameters"] == expected
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model": find_preset("base").to_dict(), "seed": 0}))
    assert figures(run, "--config", str(config))["parameters"] == expected


def test_a_recipe_determines_batch_budget_and_all_other_settings(run: RunCommand, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        "batch_size = 8\naccumulate = 4\nprecision = 'bf16'\ncompile = 'on'\ndevice = 'cpu'\n"
        "[model]\nvocab_size = 100\ncontext_length = 16\nd_model = 32\nnum_layers = 2\nnum_heads = 2\n"
        "[data]\ntrain = 'missing.npy'\n[budget]\nsteps = 10\n[optimizer]\nname = 'muon'\n"
    )
    found = figures(run, "--config", str(recipe))
    assert found["setup"] == {
        "batch_size": 8,
        "accumulate": 4,
        "precision": "bf16",
        "compiled": True,
        "optimizer": "muon",
        "device_kind": "cpu",
        "ranks": 1,
        "strategy": "replicate",
        "reduction": "exact",
    }
    assert found["batch_size"] == 2
    assert found["answer"]["num_tokens"] == 10 * 8 * 16
    changed = figures(
        run, "--config", str(recipe), "--batch", "4", "--accumulate", "1", "--precision", "fp32",
        "--compile", "off", "--optimizer", "sgd", "--context", "8", "--device", "h100",
    )  # fmt: skip
    assert changed["setup"] == {
        "batch_size": 4,
        "accumulate": 1,
        "precision": "fp32",
        "compiled": False,
        "optimizer": "sgd",
        "device_kind": "cuda",
        "ranks": 1,
        "strategy": "replicate",
        "reduction": "exact",
    }
    assert changed["answer"]["num_tokens"] == 10 * 4 * 8
    assert figures(run, "--config", str(recipe), "--tokens", "77")["answer"]["num_tokens"] == 77
    replaced = figures(run, "--config", str(recipe), "--set", "batch_size=16", "model.ffn=silu")
    assert (replaced["setup"]["batch_size"], replaced["setup"]["optimizer"]) == (16, "muon")
    assert replaced["parameters"] == figures(run, "--config", str(recipe), "--ffn", "silu")["parameters"]


def test_the_memory_of_a_recipe_is_that_which_its_run_records(run: RunCommand) -> None:
    path = RECIPES / "tiny.toml"
    predicted = predict_run(read_recipe(path), None, torch.device("cpu"))
    answer = figures(run, "--config", "tiny")["answer"]
    assert answer == figures(run, "--config", str(path))["answer"]
    assert answer["memory_bytes"] == predicted["memory_bytes"]
    assert answer["parameters"] == predicted["parameters"]


def test_a_budget_of_minutes_determines_the_tokens(run: RunCommand, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    text = (RECIPES / "base.toml").read_text()
    recipe.write_text(re.sub(r"\[budget\][^\[]*", "[budget]\nminutes = 5\n\n", text))
    answer = figures(run, "--config", str(recipe), "--device", "h200")["answer"]
    assert answer["seconds"] == pytest.approx(300, rel=1e-6)
    assert not answer["has_assumed_tokens"]
    assert figures(run, "--config", str(recipe))["answer"]["has_assumed_tokens"]


def test_a_number_of_parameters_prints_a_table_for_a_recipe(run: RunCommand) -> None:
    outcome = run("account", "--parameters", "1e9", "--tie-embeddings", "True")
    assert outcome.code == 0
    table = tomllib.loads(outcome.out[outcome.out.index("[model]") :])["model"]
    total = count_parameters(ModelConfig(**table)).total
    assert total == pytest.approx(1e9, rel=0.02)
    assert table["tie_embeddings"]


def test_an_own_device_equals_a_named_one_with_the_same_rates(run: RunCommand) -> None:
    named = figures(run, "--preset", "base", "--device", "rtx4090")
    own = figures(
        run, "--preset", "base", "--device-tflops", "165.2", "--device-bandwidth", "1008GB/s",
        "--device-memory", "24GB", "--device-watts", "450",
    )  # fmt: skip
    assert own["answer"].pop("sent_bytes") == named["answer"].pop("sent_bytes") == {}
    assert own["answer"] == pytest.approx(named["answer"])
    assert own["answer"]["kilowatt_hours"] == pytest.approx(own["answer"]["seconds"] * 450 / 3.6e6)
    more = figures(run, "--preset", "base", "--device", "rtx4090", "--device-memory", "48GB")
    assert more["answer"]["largest_batch"] > named["answer"]["largest_batch"]


def test_a_model_that_is_too_large_does_not_fit(run: RunCommand) -> None:
    asked = ["--preset", "gpt2-xl", "--device", "rtx4060"]
    answer = figures(run, *asked)["answer"]
    assert answer["fits"] is False
    assert answer["largest_batch"] == 0
    assert "does NOT fit into 8.00 GB" in run("account", *asked).out


def test_the_help_names_every_device(run: RunCommand) -> None:
    words = set(re.findall(r"[a-z]+\d+", run("account", "--help").out))
    assert set(DEVICES) <= words


def test_gb_and_gib_give_different_batches(run: RunCommand) -> None:
    shape = ["--preset", "gpt2-xl", "--context", "128"]
    decimal = figures(run, *shape, "--memory", "80GB")["largest_batches"]
    binary = figures(run, *shape, "--memory", "80GiB")["largest_batches"]
    assert decimal["textbook formula"] < binary["textbook formula"]


def test_days_are_computed_from_a_given_utilisation(run: RunCommand) -> None:
    # 400K steps of 1,024 sequences on an A100 in true fp32, at half of its peak.
    tokens = 400_000 * 1024 * 1024
    found = figures(
        run, "--preset", "gpt2-xl", "--device", "a100", "--precision", "fp32", "--mfu", "0.5",
        "--tokens", str(tokens),
    )  # fmt: skip
    assert found["time"]["days"] == pytest.approx(6584, abs=1)


def test_this_machine_can_be_measured(run: RunCommand) -> None:
    found = figures(run, "--preset", "base", "--device", "measure")["time"]
    assert found["device"]["is_measured"]
    assert found["tokens_per_second"] > 0
    assert found["device"]["watts"] is None or torch.cuda.is_available()


def test_no_time_is_predicted_without_a_measurement(run: RunCommand) -> None:
    asked = ["--preset", "base", "--device", "h100", "--precision", "fp32", "--tokens", "1e9"]
    found = figures(run, *asked)["time"]
    assert found["seconds_per_step"] is found["tokens_per_second"] is found["days"] is None
    assert found["least_seconds"] > 0
    outcome = run("account", *asked)
    assert outcome.code == 0
    assert "no such step was measured (fp32, compiled, fused); state the share" in outcome.out
    assert "a step: at least " in run("account", *asked, "--details").out


def test_the_family_is_printed_and_plotted(run: RunCommand, tmp_path: Path) -> None:
    outcome = run("account", "--family", "--plot", tmp_path / "shares.svg")
    assert outcome.code == 0
    assert "gpt2-xl" in outcome.out
    assert "55.2%" in outcome.out
    assert (tmp_path / "shares.svg").read_text().startswith("<svg")


def test_sizes_beyond_any_machine_are_computed(run: RunCommand) -> None:
    sizes = ["--d-model", str(2**20), "--num-heads", "1024", "--num-layers", "500", "--d-ff", str(2**22)]
    found = figures(run, *sizes, "--memory", "80GB", "--device", "b200")
    assert found["parameters"]["total"] > 10**15
    assert set(found["largest_batches"].values()) == {0}
    assert run("account", *sizes).code == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--num-heads", "7"], "d_model (768) must be a multiple of num_heads (7)"),
        (["--d-model", "-4"], "d_model must be a positive whole number, but is -4"),
        (["--context", "0"], "context_length must be a positive whole number, but is 0"),
        (
            ["--device-memory", "24GB"],
            "--device-tflops is missing; set it, or name a device with --device",
        ),
        (["--device-tflops", "-1"], "--device-tflops must be a number from 1e-06 to 1e+30, but is -1.0"),
        (["--device-watts", "1e308"], "--device-watts must be a number from 1e-06 to 1e+30, but is 1e+308"),
        (["--memory", ""], "--memory '' is not a size; write a number and a unit: 80GB (10⁹) or 80GiB (2³⁰)"),
        (["--preset", "base", "--parameters", "1e9"], "give either --preset or --parameters, not both"),
        (
            ["--parameters", "1000"],
            "parameters must be a number from 1,000,000 to 1,000,000,000,000, but is 1000.0",
        ),
        (
            ["--parameters", "1e9", "--d-model", "64"],
            "d_model cannot be given together with a number of parameters, which determines it",
        ),
        (["--batch", "8", "--accumulate", "3"], "batch_size (8) must be a multiple of accumulate (3)"),
        (["--device", "h100", "--tokens", "-5"], "--tokens must be a number from 1 to 1e+30, but is -5.0"),
        (
            ["--device", "h100", "--tokens", "inf", "--json"],
            "--tokens must be a number from 1 to 1e+30, but is inf",
        ),
        (
            ["--preset", "base", "--config", "x.toml"],
            "give either --preset or --config, not both",
        ),
        (["--family", "--d-ff", "4"], "--d-ff has no effect with --family, which uses the sizes of GPT-2"),
        (["--mfu", "0.5"], "--mfu needs --device, which determines the peak"),
        (["--batch", "0"], "batch_size must be a number above 0, but is 0"),
        (["--preset", "gpt2-lagre"], "unknown preset 'gpt2-lagre'; did you mean gpt2-large?"),
        (["--device", "h10"], "unknown device 'h10'; did you mean h100?"),
        (
            ["--memory", "80"],
            "--memory '80' is not a size; write a number and a unit: 80GB (10⁹) or 80GiB (2³⁰)",
        ),
        (
            ["--memory", "80XB"],
            "--memory '80XB' is not a size; write a number and a unit: 80GB (10⁹) or 80GiB (2³⁰)",
        ),
        (["--device", "h100", "--mfu", "2"], "mfu must be above 0 and at most 1, but is 2.0"),
        (["--plot", "x.svg"], "--plot needs --family"),
        (["--preset", "base", "--set", "batch_size=4"], "--set needs --config, whose values it replaces"),
    ],
)
def test_invalid_options_are_one_sentence(run: RunCommand, arguments: list[str], sentence: str) -> None:
    outcome = run("account", *arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err == f"bytewright: {sentence}\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[model]\nd_modle = 3\n", "unknown key model.d_modle; did you mean model.d_model?"),
        ("model = 3\n", "model must be a table"),
        ("[model\n", "is not valid TOML"),
        ("[model]\nvocab_size = 10\n", "is missing"),
        ('base = "base.toml"\n', "is a sweep; use its base recipe, base.toml"),
    ],
)
def test_a_file_without_a_model_is_one_sentence(
    run: RunCommand, tmp_path: Path, content: str, words: str
) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(content)
    outcome = run("account", "--config", path)
    assert outcome.code == 2
    assert outcome.err.startswith(f"bytewright: {path}: ")
    assert words in outcome.err

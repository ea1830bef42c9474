"""Recipes are read as written; errors name the file and the key."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from bytewright.errors import BytewrightError, FormatError, UsageError
from bytewright.storage import atomic
from bytewright.storage.config_reader import build
from bytewright.train.config import TrainConfig
from bytewright.train.recipe import read_config, read_recipe, to_plain
from rejection import rejects
from runs import make_config, make_fields

RECIPES = [  # of one run; what names a base recipe is a sweep over it
    path
    for path in sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))
    if "base" not in tomllib.loads(path.read_text())
]

SMALL = """
batch_size = 4
[model]
vocab_size = 40
context_length = 8
d_model = 16
num_layers = 2
num_heads = 2
[data]
train = "train.npy"
[budget]
steps = 5
"""


def write(folder: Path, text: str) -> Path:
    (folder / "small.toml").write_text(text)
    return folder / "small.toml"


def test_a_config_survives_being_written_as_json(tmp_path: Path) -> None:
    config = make_config(tmp_path, budget={"steps": None, "minutes": 1.5}, optimizer={"name": "muon"})
    atomic.write_json(tmp_path / "config.json", to_plain(config))
    assert read_config(tmp_path / "config.json") == config


def test_a_recipe_is_read_and_overridden(tmp_path: Path) -> None:
    path = write(tmp_path, SMALL)
    assert read_recipe(path).model.d_model == 16
    changed = read_recipe(
        path,
        ["model.d-model=32", "optimizer.lr=3e-4", "schedule.kind=wsd", "data.validation=a b.npy", "seed=7"],
    )
    assert changed.model.d_model == 32
    assert changed.optimizer.lr == 3e-4
    assert changed.schedule.kind == "wsd"
    assert changed.data.validation == Path("a b.npy")
    assert changed.seed == 7


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("steps = 5", "stesp = 5", "unknown key budget.stesp; did you mean budget.steps?"),
        ("batch_size = 4", "batchsize = 4", "unknown key batchsize; did you mean batch_size?"),
        ("batch_size = 4", "zebra = 4", "unknown key zebra; known are model, data"),
        ("batch_size = 4", '"batch\\nsize" = 4', r"unknown key 'batch\nsize'; did you mean batch_size?"),
        ("batch_size = 4", f"{'z' * 10_000} = 4", f"unknown key '{'z' * 18}...{'z' * 19}'; known are model"),
        (
            "batch_size = 4",
            f"schedule = [{'5, ' * 10_000}]",
            "schedule must be a table, not [5, 5, 5, 5, 5, 5, ...]",
        ),
        ("d_model = 16", 'd_model = "wide"', "model.d_model must be a whole number, but is 'wide'"),
        ("d_model = 16", "d_model = 16.0", "model.d_model must be a whole number, but is 16.0"),
        ("d_model = 16", "d_model = true", "model.d_model must be a whole number, but is True"),
        ("d_model = 16", "d_model = 15", "d_model (15) must be a multiple of num_heads (2)"),
        ("d_model = 16\n", "", "model.d_model is missing"),
        ("steps = 5", "steps = 0", "budget.steps must be a number above 0, but is 0"),
        ("steps = 5", "", "the budget has no limit"),
        ('train = "train.npy"', "train = 5", "data.train must be a path, but is 5"),
        ('train = "train.npy"', "", "data.train is missing"),
        ('train = "train.npy"', r'train = "a\u0000b"', "data.train must be a path, but is 'a\\x00b'"),
        (
            "[budget]",
            f"[optimizer]\nlr = {10**400}\n[budget]",
            "optimizer.lr must be a number, but is 1000",
        ),
        ("[budget]", "[[budget]]", "budget must be a table, not [{'steps': 5}]"),
        (
            "batch_size = 4",
            "batch_size = 4\naccumulate = 3",
            "batch_size (4) must be a multiple of accumulate (3)",
        ),
        ("batch_size = 4", 'precision = "fp8"', "precision must be one of 'fp32', 'bf16', but is 'fp8'"),
        ("batch_size = 4", "batch_size = nan", "batch_size must be a whole number, but is nan"),
        ("[budget]", "[optimizer]\nlr = nan\n[budget]", "optimizer.lr must be a number above 0, but is nan"),
        ("[budget]", "[optimizer]\nlr = inf\n[budget]", "optimizer.lr must be a number above 0, but is inf"),
        ("[budget]", "[optimizer]\nlr = 1e300\n[budget]", "optimizer.lr is 1e+300; the largest float32 is"),
        ("[budget]", "[optimizer]\neps = 1e-300\n[budget]", "optimizer.eps must be at least 1.2e-38"),
        ("[budget]", "[optimizer]\nmuon_lr = 1e39\n[budget]", "optimizer.muon_lr is 1e+39; the largest"),
        (
            "batch_size = 4",
            f"batch_size = {10**30}",
            "batch_size must be at most 9223372036854775807",
        ),
        (
            "[budget]",
            "[optimizer]\nweight_decay = inf\n[budget]",
            "weight_decay must be a finite number of at least 0",
        ),
        (
            "[budget]",
            "[optimizer]\nbeta2 = 1.0\n[budget]",
            "optimizer.beta2 must be at least 0 and less than 1",
        ),
        ("[budget]", "[schedule]\nfinal = 2\n[budget]", "schedule.final must be a fraction from 0 to 1"),
        ("[budget]", "[budget", "is not valid TOML"),
    ],
)
def test_an_error_in_a_recipe_names_the_file_and_the_key(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in SMALL
    path = write(tmp_path, SMALL.replace(old, new))
    with pytest.raises(BytewrightError) as raised:
        read_recipe(path)
    assert raised.value.exit_code == 2
    assert str(raised.value).startswith(f"{path}: ")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("override", "fields"),
    [
        ("steps", {"found": "steps"}),
        ("model.d_modle=5", {"key": "model.d_modle"}),
        ("batch_size.x=5", {"key": "batch_size.x"}),
        ("model.d_model=wide", {"key": "model.d_model", "found": "wide"}),
    ],
)
def test_a_wrong_override_is_rejected_with_its_key(
    tmp_path: Path, override: str, fields: dict[str, Any]
) -> None:
    with rejects(UsageError, **fields):
        read_recipe(write(tmp_path, SMALL), [override])


@pytest.mark.parametrize("content", [b"[]", b"3", b'{"model": []}', b"\xff", b'{"a": 1, "a": 1}'])
def test_a_hostile_config_of_a_run_is_rejected(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises((UsageError, FormatError)):
        read_config(tmp_path / "config.json")


def test_every_field_has_a_place_in_the_plain_form(tmp_path: Path) -> None:
    plain: dict[str, Any] = to_plain(make_config(tmp_path))
    assert set(make_fields(tmp_path)) <= set(plain)
    assert build(TrainConfig, plain, source="plain") == make_config(tmp_path)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_recipes_of_this_repository_are_sound(path: Path) -> None:
    config = read_recipe(path)
    assert config.num_steps
    assert config.schedule.warmup < config.num_steps


def test_the_base_recipe_is_the_base_experiment() -> None:
    (path,) = (path for path in RECIPES if path.stem == "base")
    config = read_recipe(path)
    model = config.model
    assert (model.vocab_size, model.context_length, model.d_model, model.ffn_width) == (
        10_000,
        256,
        512,
        1344,
    )
    assert (model.num_layers, model.num_heads, model.rope_theta) == (4, 16, 10_000)
    assert config.budget.tokens == 327_680_000

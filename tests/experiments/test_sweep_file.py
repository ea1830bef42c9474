"""A sweep file expands into its runs, or raises an error with the file and the key."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bytewright.errors import BytewrightError, UsageError
from bytewright.experiments.axis_values import expand_axis
from bytewright.experiments.plan import with_data
from bytewright.experiments.sweep import Sweep, read_sweep
from bytewright.experiments.sweep_file import read_sweep_file
from bytewright.shipped_recipes import find_recipe
from bytewright.storage.config_reader import build
from bytewright.train.config import DataConfig
from rejection import rejects

BASE = """
batch_size = 8
[model]
vocab_size = 400
context_length = 16
d_model = 16
num_layers = 1
num_heads = 2
[data]
train = "train.npy"
[budget]
steps = 20
"""


RECIPE_FOLDER = Path(__file__).parents[2] / "recipes"


def read(folder: Path, text: str, *, base: str = BASE, **more: object) -> Sweep:
    (folder / "base.toml").write_text(base)
    (folder / "rates.toml").write_text('base = "base.toml"\n' + text)
    return read_sweep(folder / "rates.toml", **more)  # type: ignore[arg-type]


def names(sweep: Sweep) -> list[str]:
    return [trial.name for trial in sweep.trials]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([3, "a"], [3, "a"]),
        ({"from": 1, "to": 4, "step": 1}, [1, 2, 3, 4]),
        ({"from": 0.0, "to": 0.9, "step": 0.3}, [0.0, 0.3, 0.6, 0.9]),
        ({"from": 64, "to": 1, "factor": 0.25}, [64, 16, 4, 1]),
        ({"from": 1, "to": 1000, "factor": 2}, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]),
        ({"from": 1e-4, "to": 1e-2, "count": 3, "log": True}, [1e-4, 1e-3, 1e-2]),
        ({"from": 1e-4, "to": 1e-2, "count": 2}, [1e-4, 1e-2]),
        ({"from": 5, "to": 5, "count": 1}, [5]),
        ({"from": 0.99, "to": 0.9995, "count": 3}, [0.99, 0.99475, 0.9995]),
        ({"from": 0.9985, "to": 0.9995, "step": 0.0005}, [0.9985, 0.999, 0.9995]),
        ({"from": 65536.0, "to": 262144.0, "factor": 2}, [65536.0, 131072.0, 262144.0]),
        ({"from": 1000, "to": 2000, "count": 3}, [1000, 1500, 2000]),
        ({"from": -0.3, "to": 0.3, "step": 0.1}, [-0.3, -0.2, -0.1, 0.0, 0.1, 0.2, 0.3]),
        ({"from": 0.3, "to": 0.0, "step": -0.1}, [0.3, 0.2, 0.1, 0.0]),
        ({"from": 1e-21, "to": 1.0, "factor": 1e7}, [1e-21, 1e-14, 1e-7, 1.0]),
        ({"from": 0, "to": 1, "count": 3}, [0, 0.5, 1]),
        ({"from": 0, "to": 1.0, "step": 0.5}, [0.0, 0.5, 1.0]),
        ({"from": 0.0, "to": 1.0, "step": 0.3}, [0.0, 0.3, 0.6, 0.9]),
        ({"from": 1, "to": 4096, "count": 7, "log": True}, [1, 4, 16, 64, 256, 1024, 4096]),
        ({"from": 1.2345e-3, "to": 0.98765, "count": 3, "log": True}, [1.2345e-3, 0.0349, 0.98765]),
        ({"from": 10**18 + 1, "to": 10**18 + 3, "step": 2}, [10**18 + 1, 10**18 + 3]),
    ],
)
def test_an_axis_is_expanded(value: object, expected: list[object]) -> None:
    found = expand_axis(value, "x")
    assert found == expected
    assert [type(item) for item in found] == [type(item) for item in expected]


@pytest.mark.parametrize(
    "value",
    [
        [],
        [1, 1],
        [[1]],
        3,
        {"from": 1, "to": 2},
        {"from": 1, "to": 2, "step": 1, "count": 2},
        {"from": 1, "too": 2, "step": 1},
        {"from": 1, "to": 2, "step": 0},
        {"from": 1, "to": 2, "step": -1},
        {"from": 0, "to": 2, "factor": 2},
        {"from": 0.0, "to": 1.0, "count": 3, "log": True},
        {"from": 1, "to": 2, "count": 0},
        {"from": "a", "to": 2, "count": 2},
        {"from": 1, "to": 10**400, "factor": 10},
        {"from": 1, "to": 2, "factor": 1},
        {"from": 1, "to": 2, "count": 1},
        {"from": 1, "to": 9, "factor": 3, "log": True},
        {"from": 1, "to": 9, "count": 3, "log": "false"},
    ],
)
def test_an_invalid_axis_is_rejected(value: object) -> None:
    with pytest.raises(UsageError) as caught:
        expand_axis(value, "optimizer.lr")
    assert caught.value.key == "optimizer.lr"


@pytest.mark.parametrize(
    "value",
    [
        {"from": 1e-4, "to": 1, "step": 1e-4},
        {"from": 1, "to": 1e12, "step": 1},
        {"from": 1, "to": 1e100, "step": 1e-300},
        {"from": 1, "to": 2, "factor": 1.0001},
    ],
)
def test_a_range_with_too_many_values_is_rejected(value: object) -> None:
    with pytest.raises(UsageError) as caught:
        expand_axis(value, "optimizer.lr")
    assert (caught.value.key, caught.value.expected) == ("optimizer.lr", 1000)


def test_the_base_may_be_the_name_of_a_shipped_recipe(tmp_path: Path) -> None:
    path = tmp_path / "rates.toml"
    path.write_text('title = "a"\nquestion = "b"\nexpectation = "c"\nbase = "tiny"\n[axes]\nseed = [1, 2]\n')
    assert read_sweep_file(path, scale=None, overrides=()).base_path == find_recipe(Path("tiny"))
    path.write_text(path.read_text().replace("tiny", "tinny"))
    with pytest.raises(UsageError) as caught:
        read_sweep_file(path, scale=None, overrides=())
    assert caught.value.path == Path("tinny")


def test_axes_make_all_combinations_with_every_seed(tmp_path: Path) -> None:
    sweep = read(tmp_path, 'seeds = 2\n[axes]\n"optimizer.lr" = [1e-3, 1e-2]\nmodel.norm = ["pre", "post"]')
    assert len(sweep.trials) == 8
    assert names(sweep)[:3] == [
        "lr-1e-3_norm-pre_seed-0",
        "lr-1e-3_norm-pre_seed-1",
        "lr-1e-3_norm-post_seed-0",
    ]
    last = sweep.trials[-1]
    assert (last.config.optimizer.lr, last.config.model.norm, last.config.seed) == (1e-2, "post", 1)
    assert sweep.about.axes == ["optimizer.lr", "model.norm"]


def test_pairs_move_together(tmp_path: Path) -> None:
    sweep = read(tmp_path, '[[pairs]]\nbatch_size = [1, 4, 8]\n"optimizer.lr" = [1e-4, 2e-4, 2e-4]')
    pairs = [(trial.config.batch_size, trial.config.optimizer.lr) for trial in sweep.trials]
    assert pairs == [(1, 1e-4), (4, 2e-4), (8, 2e-4)]
    assert names(sweep) == ["batch-size-1", "batch-size-4", "batch-size-8"]
    assert sweep.about.axes == ["batch_size"]


def test_variants_have_names(tmp_path: Path) -> None:
    sweep = read(
        tmp_path, 'baseline = "as it is"\n[variants]\n"as it is" = {}\n"no norm" = { "model.norm" = "none" }'
    )
    assert names(sweep) == ["as-it-is", "no-norm"]
    assert [trial.config.model.norm for trial in sweep.trials] == ["pre", "none"]
    assert sweep.about.baseline == {"variant": "as it is"}


def test_a_star_varies_one_thing_at_a_time(tmp_path: Path) -> None:
    text = 'design = "star"\n[axes]\n"optimizer.beta1" = [0.8, 0.9, 0.95]\n"optimizer.beta2" = [0.95, 0.99]'
    sweep = read(tmp_path, text)
    betas = [(trial.config.optimizer.beta1, trial.config.optimizer.beta2) for trial in sweep.trials]
    assert betas == [(0.9, 0.95), (0.8, 0.95), (0.95, 0.95), (0.9, 0.99)]
    assert sweep.about.baseline == {"optimizer.beta1": 0.9, "optimizer.beta2": 0.95}
    assert names(sweep) == ["baseline", "beta1-0.8", "beta1-0.95", "beta2-0.99"]


def test_overrides_replace_values_of_the_file(tmp_path: Path) -> None:
    text = '[set]\n"budget.steps" = 5\nschedule.warmup = 2\n[axes]\nseed = [1, 2]'
    trial = read(tmp_path, text, overrides=["budget.steps=7", "model.norm=post"]).trials[0]
    assert (trial.config.budget.steps, trial.config.schedule.warmup, trial.config.model.norm) == (
        7,
        2,
        "post",
    )
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text, overrides=["seed=7"])
    assert caught.value.key == "seed"


@pytest.mark.parametrize(
    ("override", "axis"), [("budget.steps=7", "budget.tokens"), ("optimizer={lr=0.1}", "optimizer.lr")]
)
def test_an_override_of_an_axis_is_rejected_and_names_the_axis(
    tmp_path: Path, override: str, axis: str
) -> None:
    text = '[axes]\n"optimizer.lr" = [0.1]\n[[pairs]]\nbatch_size = [1, 2]\n"budget.tokens" = [64, 128]'
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text, overrides=[override])
    assert f"{axis} is an axis" in str(caught.value)


def test_an_override_may_have_hyphens(tmp_path: Path) -> None:
    (trial,) = read(tmp_path, "", overrides=["batch-size=4", "optimizer.weight-decay=0.5"]).trials
    assert (trial.config.batch_size, trial.config.optimizer.weight_decay) == (4, 0.5)


@pytest.mark.parametrize(
    ("override", "key", "reason"),
    [
        ("optimizer.lr=0.1", "optimizer.lr", "the variant 'fast' sets optimizer.lr"),
        ("budget.tokens=128", "budget.tokens", "the variant 'long' sets budget.steps"),
        ("optimizer={lr=0.1}", "optimizer", "the variant 'fast' sets optimizer.lr"),
        ("seed=7", "seed", "the sweep has seeds"),
    ],
)
def test_an_override_of_a_key_that_varies_is_rejected(
    tmp_path: Path, override: str, key: str, reason: str
) -> None:
    text = (
        'seeds = 2\n[variants]\nplain = {}\nfast = { "optimizer.lr" = 0.02 }\nlong = { "budget.steps" = 40 }'
    )
    with rejects(UsageError, path=tmp_path / "rates.toml", key=key) as caught:
        read(tmp_path, text, overrides=[override])
    assert reason in str(caught.value)
    trials = read(tmp_path, text, overrides=["optimizer.beta2=0.9"]).trials
    assert {trial.config.optimizer.beta2 for trial in trials} == {0.9}


def test_an_overriding_limit_replaces_all_limits_of_the_sweep(tmp_path: Path) -> None:
    (trial,) = read(tmp_path, '[set]\n"budget.tokens" = 128', overrides=["budget.steps=100"]).trials
    assert (trial.config.budget.steps, trial.config.budget.tokens) == (100, None)
    both = ["budget.steps=100", "budget.minutes=1"]
    (trial,) = read(tmp_path, '[set]\n"budget.tokens" = 128', overrides=both).trials
    assert (trial.config.budget.steps, trial.config.budget.minutes) == (100, 1)


@pytest.mark.parametrize("design", ["grid", "star"])
def test_too_many_runs_are_rejected_before_any_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, design: str
) -> None:
    made = []

    def count(cls: type, fields: object, *, source: str, path: str = "") -> object:
        made.append(cls)
        return build(cls, fields, source=source, path=path)

    monkeypatch.setattr("bytewright.experiments.sweep.build", count)
    values = "{ from = 0.1, to = 0.9, count = 200 }"
    axes = f'"optimizer.lr" = {values}\n"optimizer.beta1" = {values}'  # 0.9 is the centre of a star
    seeds, num_runs = (1, 40_000) if design == "grid" else (10, 4_000)
    with pytest.raises(UsageError) as caught:
        read(tmp_path, f'design = "{design}"\nseeds = {seeds}\n[axes]\n{axes}')
    assert (caught.value.expected, caught.value.found) == (2000, num_runs)
    assert len(made) <= 1  # the centre of a star


def test_a_limit_that_is_set_replaces_those_of_the_recipe(tmp_path: Path) -> None:
    (trial,) = read(tmp_path, '[set]\n"budget.minutes" = 5.0').trials
    assert (trial.config.budget.steps, trial.config.budget.minutes) == (None, 5.0)


def test_a_scale_replaces_axes_and_adds_values(tmp_path: Path) -> None:
    text = (
        '[set]\nbatch_size = 16\n"budget.steps" = 100\n[axes]\n"optimizer.lr" = [1e-3, 1e-2, 1e-1]\n'
        '[scale.smoke]\nseeds = [7]\nset = { "budget.steps" = 3 }\naxes = { "optimizer.lr" = [1e-3] }'
    )
    (trial,) = read(tmp_path, text, scale="smoke").trials
    assert (trial.config.batch_size, trial.config.budget.steps, trial.config.seed) == (16, 3, 7)
    assert len(read(tmp_path, text).trials) == 3


def test_a_corpus_sets_the_vocabulary_of_the_model(tmp_path: Path) -> None:
    sweep = read(tmp_path, '[corpus]\nstorybook = 1000\n[axes]\n"corpus.vocab_size" = [300, 500]')
    assert [trial.config.model.vocab_size for trial in sweep.trials] == [300, 500]
    assert [trial.corpus and trial.corpus.storybook for trial in sweep.trials] == [1000, 1000]
    made = DataConfig(train=Path("t"), validation=Path("v"), tokenizer=Path("k"))
    trial = read(tmp_path, '[corpus]\nstorybook = 1000\n[set]\ndata.windows = "documents"').trials[0]
    assert with_data(trial, made).config.data == dataclasses.replace(made, windows="documents")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[axis]\nseed = [1]", "axis"),
        ('[axes]\n"optimizer.lrr" = [1]', "optimizer.lrr"),
        ('[set]\n"modle.norm" = "post"', "modle"),
        ('[axes]\n"optimizer.lr" = []', "optimizer.lr"),
        ('[axes]\n"optimizer.lr" = ["fast"]', "optimizer.lr"),
        ("[[pairs]]\nbatch_size = [1, 2]\nseed = [1]", "pairs"),
        ("seeds = 0", "seeds"),
        (f"seeds = {10**20}", "seeds"),
        ("seeds = 2\n[axes]\nseed = [1]", "seed"),
        ("seeds = 2\n[variants]\na = { seed = 1 }", "seed"),
        ("[axes]\nseed = [1]\n[variants]\na = {seed = 2}", "seed"),
        ("[axes]\nseed = [1]\n[[pairs]]\nbatch_size = [1]\nseed = [2]", "seed"),
        ('design = "ring"', "design"),
        (
            'design = "star"\nbaseline = { "optimizer.lr" = 0.5 }\n[axes]\n"optimizer.lr" = [0.5, 0.25]',
            "baseline",
        ),
        ('keep = "some"', "keep"),
        ("[variants]", "variants"),
        ("[variants]\na = 3", "a"),
        ('baseline = "unknown"\n[variants]\na = {}', "baseline"),
        ('[corpus]\nstorybook = 3_000_000\n[axes]\n"model.vocab_size" = [300, 400]', "model.vocab_size"),
        ('[corpus]\nstorybook = 3_000_000\n[set]\n"data.train" = "mine.npy"', "data.train"),
        ("[corpus]\nvocab_size = 300", "corpus.storybook"),
        ("[corpus]\nstorybok = 300", "corpus.storybok"),
        ("question = 3", "question"),
        ("[axes]\nseed = {from = 1, to = 5000, step = 1}", "seed"),
        ("[axes]\nlr = [0.1]", "lr"),
        ("[set]\nvocab_size = 9", "vocab_size"),
        ("[variants]\na = { temperature = 1.0 }", "temperature"),
        ("set = 3", "set"),
    ],
)
def test_an_invalid_file_is_rejected_with_its_path_and_key(tmp_path: Path, text: str, key: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    assert (caught.value.path, caught.value.key) == (tmp_path / "rates.toml", key)
    message = str(caught.value)
    assert message.startswith(str(tmp_path / "rates.toml"))
    assert message.count(str(tmp_path / "rates.toml")) == 1
    assert "\n" not in message


@pytest.mark.parametrize(
    "text", ["[axes", '[axes]\n"optimizer.lr" = [-1.0]', "[sampling]\ntemperature = -1.0"]
)
def test_invalid_toml_and_values_name_the_file(tmp_path: Path, text: str) -> None:
    with rejects(BytewrightError, path=tmp_path / "rates.toml"):
        read(tmp_path, text)


def test_an_unknown_key_suggests_known_ones(tmp_path: Path) -> None:
    with rejects(UsageError, key="vocab_size", expected=["model.vocab_size", "corpus.vocab_size"]):
        read(tmp_path, "[set]\nvocab_size = 9")
    with rejects(UsageError, key="axis"):
        read(tmp_path, "[axis]\nseed = [1]")


@pytest.mark.parametrize(
    ("text", "scale", "key"),
    [
        ("[scale]\nsmoke = 3", "smoke", "scale.smoke"),
        ("[scale.smoke]\nsteps = 3", "smoke", "scale.smoke.steps"),
        ("[scale.smoke]\nseeds = 1", "tiny", "scale"),
    ],
)
def test_an_invalid_scale_is_rejected(tmp_path: Path, text: str, scale: str, key: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text, scale=scale)
    assert caught.value.key == key


@pytest.mark.parametrize(
    "name", ["report.html", "Report.md", "report figures", "logs", "sweep.json", "samples"]
)
def test_a_run_must_not_have_the_name_of_a_file_of_the_sweep(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, f'[variants]\nplain = {{}}\n"{name}" = {{}}')
    assert str(caught.value.found) == name.replace(" ", "-")
    assert len(read(tmp_path, f'seeds = 1\n[variants]\n"{name}" = {{}}').trials) == 1  # …_seed-0


def test_a_run_may_be_named_model_unless_the_sweep_samples(tmp_path: Path) -> None:
    (trial,) = read(tmp_path, "[variants]\nmodel = {}").trials
    assert trial.name == "model"
    with pytest.raises(UsageError) as caught:
        read(tmp_path, "[sampling]\nnum_stories = 2\n[variants]\nmodel = {}")
    assert caught.value.found == "model"


@pytest.mark.parametrize("more", ["", '[axes]\n"optimizer.lr" = [0.1]', "[corpus]\nstorybook = 3_000_000"])
@pytest.mark.parametrize(
    ("base", "key"),
    [
        (BASE + "[schedule]\nwarmpu = 3", "schedule.warmpu"),
        (BASE.replace("16", '"16"', 1), "model.context_length"),
        ('base = "base.toml"\ntitle = "Rates"', None),
    ],
)
def test_an_error_in_the_base_recipe_names_the_recipe(
    tmp_path: Path, base: str, key: str | None, more: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, more, base=base)
    assert caught.value.path == tmp_path / "base.toml"
    assert caught.value.key == key


def test_an_invalid_value_in_the_sweep_names_the_sweep(tmp_path: Path) -> None:
    for text in ('[set]\n"schedule.warmpu" = 3', '[set]\n"model.num_heads" = 3'):
        with rejects(UsageError, path=tmp_path / "rates.toml"):
            read(tmp_path, text)


def test_a_missing_or_invalid_base_recipe_is_rejected(tmp_path: Path) -> None:
    with rejects(BytewrightError, path=tmp_path / "base.toml"):
        read(tmp_path, "", base="batch_size = ")
    (tmp_path / "rates.toml").write_text('base = "missing.toml"')
    with rejects(BytewrightError, path=tmp_path / "missing.toml"):
        read_sweep(tmp_path / "rates.toml")
    (tmp_path / "rates.toml").write_text("")
    with pytest.raises(UsageError) as caught:
        read_sweep(tmp_path / "rates.toml")
    assert caught.value.key == "base"
    with rejects(UsageError, path=RECIPE_FOLDER / "tiny.toml", key="base"):
        read_sweep(RECIPE_FOLDER / "tiny.toml")


RECIPES = sorted(RECIPE_FOLDER.glob("*.toml"))


@pytest.mark.parametrize(
    "path", [path for path in RECIPES if "question = " in path.read_text()], ids=lambda p: p.stem
)
def test_every_sweep_of_the_project_can_be_read_at_both_scales(path: Path) -> None:
    whole, smoke = read_sweep(path), read_sweep(path, scale="smoke")
    assert whole.about.question
    assert whole.about.expectation
    assert 1 <= len(smoke.trials) <= len(whole.trials)
    assert all(trial.config.device == "cpu" for trial in smoke.trials)

"""Compute the figures of sweeps.md, and read its sweep file for the listed runs."""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory

from records import DOCS

from bytewright.experiments.sweep import read_sweep
from bytewright.laws.inference import CONFIDENCE, student_quantile
from bytewright.train.config import TrainConfig
from bytewright.train.outcome import DIVERGED_RISE

(sweep_file,) = re.findall(
    r"^```toml\n(.*?)^```$", Path(__file__).with_suffix(".md").read_text(), re.MULTILINE | re.DOTALL
)
with TemporaryDirectory() as place:
    Path(place, "recipes").mkdir()
    Path(place, "recipes", "smoke.toml").write_text((DOCS.parent / "recipes" / "smoke.toml").read_text())
    Path(place, "mine.toml").write_text(sweep_file)
    trials = read_sweep(Path(place, "mine.toml")).trials


def prepare(folder):
    (folder / "base.toml").write_text(
        "budget = { steps = 120 }\n"
        'data = { train = "train.npy" }\n'
        "model = { vocab_size = 1024, context_length = 64, d_model = 64, num_layers = 2, num_heads = 4 }\n"
    )

    def read(text, **options):
        path = folder / "mine.toml"
        path.write_text('base = "base.toml"' + text)
        return read_sweep(path, **options)

    return {
        "read": read,
        "names": lambda text, **options: [trial.name for trial in read(text, **options).trials],
    }


PLAN = [f"{trial.name} {trial.config.num_steps}" for trial in trials]
FIGURES = [
    # How the report compares settings
    f"a confidence of {CONFIDENCE:.0%}".replace("%", " %"),
    f"extends {student_quantile(CONFIDENCE, 2):.1f} standard errors to each side, with five "
    f"{student_quantile(CONFIDENCE, 4):.1f}",
    # Executing a sweep
    f"not finite for {TrainConfig.max_refused} steps in",
    f"ended more than {DIVERGED_RISE:g} nat above",
]
FIGURES += PLAN

"""The folder of a sweep that sampled, as it is left on the disk."""

from __future__ import annotations

import json
from pathlib import Path

from bytewright.train.run import RunFolder
from runs import make_config


def write_sampled(folder: Path) -> Path:
    """Write texts of two temperatures beside the run of the model that wrote them."""
    sweep = folder / "generate"
    RunFolder.create(sweep / "model", make_config(folder)).close()
    for temperature in (0.5, 1.0):
        path = sweep / f"temperature-{temperature:g}"
        path.mkdir()
        outcome = {
            "status": "complete",
            "labels": {"sampling.temperature": temperature},
            "sampling": {"temperature": temperature, "top_p": 1.0},
            "figures": {"consistent": 1.0 - temperature / 2, "ended": 1.0, "words_per_story": 9.0},
        }
        (path / "outcome.json").write_text(json.dumps(outcome))
        (path / "stories.txt").write_text("There was a fox.")
    return sweep

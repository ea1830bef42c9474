"""Evaluate the last checkpoint of a run on whole documents, in bits per byte.

Documents that are longer than the context are read in overlapping windows (`token_eval`). A source that
writes one document after another is coded the same way, so the result is comparable with the entropy of the
text. The validation loss of training is not: its windows may begin inside a document.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bytewright.experiments.evaluation.story_eval import StoryTokens
from bytewright.experiments.evaluation.token_eval import evaluate_tokens
from bytewright.train.config import DeviceName
from bytewright.train.run import open_model
from bytewright.train.setup import select_device


def evaluate_documents(
    run: Path, files: Mapping[str, Path], *, device: DeviceName = "auto"
) -> dict[str, float]:
    """Return the bits per byte of the documents of each file by its name."""
    saved = open_model(run, which="last")
    model = saved.load(device=select_device(device), precision=saved.training_precision)
    found = {}
    for name, file in files.items():
        text = StoryTokens.read(file, saved.run.tokenizer)
        bits = sum(float(each.sum()) for each in evaluate_tokens(model, text.stories, text.end))
        found[name] = bits / sum(int(text.token_bytes[story].sum()) for story in text.stories)
    return found

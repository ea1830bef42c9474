"""Models of runs for the views Write and Inside: loaded on first use, at most two of them in memory.

A model is loaded again when its run has a new best checkpoint.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from typing import Any

from torch import Tensor

from bytewright.errors import BytewrightError, DivergenceError
from bytewright.experiments.recognition import is_of_storybook
from bytewright.generate import Generator
from bytewright.generate.text import stop_tokens_of
from bytewright.model import TransformerLM
from bytewright.studio.folder import StudioFolder
from bytewright.studio.true_tokens import TrueTokens
from bytewright.tokenizer import Tokenizer
from bytewright.train.run import Run
from bytewright.train.run_model import SavedModel, open_model
from bytewright.train.setup import select_device

MAX_MODELS = 2


class StudioModel:
    """A model in memory, with its tokenizer."""

    def __init__(self, saved: SavedModel) -> None:
        self.checkpoint = saved.checkpoint
        self.tokenizer: Tokenizer = saved.run.tokenizer
        self.model: TransformerLM = saved.load(device=select_device("auto"))
        self.lock = threading.Lock()
        """Held while the model runs: hooks that record activations record the calls of all threads."""
        self.stop_ids = frozenset(stop_tokens_of(self.tokenizer))
        self.num_ids = min(self.tokenizer.vocab_size, self.model.config.vocab_size)
        self.is_of_storybook = is_of_storybook(saved.run)

    @functools.cached_property
    def generator(self) -> Generator:
        """The generator of the model; it packs the weights on first use."""
        return Generator(self.model)

    @functools.cached_property
    def true_tokens(self) -> TrueTokens:
        """The true probabilities of stories; raises if the tokenizer does not support them."""
        return TrueTokens(self.tokenizer)

    def describe_token(self, id: int) -> dict[str, Any]:
        """Return a token for the page: its id, its text, and whether it ends a text."""
        return {"id": id, "text": self._text_of(id), "stop": id in self.stop_ids}

    def _text_of(self, id: int) -> str:
        """Return a token as text; bytes that are not UTF-8 are escaped."""
        if id >= self.tokenizer.vocab_size:
            return f"id {id}"
        return self.tokenizer.decode_bytes([id]).decode("utf-8", "backslashreplace")


def check_finite(values: Tensor) -> None:
    """Raise `DivergenceError` if results of a model are not finite: JSON cannot represent them."""
    if not values.isfinite().all():
        raise DivergenceError("the model has diverged: its results are not finite; choose another run")


class Models:
    """The models of a folder by the id of their run. All methods may be called from any thread."""

    def __init__(self, folder: StudioFolder) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._loaded: OrderedDict[str, StudioModel] = OrderedDict()

    def load(self, id: str) -> StudioModel:
        """Return the model of the best checkpoint of a run; load it unless it is in memory."""
        run = self.folder.find_run(id)
        with self._lock:
            saved = open_model(run.path)
            loaded = self._loaded.pop(id, None)
            if loaded is None or loaded.checkpoint != saved.checkpoint:
                while len(self._loaded) >= MAX_MODELS:
                    self._loaded.popitem(last=False)
                loaded = None  # frees the earlier checkpoint before the new one is loaded
                loaded = StudioModel(saved)
            self._loaded[id] = loaded
            return loaded

    def list_runs(self) -> list[dict[str, object]]:
        """Return the runs that have a checkpoint and a tokenizer, those written last first."""
        found = sorted(self.folder.scan().runs.values(), key=lambda run: (-run.modified, run.name))
        return [{"id": run.id, "name": run.name} for run in found if has_model(Run(run.path))]


def has_model(run: Run) -> bool:
    """Return whether a run has a checkpoint and a tokenizer."""
    try:
        return run.has_checkpoints and run.tokenizer_path is not None
    except (BytewrightError, OSError):
        return False

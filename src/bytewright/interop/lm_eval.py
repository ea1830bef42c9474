"""The model class of lm-evaluation-harness: `--model bytewright --model_args run=runs/tiny`.

The harness has no way to find classes of other packages. There are two ways to make it import this module:

    python -m bytewright.interop.lm_eval --model bytewright --model_args run=runs/tiny --tasks arc_easy
    lm_eval --model bytewright --model_args run=runs/tiny --tasks tasks/

The first registers the class and then runs the harness with the same arguments. The second works for a folder
of tasks that `bytewright corpus storybook-tasks` wrote, because their files name a function of this module.

Arguments of the model:

    run            a run or a checkpoint
    plugin         a Python file that registers parts of the model
    which          best or last
    precision      by default that of training
    add_bos_token  whether each context begins with the end-of-text token; by default not, as in the class of
                   the harness for `transformers`
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any, cast, get_args

import torch

from bytewright.errors import BytewrightError, UsageError, wrong_value
from bytewright.generate import Generator, SamplingConfig
from bytewright.generate.text import stop_tokens_of
from bytewright.interop.endings import read_questions
from bytewright.interop.scoring import generate_until, score_continuations
from bytewright.plugins import load_plugin
from bytewright.tokenizer.vocabulary import find_end_of_text
from bytewright.train.checkpoint_list import Which
from bytewright.train.config import DeviceName, Precision
from bytewright.train.run_model import open_model
from bytewright.train.setup import select_device

try:
    # Registers the classes of the harness, which otherwise registers them only if there are no others.
    import lm_eval.models  # noqa: F401
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import model_registry
except ImportError:
    message = "the package lm-eval, which runs the tasks, is missing; install it with: pip install lm-eval"
    if __name__ == "__main__":
        print(f"bytewright: {message}", file=sys.stderr)
        sys.exit(UsageError.exit_code)
    raise UsageError(message, key="lm_eval") from None

AUTO_BATCH = 32
"""The batch size for `--batch_size auto`."""


# By name: this file can be imported twice, as a module and as __main__.
model_registry.register("bytewright", target="bytewright.interop.lm_eval:BytewrightLM")


class BytewrightLM(TemplateLM):
    """The model of a run, with the methods that the harness calls."""

    def __init__(
        self,
        run: str,
        *,
        plugin: str | None = None,
        which: Which = "best",
        precision: Precision | None = None,
        device: str | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        max_gen_toks: int = 256,
        add_bos_token: bool = False,
    ) -> None:
        super().__init__()
        if which not in get_args(Which):
            raise wrong_value("which", f"one of {', '.join(get_args(Which))}", which)
        if precision is not None and precision not in get_args(Precision):
            raise wrong_value("precision", f"one of {', '.join(get_args(Precision))}", precision)
        if plugin is not None:
            load_plugin(plugin)
        saved = open_model(run, which=which)
        self.bytewright_tokenizer = saved.run.tokenizer
        end = find_end_of_text(self.bytewright_tokenizer.vocabulary)
        if end is None:
            message = (
                f"{run}: the tokenizer has no special token; the harness needs one as the start of a text"
            )
            raise UsageError(message, path=run, key="special_tokens")
        self._end = end[1]
        name = device or "auto"
        is_kind = name in get_args(DeviceName)
        self._device = select_device(cast("DeviceName", name)) if is_kind else torch.device(name)
        self.model = saved.load(device=self._device, precision=precision or saved.training_precision)
        self.batch_size = AUTO_BATCH if str(batch_size).startswith("auto") else int(batch_size or 1)
        if max_batch_size is not None:
            self.batch_size = min(self.batch_size, max_batch_size)
        self.max_gen_toks = max_gen_toks
        self.add_bos_token = add_bos_token

    @property
    def eot_token_id(self) -> int:
        """The id of the token that ends a text; the harness puts it before a text without context."""
        return self._end

    @property
    def max_length(self) -> int:
        """The number of tokens in the model's context."""
        return self.model.config.context_length

    @property
    def tokenizer_name(self) -> str:
        """The fingerprint of the tokenizer, for caches of the harness."""
        return self.bytewright_tokenizer.fingerprint

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Return the ids of a text; special tokens in it become their ids."""
        ids = self.bytewright_tokenizer.encode(string)
        is_wanted = self.add_bos_token if add_special_tokens is None else add_special_tokens
        return [self._end, *ids] if is_wanted and ids[:1] != [self._end] else ids

    def tok_decode(self, tokens: Sequence[int], **_: Any) -> str:
        """Return the text of ids."""
        return self.bytewright_tokenizer.decode(list(tokens))

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        from tqdm import tqdm

        with tqdm(total=len(requests), disable=disable_tqdm, desc="Running loglikelihood requests") as bar:
            scores = score_continuations(
                self.model,
                [(context, continuation) for _, context, continuation in requests],
                batch_size=self.batch_size,
                progress=lambda done, _total: bar.update(done - bar.n),
            )
        answers = [(score.log_probability, score.is_greedy) for score in scores]
        for request, answer in zip(requests, answers, strict=True):
            if request[0] is not None:
                self.cache_hook.add_partial("loglikelihood", request[0], answer)
        return answers

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Return ln p of whole texts; a text longer than the context is read in windows.

        The first token follows the end-of-text token. A later window begins with the last token of the window
        before it.
        """
        from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

        windows: list[tuple[None, list[int], list[int]]] = []
        counts: list[int] = []
        for request in requests:
            ids = self.bytewright_tokenizer.encode(request.args[0])
            found = get_rolling_token_windows(ids, self.prefix_token_id, self.max_length, 1)
            pairs = [make_disjoint_window(pair) for pair in found]
            windows += [(None, context, continuation) for context, continuation in pairs]
            counts.append(len(pairs))
        scores = iter(self._loglikelihood_tokens(windows, disable_tqdm))
        totals = [sum(next(scores)[0] for _ in range(count)) for count in counts]
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return the continuation of each text, up to one of the task's stop strings.

        The context is truncated at its beginning, so that the requested number of new tokens has room. At
        most half of the model's context is new.
        """
        from lm_eval.models.utils import normalize_gen_kwargs
        from tqdm import tqdm

        texts = [""] * len(requests)
        groups: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            groups.setdefault(repr(sorted(request.args[1].items())), []).append(number)
        generator = Generator(self.model, min(self.batch_size, max(1, len(requests))))
        bar = tqdm(total=len(requests), disable=disable_tqdm, desc="Running generate_until requests")
        for numbers in groups.values():
            settings = dict(normalize_gen_kwargs(requests[numbers[0]].args[1], self.max_gen_toks))
            stops = [stop for stop in settings["until"] if stop]
            sampling = self._sampling(settings)
            room = self.max_length - sampling.max_new_tokens
            for first in range(0, len(numbers), self.batch_size):
                batch = numbers[first : first + self.batch_size]
                prompts = [self.tok_encode(requests[n].args[0])[-room:] or [self._end] for n in batch]
                written = generate_until(generator, self.bytewright_tokenizer, prompts, sampling, stops)
                for number, text in zip(batch, written, strict=True):
                    texts[number] = text
                    self.cache_hook.add_partial("generate_until", requests[number].args, text)
                bar.update(len(batch))
        bar.close()
        return texts

    def _sampling(self, settings: dict[str, Any]) -> SamplingConfig:
        names = {field.name for field in dataclasses.fields(SamplingConfig)}
        known = {name: value for name, value in settings.items() if name in names and value is not None}
        unknown = settings.keys() - known.keys() - {"until", "do_sample", "max_gen_toks"}
        if unknown:
            message = (
                f"gen_kwargs has {min(unknown)!r}, which Bytewright does not have; it has do_sample, until,"
                f" max_gen_toks, {', '.join(sorted(names))}"
            )
            raise UsageError(message, key=min(unknown))
        num_new = min(settings["max_gen_toks"], self.max_length // 2)
        known["temperature"] = settings.get("temperature", 1.0) if settings["do_sample"] else 0.0
        known |= {"max_new_tokens": num_new, "stop_tokens": stop_tokens_of(self.bytewright_tokenizer)}
        return SamplingConfig(**known)


def read_task(file: str, **_: Any) -> dict[str, Any]:
    """Return the questions of a file of `endings.write_tasks` as the only split of a task."""
    import datasets

    rows = [dataclasses.asdict(question) for question in read_questions(file)]
    return {"test": datasets.Dataset.from_list(rows)}


def main() -> int:
    """Run the harness with the arguments of the command line."""
    from lm_eval.__main__ import cli_evaluate

    try:
        cli_evaluate()
    except BytewrightError as error:
        print(f"bytewright: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`bytewright next`, `losses`, `attention` and `lens`: look inside the model of a run."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from bytewright.cli import console, options
from bytewright.errors import UsageError, wrong_value
from bytewright.formatting import format_decimals

if TYPE_CHECKING:
    from torch import Tensor

    from bytewright.corpus.storybook import Position
    from bytewright.generate.interpret import LensLayer
    from bytewright.model import TransformerLM
    from bytewright.tokenizer import Tokenizer

SHADES = " ░▒▓█"
"""Characters for attention weights from 0 to 1."""
WIDTH = 24
"""How many bytes of a token a table shows."""
HEADS_LEGEND = (
    "One row per head. itself, previous, first: the mean attention weight, from 0 to 1, of a token on itself,"
    " on the token before it and on the first token of the prompt. distance: how many tokens back a head"
    " attends, on average. The first token is not counted, because it can only attend to itself."
)
HEAD_LEGEND = (
    "One row per token. Its columns, of two characters each, are the tokens from the first one up to itself;"
    " a darker column has a higher weight. At the right: the highest weight of the row, and its token."
)
LENS_LEGEND = (
    "One row per token of the prompt. The columns are the most probable next tokens if the model ended after"
    " the embeddings, or after that layer; the last column is the prediction of the whole model."
)
Number = Annotated[int | None, options.arg("INT")]


@dataclass(frozen=True, kw_only=True)
class _ModelCommand:
    """The options of all four commands."""

    path: options.RunPath
    which: options.Which = "best"
    device: options.DeviceName = "auto"
    plugin: options.Plugins = ()
    json: bool = False
    """Print the figures as one JSON object."""

    def _open(self) -> tuple[TransformerLM, Tokenizer]:
        from bytewright.train.run_model import open_model
        from bytewright.train.setup import select_device

        saved = open_model(options.require_exists(self.path), which=self.which)
        return saved.load(device=select_device(self.device)), saved.run.tokenizer


@dataclass(frozen=True, kw_only=True)
class ShowNextTokens(_ModelCommand):
    """Print the most probable next tokens after a prompt, without temperature or filters.

    If the run was trained on the storybook, the true probabilities of its grammar are printed too, unless no
    story begins with the prompt.

    For example:
      bytewright next runs/tiny --prompt 'Once upon a' --top 5
    """

    prompt: str = ""
    """The text before the next token. Without it: the first token of a document."""
    top: int = 10
    """How many tokens to print."""

    def run(self) -> None:
        """Print the tokens with their probabilities."""
        from bytewright.generate.interpret import predict_next_token
        from bytewright.generate.text import encode_prompt

        model, tokenizer = self._open()
        _check_top(self.top, tokenizer)
        ids = encode_prompt(tokenizer, self.prompt)
        probabilities = predict_next_token(model, ids)
        best = probabilities[: tokenizer.vocab_size].topk(self.top)
        truth = self._find_truth(tokenizer, ids)
        rows = [
            {**_token_to_dict(tokenizer, id), "probability": probability}
            | ({} if truth is None else {"true_probability": truth.probabilities.get(id, 0.0)})
            for id, probability in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]
        if self.json:
            entropy = {} if truth is None else {"true_entropy_bits": truth.entropy}
            print(json.dumps({"prompt": self.prompt, "next": rows, **entropy}))
            return
        names = [name for name in ("probability", "true_probability") if name in rows[0]]
        shown = [
            (row["shown"], str(row["id"]), *(format_decimals(row[name], 4) for name in names)) for row in rows
        ]
        console.print_table(("token", "id", *(name.replace("_", " ") for name in names)), shown)
        if truth is not None:
            console.stdout().print()
            console.stdout().print(
                f"Tokens that the grammar allows here: {len(truth.probabilities):,}; the entropy of their"
                f" probabilities is {truth.entropy:.3f} bits."
            )

    def _find_truth(self, tokenizer: Tokenizer, ids: Sequence[int]) -> Position | None:
        """Return what the grammar of the storybook allows after the prompt, if the run was trained on it."""
        from bytewright.corpus.storybook import Storybook
        from bytewright.experiments.recognition import is_of_storybook
        from bytewright.train.run_model import open_model

        if not is_of_storybook(open_model(self.path, which=self.which).run):
            return None
        try:
            return Storybook.load().next_tokens(tokenizer).positions(ids)[-1]
        except UsageError:  # a tokenizer that encodes words together
            return None


@dataclass(frozen=True, kw_only=True)
class TokenLosses(_ModelCommand):
    """Print the loss of every token of a text: -ln of the probability that the model gave it.

    The text is scored as a document of a corpus: after <|endoftext|> and a line break. A text longer than the
    context is read in overlapping windows, so that later tokens have at least half a context before them.

    For example:
      bytewright losses runs/tiny --text 'Once there was a kitten.'
      bytewright losses runs/tiny story.txt --json > losses.json
    """

    source: options.OptionalFile = None
    """A text file."""
    text: options.GivenText = None
    """A text."""

    def run(self) -> None:
        """Print the tokens with their losses, and the means."""
        from bytewright.generate.interpret import token_losses
        from bytewright.generate.text import stop_tokens_of

        data = options.read_either(self.source, self.text)
        model, tokenizer = self._open()
        ids = [int(id) for id in tokenizer.encode_array(data)]
        before = [*stop_tokens_of(tokenizer)[:1], *tokenizer.encode("\n")]
        if not ids:
            raise UsageError("the text is empty; give at least one character", key="text")
        with console.phase_progress("score", "tokens") as progress:
            losses = token_losses(model, before + ids, progress=progress)[-len(ids) :].tolist()
        rows = [{**_token_to_dict(tokenizer, id), "loss": loss} for id, loss in zip(ids, losses, strict=True)]
        means = {
            "tokens": len(losses),
            "loss": math.fsum(losses) / len(losses),
            "bits_per_byte": math.fsum(losses) / math.log(2) / len(data),
        }
        if self.json:
            print(json.dumps({**means, "losses": rows}))
            return
        console.print_table(
            ("token", "id", "loss", "probability"),
            (
                (
                    row["shown"],
                    str(row["id"]),
                    format_decimals(row["loss"], 3),
                    format_decimals(math.exp(-row["loss"]), 4),
                )
                for row in rows
            ),
        )
        console.stdout().print()
        console.stdout().print(
            f"{means['tokens']:,} tokens: mean loss {means['loss']:.4f}, perplexity "
            f"{math.exp(means['loss']):.3f}, {means['bits_per_byte']:.4f} bits per byte"
        )


@dataclass(frozen=True, kw_only=True)
class ShowAttention(_ModelCommand):
    """Print which earlier tokens each attention head weights, by the reference attention.

    Without --layer and --head, print one line per head. It has the mean weights on the token itself, on the
    previous token and on the first one, and the mean distance. With both, draw the weights of that head: one
    row per token, one column per earlier token, darker for higher weights. --json prints all weights.

    For example:
      bytewright attention runs/tiny --prompt 'Once there was a kitten, and her name was'
      bytewright attention runs/tiny --prompt 'Once there was a kitten' --layer 1 --head 0
    """

    prompt: str
    """The text whose tokens attend to each other."""
    layer: Number = None
    """The layer, counted from 0."""
    head: Number = None
    """The head, counted from 0."""

    def run(self) -> None:
        """Print the figures of all heads, or the weights of one."""
        from bytewright.generate.interpret import attention_weights_by_layer
        from bytewright.generate.text import encode_prompt

        if (self.layer is None) != (self.head is None):
            raise UsageError("--layer and --head must be given together", key="--layer")
        model, tokenizer = self._open()
        sizes = model.config.num_layers, model.config.num_heads
        for option, value, size in zip(("--layer", "--head"), (self.layer, self.head), sizes, strict=True):
            if value is not None and not 0 <= value < size:
                raise wrong_value(option, f"from 0 to {size - 1}", value)
        ids = encode_prompt(tokenizer, self.prompt)
        weights = attention_weights_by_layer(model, ids)
        tokens = [_token_to_dict(tokenizer, id) for id in ids]
        if self.json:
            print(json.dumps({"tokens": tokens, "weights": weights.tolist()}))
        elif self.layer is None or self.head is None:
            _print_heads(weights)
        else:
            _draw_head(weights[self.layer, self.head], [token["shown"] for token in tokens])


@dataclass(frozen=True, kw_only=True)
class ShowLens(_ModelCommand):
    """Print what the model would predict if it ended after each layer (the logit lens).

    One row per token of the prompt, one column per layer: the most probable next token after it. The last
    column has the predictions of the model. --json prints the probabilities, and --top tokens of each.

    For example:
      bytewright lens runs/tiny --prompt 'Once there was a kitten'
    """

    prompt: str
    """The text whose next tokens are predicted."""
    top: int = 1
    """How many tokens per layer and position; a table shows the first."""

    def run(self) -> None:
        """Print the predictions of all layers."""
        from bytewright.generate.interpret import logit_lens
        from bytewright.generate.text import encode_prompt

        model, tokenizer = self._open()
        _check_top(self.top, tokenizer)
        ids = encode_prompt(tokenizer, self.prompt)
        layers = logit_lens(model, ids, top=self.top)
        if self.json:
            print(json.dumps(_lens_to_dict(tokenizer, ids, layers)))
            return
        best = [[int(layer.ids[place, 0]) for layer in layers] for place in range(len(ids))]
        rows = [
            [_show_token(tokenizer, one) for one in (id, *after)] for id, after in zip(ids, best, strict=True)
        ]
        console.print_table(("token", "embeddings", *(f"layer {i}" for i in range(len(layers) - 1))), rows)
        _print_legend(LENS_LEGEND)


def _check_top(top: int, tokenizer: Tokenizer) -> None:
    if not 1 <= top <= tokenizer.vocab_size:
        raise wrong_value("--top", f"from 1 to {tokenizer.vocab_size}, the size of the vocabulary", top)


def _show_token(tokenizer: Tokenizer, id: int) -> str:
    """Return a token for a table; a model can have ids that its tokenizer lacks."""
    from bytewright.tokenizer.inspect import show_token

    return show_token(tokenizer.vocab[id], WIDTH) if id in tokenizer.vocab else f"id {id}"


def _token_to_dict(tokenizer: Tokenizer, id: int) -> dict[str, Any]:
    """Return a token as JSON values; an id without a token has no bytes."""
    return {"id": id, "bytes": tokenizer.vocab.get(id, b"").hex(), "shown": _show_token(tokenizer, id)}


def _print_heads(weights: Tensor) -> None:
    """Print one line per head; the first token is left out, because it can only attend to itself."""
    import torch

    num_tokens = weights.shape[-1]
    if num_tokens < 2:
        raise UsageError("the prompt has one token, which attends to itself; give a longer prompt")
    places = torch.arange(num_tokens, device=weights.device)
    distances = (places[:, None] - places).clamp(min=0)
    rows = []
    for layer, heads in enumerate(weights):
        for head, matrix in enumerate(heads):
            on_tokens = matrix.diagonal()[1:], matrix.diagonal(-1), matrix[1:, 0]
            shares = (format_decimals(float(values.mean()), 2) for values in on_tokens)
            distance = float((matrix * distances).sum(-1)[1:].mean())
            rows.append((str(layer), str(head), *shares, f"{distance:.1f}"))
    console.print_table(("layer", "head", "itself", "previous", "first", "distance"), rows)
    _print_legend(HEADS_LEGEND)


def _draw_head(weights: Tensor, tokens: Sequence[str]) -> None:
    """Draw the weights of one head, one row per token, with the token of the highest weight."""
    width = max(map(len, tokens))
    for place, (token, row) in enumerate(zip(tokens, weights.tolist(), strict=True)):
        levels = [min(int(weight * len(SHADES)), len(SHADES) - 1) for weight in row[: place + 1]]
        drawn = "".join(SHADES[level] * 2 for level in levels)
        best = max(range(place + 1), key=row.__getitem__)
        console.print_line(
            f"{token:>{width}} |{drawn:<{2 * len(tokens)}}| {format_decimals(row[best], 2)} {tokens[best]}"
        )
    shades = ", ".join(f"{shade} from {n / len(SHADES):.1f}" for n, shade in enumerate(SHADES) if n)
    _print_legend(f"{HEAD_LEGEND} Shades: {shades}.")


def _print_legend(legend: str) -> None:
    console.stdout().print()
    console.print_line(legend)


def _lens_to_dict(tokenizer: Tokenizer, ids: Sequence[int], layers: Sequence[LensLayer]) -> dict[str, Any]:
    """Return the tokens of the prompt, and by layer and position the best next tokens."""

    def describe(best: Sequence[int], probabilities: Sequence[float]) -> list[dict[str, Any]]:
        both = zip(best, probabilities, strict=True)
        return [{"id": id, "shown": _show_token(tokenizer, id), "probability": share} for id, share in both]

    return {
        "tokens": [_token_to_dict(tokenizer, id) for id in ids],
        "layers": [list(map(describe, one.ids.tolist(), one.probabilities.tolist())) for one in layers],
    }

"""Models in the form that `transformers` loads as `LlamaForCausalLM`, out and back in.

Our default model *is* a Llama: the same equations under other names, with one difference that no shape
shows. Llama rotates dimension i of a head with i + d_head/2 where we rotate 2i with 2i + 1, so the rows of q
and k change their order on the way out and change it back on the way in; without that the scores are
silently wrong. What Llama cannot express (`norm`, `position`, `ffn` and `qk_norm` other than the defaults)
is refused on the way out; what we cannot, on the way in.

A folder that is read is untrusted: whatever is wrong with it is a `FormatError`. Nothing here knows how a
tokenizer describes itself; its files are passed through.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from bytewright.errors import FormatError, UsageError
from bytewright.model.config import ModelConfig, weight_shapes
from bytewright.model.fused import halves_from_pairs, pairs_from_halves
from bytewright.model.layers import EPSILON
from bytewright.model.transformer import TransformerLM
from bytewright.storage import atomic
from bytewright.storage.json_reader import Json
from bytewright.storage.manifest import is_plain_name

LLAMA_NAMES = {
    "token_embeddings": "model.embed_tokens",
    "ln1": "input_layernorm",
    "attn.q_proj": "self_attn.q_proj",
    "attn.k_proj": "self_attn.k_proj",
    "attn.v_proj": "self_attn.v_proj",
    "attn.output_proj": "self_attn.o_proj",
    "ln2": "post_attention_layernorm",
    "ffn.w1": "mlp.gate_proj",
    "ffn.w2": "mlp.down_proj",
    "ffn.w3": "mlp.up_proj",
    "ln_final": "model.norm",
    "lm_head": "lm_head",
}
"""What Llama calls our parts; those of a block stand under `layers.0.` here and `model.layers.0.` there."""

WEIGHTS = "model.safetensors"
"""The one file of a small model; a large one has several, and an index beside them."""

MAX_INDEX_BYTES = 16 * 2**20

MAX_CONTEXT = 2**20
"""The longest context that is believed of a file: tables of that length are made for it."""


def write_llama(
    model: TransformerLM,
    folder: atomic.StrPath,
    *,
    end_of_text: tuple[str, int] | None = None,
    tokenizer_json: bytes | None = None,
    replace: bool = False,
) -> None:
    """Write a folder that `transformers` loads: config, weights and, if given, the tokenizer.

    `tokenizer_json` is the content of a `tokenizer.json`; `end_of_text` names the special token that ends a
    text and its id, where the library is to stop.
    """
    config = llama_config(model.config, end_of_text and end_of_text[1])
    config["dtype"] = str(model.output_weight.dtype).removeprefix("torch.")
    weights = {
        llama_name(name): _reorder(name, weight.detach(), model.config, outwards=True).contiguous()
        for name, weight in model.state_dict().items()
    }
    with atomic.write_folder(folder, about={"kind": "transformers model"}, replace=replace) as writer:
        writer.write_json("config.json", config)
        writer.write_bytes(WEIGHTS, safetensors.torch.save(weights, {"format": "pt"}))
        if tokenizer_json is not None:
            writer.write_bytes("tokenizer.json", tokenizer_json)
            writer.write_json("tokenizer_config.json", _tokenizer_config(model.config, end_of_text))


def read_llama(folder: atomic.StrPath) -> TransformerLM:
    """Read the model that such a folder holds, into float32."""
    folder = Path(folder)
    config = read_llama_config(folder / "config.json")
    file, found = _read_weights(folder)
    if too_few_for_layers(found, config):
        raise FormatError(f"{file}: has fewer layers than the {config.num_layers} of config.json")
    weights: dict[str, Tensor] = {}
    for name, expected in weight_shapes(config).items():
        theirs = llama_name(name)
        if theirs not in found:
            raise FormatError(f"{file}: the weight {theirs!r} is missing")
        weight = found.pop(theirs)
        if tuple(weight.shape) != expected or not weight.is_floating_point():
            raise FormatError(
                f"{file}: the weight {theirs!r} is {weight.dtype} of shape {tuple(weight.shape)}, "
                f"but should hold floats of shape {expected} by config.json"
            )
        weights[name] = _reorder(name, weight.float(), config, outwards=False)
    if config.tie_embeddings:
        found.pop("lm_head.weight", None)  # some writers repeat the tied matrix
    for name in found:
        if not name.endswith("rotary_emb.inv_freq"):  # a table that old versions kept among the weights
            raise FormatError(f"{file}: holds a weight {name!r}, which a Llama without biases does not have")
    model = TransformerLM(config)
    model.load_state_dict(weights)
    return model


def _read_weights(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    """Read all weights, from one file or those that an index names; also give the file to complain of."""
    whole, index = folder / WEIGHTS, folder / f"{WEIGHTS}.index.json"
    if whole.exists() or not index.exists():
        return whole, _read_tensors(whole)
    weights: dict[str, Tensor] = {}
    for part, names in _read_index(index).items():
        found = _read_tensors(folder / part)
        if found.keys() != names:
            name = min(found.keys() ^ names)
            does, where = ("holds", "elsewhere") if name in found else ("lacks", "there")
            raise FormatError(f"{folder / part}: {does} the weight {name!r}, which {index} puts {where}")
        weights |= found
    return index, weights


def _read_index(index: Path) -> dict[str, set[str]]:
    """Read which weights each file holds, by the name of the file; it must stay in the folder."""
    parts: dict[str, set[str]] = {}
    root = Json(atomic.read_json(index, max_bytes=MAX_INDEX_BYTES), index)
    for name in root["weight_map"].as_object():
        part = root["weight_map"][name]
        if not is_plain_name(part.as_text()) or not part.as_text().endswith(".safetensors"):
            raise part.complain("a plain name that ends in .safetensors")
        parts.setdefault(part.as_text(), set()).add(name)
    return parts


def _read_tensors(file: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(atomic.read_bytes(file))
    except safetensors.SafetensorError as error:
        raise FormatError(f"{file}: is not a safetensors file, or is damaged ({error})") from None
    except KeyError as error:
        raise FormatError(f"{file}: holds weights of type {error}, which torch does not have") from None


def too_few_for_layers(weights: Mapping[str, Tensor], config: ModelConfig) -> bool:
    """Say whether there are too few weights for the layers that a config claims, before these are built.

    A block has at least four projections of its attention and two of its feed-forward layer.
    """
    return len(weights) < 6 * config.num_layers


def llama_config(config: ModelConfig, end_of_text: int | None = None) -> dict[str, Any]:
    """Describe a model as `transformers` does in `config.json`; one that is no Llama is refused."""
    for option, needed in (("norm", "pre"), ("position", "rope"), ("ffn", "swiglu"), ("qk_norm", False)):
        if (value := getattr(config, option)) != needed:
            raise UsageError(
                f"a Llama has {option} = {needed!r}, this model has {value!r}: it cannot be exported as one"
            )
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.context_length,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.d_head,
        "intermediate_size": config.ffn_width,
        "hidden_act": "silu",
        "rms_norm_eps": EPSILON,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "rope_theta": config.rope_theta,  # where versions before 5 look for it
        "tie_word_embeddings": config.tie_embeddings,
        "attention_bias": False,
        "mlp_bias": False,
        # Said even when there are none: left out, the library would take ids 1 and 2.
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "pad_token_id": None,
    }


def read_llama_config(file: Path) -> ModelConfig:
    """Read `config.json`; what our model cannot do is refused by name."""
    root = Json.read(file)
    if root.get("model_type").value != "llama":
        raise root.get("model_type").complain("'llama'")
    for key, needed in (("hidden_act", "silu"), ("attention_bias", False), ("mlp_bias", False)):
        if root.get(key).value not in (needed, None):
            raise root[key].complain(f"{needed!r}, for our model has nothing else")
    epsilon = _number(root.get("rms_norm_eps"), 1e-6)
    if epsilon != EPSILON:
        raise root.get("rms_norm_eps").complain(f"{EPSILON}, for our norms have no other")
    num_heads = root["num_attention_heads"].as_integer()
    fields = {
        "vocab_size": root["vocab_size"].as_integer(),
        "context_length": root["max_position_embeddings"].as_integer(),
        "d_model": root["hidden_size"].as_integer(),
        "num_layers": root["num_hidden_layers"].as_integer(),
        "num_heads": num_heads,
        "d_ff": root["intermediate_size"].as_integer(),
        "num_kv_heads": _optional_integer(root.get("num_key_value_heads"), num_heads),
        "rope_theta": _read_rope_theta(root),
        "tie_embeddings": root.get("tie_word_embeddings").as_boolean(default=False),
    }
    try:
        config = ModelConfig.from_dict(fields)
    except UsageError as error:
        raise FormatError(f"{file}: {error}") from None
    if config.context_length > MAX_CONTEXT:  # nothing in the weights would show that it is a lie
        raise root["max_position_embeddings"].complain(f"at most {MAX_CONTEXT}")
    if _optional_integer(root.get("head_dim"), config.d_head) != config.d_head:
        raise root["head_dim"].complain(f"hidden_size / num_attention_heads = {config.d_head}")
    return config


def llama_name(name: str) -> str:
    """Return what Llama calls one of our weights.

    >>> llama_name("layers.3.ffn.w2.weight")
    'model.layers.3.mlp.down_proj.weight'
    """
    part = name.removesuffix(".weight")
    if not part.startswith("layers."):
        return f"{LLAMA_NAMES[part]}.weight"
    _, number, part = part.split(".", maxsplit=2)
    return f"model.layers.{number}.{LLAMA_NAMES[part]}.weight"


def _reorder(name: str, weight: Tensor, config: ModelConfig, *, outwards: bool) -> Tensor:
    """Change the order of rows where the two rotate different pairs."""
    if not name.endswith(("attn.q_proj.weight", "attn.k_proj.weight")):
        return weight
    return (halves_from_pairs if outwards else pairs_from_halves)(weight, config.d_head)


def _read_rope_theta(root: Json) -> float:
    """Find the base of the frequencies; it moved from the top into `rope_parameters` with version 5."""
    theta = _number(root.get("rope_theta"), 10_000.0)
    for rope in (root.get("rope_scaling"), root.get("rope_parameters")):
        if rope.value is None:
            continue
        for kind in (rope.get("rope_type"), rope.get("type")):
            if kind.value not in (None, "default"):
                raise kind.complain("'default', for our frequencies cannot be scaled")
        theta = _number(rope.get("rope_theta"), theta)
    return theta


def _number(json: Json, default: float) -> float:
    if json.value is None:
        return default
    if isinstance(json.value, bool) or not isinstance(json.value, int | float):
        raise json.complain("a number")
    return float(json.value)


def _optional_integer(json: Json, default: int) -> int:
    return default if json.value is None else json.as_integer()


def _tokenizer_config(config: ModelConfig, end_of_text: tuple[str, int] | None) -> dict[str, Any]:
    special = None if end_of_text is None else end_of_text[0]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": special,
        "eos_token": special,
        "unk_token": None,
        "model_max_length": config.context_length,
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
    }

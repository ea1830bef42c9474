"""Export to and import from the folder format that `transformers` loads as `LlamaForCausalLM`.

With default options our model is a Llama: the same equations under other names, with one difference that
shapes do not reveal. Llama rotates dimension i of a head with i + d_head/2, where we rotate 2i with 2i + 1.
The rows of q and k are therefore reordered on export and on import; otherwise the scores would be silently
wrong. `model.exports` decides whether a model can be exported. Import rejects settings that our model does
not have.

A folder is untrusted input: invalid contents raise `FormatError`. The tokenizer's files are not parsed here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from bytewright.errors import FormatError, UsageError
from bytewright.model.config import ModelConfig
from bytewright.model.exports import check_export, llama_names, llama_settings
from bytewright.model.fused import halves_from_pairs, pairs_from_halves
from bytewright.model.layers import EPSILON
from bytewright.model.transformer import (
    MAX_CONTEXT,
    TransformerLM,
    too_few_for_layers,
    weight_shapes,
    weights_with_scale,
)
from bytewright.storage import atomic
from bytewright.storage.json_reader import Json
from bytewright.storage.manifest import is_plain_name

WEIGHTS = "model.safetensors"
"""The weights of a small model; a large one has several files and an index."""

MAX_INDEX_BYTES = 16 * 2**20


def write_llama(
    model: TransformerLM,
    folder: atomic.StrPath,
    *,
    end_of_text: tuple[str, int] | None = None,
    tokenizer_json: bytes | None = None,
    replace: bool = False,
) -> None:
    """Write a folder that `transformers` loads: config, weights and, if given, the tokenizer.

    `tokenizer_json` is the content of a `tokenizer.json`. `end_of_text` is the special token that ends a text
    and its id; `transformers` stops generating there.
    """
    check_export(model, "hf")
    config = llama_config(model.config, end_of_text and end_of_text[1])
    config["dtype"] = str(model.output_weight.dtype).removeprefix("torch.")
    names = llama_names(model.config)
    weights = {
        names[name]: _reorder(name, weight.detach(), model.config, for_export=True).contiguous()
        for name, weight in weights_with_scale(model).items()
    }
    with atomic.write_folder(folder, about={"kind": "transformers model"}, replace=replace) as writer:
        writer.write_json("config.json", config)
        writer.write_bytes(WEIGHTS, safetensors.torch.save(weights, {"format": "pt"}))
        if tokenizer_json is not None:
            writer.write_bytes("tokenizer.json", tokenizer_json)
            writer.write_json("tokenizer_config.json", _tokenizer_config(model.config, end_of_text))


def read_llama(folder: atomic.StrPath) -> TransformerLM:
    """Return the model in such a folder, with weights in float32."""
    folder = Path(folder)
    config = read_llama_config(folder / "config.json")
    file, found = _read_weights(folder)
    if too_few_for_layers(found, config):
        message = f"{file}: has fewer layers than the {config.num_layers} of config.json"
        raise FormatError(message, path=file, key="num_hidden_layers", expected=config.num_layers)
    weights: dict[str, Tensor] = {}
    names = llama_names(config)
    for name, expected in weight_shapes(config).items():
        theirs = names[name]
        if theirs not in found:
            raise FormatError.at(file, f"the weight {theirs!r} is missing", key=theirs)
        weight = found.pop(theirs)
        if tuple(weight.shape) != expected or not weight.is_floating_point():
            message = (
                f"{file}: the weight {theirs!r} is {weight.dtype} of shape {tuple(weight.shape)}, "
                f"but config.json requires floats of shape {expected}"
            )
            raise FormatError(message, path=file, key=theirs, expected=expected, found=tuple(weight.shape))
        weights[name] = _reorder(name, weight.float(), config, for_export=False)
    if config.tie_embeddings:
        found.pop("lm_head.weight", None)  # some programs also write the tied matrix
    for name in sorted(found):
        if not name.endswith("rotary_emb.inv_freq"):  # a RoPE table, which old versions saved as a weight
            message = f"{file}: holds a weight {name!r}, which a Llama without biases does not have"
            raise FormatError(message, path=file, key=name)
    model = TransformerLM(config)
    model.load_state_dict(weights)
    return model


def _read_weights(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    """Return the file that errors name, and all weights, from one file or from those of an index."""
    whole, index = folder / WEIGHTS, folder / f"{WEIGHTS}.index.json"
    if whole.exists() or not index.exists():
        return whole, _read_tensors(whole)
    weights: dict[str, Tensor] = {}
    for part, names in _read_index(index).items():
        found = _read_tensors(folder / part)
        if found.keys() != names:
            name = min(found.keys() ^ names)
            problem = "is not listed" if name in found else "is listed, but missing"
            message = f"{folder / part}: the weight {name!r} {problem}; the list is in {index}"
            raise FormatError(message, path=folder / part, key=name)
        weights |= found
    return index, weights


def _read_index(index: Path) -> dict[str, set[str]]:
    """Return the names of the weights in each file; a file must be in the same folder."""
    parts: dict[str, set[str]] = {}
    root = Json(atomic.read_json(index, max_bytes=MAX_INDEX_BYTES), index)
    for name in root["weight_map"].as_object():
        part = root["weight_map"][name]
        if not is_plain_name(part.as_text()) or not part.as_text().endswith(".safetensors"):
            raise part.error("a plain name that ends in .safetensors")
        parts.setdefault(part.as_text(), set()).add(name)
    return parts


def _read_tensors(file: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(atomic.read_bytes(file))
    except safetensors.SafetensorError as error:
        raise FormatError.at(file, f"is not a safetensors file, or is damaged ({error})") from None
    except KeyError as error:
        message = f"{file}: holds weights of type {error}, which torch does not have"
        raise FormatError(message, path=file, found=error.args[0]) from None


def llama_config(config: ModelConfig, end_of_text: int | None = None) -> dict[str, Any]:
    """Return the `config.json` of `transformers` for a model; raise `UsageError` if it is not a Llama."""
    check_export(config, "hf")
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
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "rope_theta": config.rope_theta,  # read by versions before 5
        "tie_word_embeddings": config.tie_embeddings,
        "attention_bias": False,
        "mlp_bias": False,
        # Written even if None: without these keys, `transformers` uses the ids 1 and 2.
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "pad_token_id": None,
        **llama_settings(config),
    }


def read_llama_config(file: Path) -> ModelConfig:
    """Read `config.json`; raise `FormatError` for settings that our model does not have."""
    root = Json.read(file)
    root.get("model_type").expect("llama")
    for key, needed in (("hidden_act", "silu"), ("attention_bias", False), ("mlp_bias", False)):
        if root.get(key).value not in (needed, None):
            raise root[key].error(f"{needed!r}, the only supported value")
    epsilon = _number(root.get("rms_norm_eps"), 1e-6)
    num_heads = root["num_attention_heads"].as_integer()
    try:
        config = ModelConfig(
            vocab_size=root["vocab_size"].as_integer(),
            context_length=root["max_position_embeddings"].as_integer(),
            d_model=root["hidden_size"].as_integer(),
            num_layers=root["num_hidden_layers"].as_integer(),
            num_heads=num_heads,
            d_ff=root["intermediate_size"].as_integer(),
            num_kv_heads=_optional_integer(root.get("num_key_value_heads"), num_heads),
            rope_theta=_read_rope_theta(root),
            tie_embeddings=root.get("tie_word_embeddings").as_boolean(default=False),
            norm_options={} if epsilon == EPSILON else {"eps": epsilon},
        )
    except UsageError as error:
        raise FormatError.at(file, error, key=error.key, found=error.found) from None
    if config.context_length > MAX_CONTEXT:  # the sizes of the weights do not reveal a wrong context
        raise root["max_position_embeddings"].error(f"at most {MAX_CONTEXT}")
    if _optional_integer(root.get("head_dim"), config.d_head) != config.d_head:
        raise root["head_dim"].error(f"hidden_size / num_attention_heads = {config.d_head}")
    return config


def _reorder(name: str, weight: Tensor, config: ModelConfig, *, for_export: bool) -> Tensor:
    """Reorder the rows of q and k, because the two models rotate different pairs."""
    if not name.endswith(("attn.q_proj.weight", "attn.k_proj.weight")):
        return weight
    return (halves_from_pairs if for_export else pairs_from_halves)(weight, config.d_head)


def _read_rope_theta(root: Json) -> float:
    """Return the base of the frequencies; version 5 moved it from the top level into `rope_parameters`."""
    theta = _number(root.get("rope_theta"), 10_000.0)
    _check_whole_rotation(root)
    for rope in (root.get("rope_scaling"), root.get("rope_parameters")):
        if rope.value is None:
            continue
        for kind in (rope.get("rope_type"), rope.get("type")):
            if kind.value not in (None, "default"):
                raise kind.error("'default', because scaled frequencies are not supported")
        _check_whole_rotation(rope)
        theta = _number(rope.get("rope_theta"), theta)
    return theta


def _check_whole_rotation(json: Json) -> None:
    """Raise if only a part of each head is rotated."""
    share = json.get("partial_rotary_factor")
    if _number(share, 1.0) != 1:
        raise share.error("1, because all dimensions of a head are rotated")


def _number(json: Json, default: float) -> float:
    return default if json.value is None else json.as_number()


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

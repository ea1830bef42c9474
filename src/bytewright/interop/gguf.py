"""Write a model and its tokenizer as one GGUF file, which llama.cpp loads.

With default options our model is llama.cpp's architecture `llama`, which rotates the pairs (2i, 2i + 1) as we
do. A model with `qk_norm` is its `qwen3`, which rotates (i, i + d_head/2). There the rows of q and k and the
gains of their norms are reordered. `model.exports` rejects everything else that llama.cpp lacks.

llama.cpp has its own pre-tokenisers, selected by name. `PRE_TOKENIZERS` has those that are identical to one
of our patterns; any other pattern is an error, because another pre-tokeniser would give other ids. Unicode 14
is the version of llama.cpp's tables, so ids can differ for characters that were added later.

Vectors are always written in F32; `WeightType` is the type of the matrices.
"""

from __future__ import annotations

import importlib
import io
import re
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bytewright.corpus import END_OF_TEXT
from bytewright.errors import TokenizerError, UsageError, shorten
from bytewright.formatting import Progress
from bytewright.model import ModelConfig, TransformerLM
from bytewright.model.exports import check_export, llama_names, llama_settings
from bytewright.model.fused import halves_from_pairs
from bytewright.model.transformer import weights_with_scale
from bytewright.storage import atomic
from bytewright.tokenizer.formats.gpt2 import spell_merges, spell_with_special_tokens
from bytewright.tokenizer.vocabulary import Vocabulary, check_all_bytes, find_end_of_text

if TYPE_CHECKING:
    from torch import Tensor

WeightType = Literal["f32", "f16", "bf16", "q8_0"]

GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.down_proj": "ffn_down",
    "mlp.up_proj": "ffn_up",
    "model.norm": "output_norm",
    "lm_head": "output",
}
"""GGUF's name of each module of a Llama; in a block without the prefixes `model.layers.0.` and `blk.0.`."""

QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The pattern of Qwen 2 and 3, as their tokenizer.json contains it: GPT-4's with single digits."""

PRE_TOKENIZERS: Mapping[str, str] = {"gpt2": "gpt-2", "gpt4": "dbrx", QWEN2_PATTERN: "qwen2"}
"""llama.cpp's name of the pre-tokeniser that is identical to each of these patterns."""

Q8_0_BLOCK = 32
"""The number of weights that share a scale in Q8_0; the length of a row must be a multiple of it."""

MAX_F16 = 65504.0


def write_gguf(
    model: TransformerLM,
    vocabulary: Vocabulary,
    path: atomic.StrPath,
    *,
    weight_type: WeightType = "f32",
    name: str = "bytewright",
    replace: bool = False,
    progress: Progress | None = None,
) -> None:
    """Write a model and its tokenizer to a new file; `replace` allows an existing one to be replaced.

    Anything that the file cannot represent raises `UsageError` or `TokenizerError` before it is created.
    Weights are converted and written one by one, so one matrix at a time is held in a second copy.
    """
    gguf = _import_gguf()
    check_export(model, "gguf")
    weights = weights_with_scale(model)
    _check_weight_type(weights, weight_type)
    header = _Header(gguf, model.config, vocabulary, weight_type, name)
    names = llama_names(model.config)
    for ours, weight in weights.items():
        header.add_weight(gguf_name(names[ours]), tuple(weight.shape))
    atomic.check_target(path, replace=replace)
    with atomic.write_stream(path) as stream:
        stream.write(header.to_bytes())
        done, total = 0, header.num_weight_bytes
        for ours, weight in weights.items():
            rows = _in_halves(ours, weight.detach(), model.config).float().cpu().numpy()
            data = gguf.quants.quantize(rows, header.type_of(rows.ndim)).tobytes()
            stream.write(data)
            stream.write(bytes(-len(data) % header.alignment))
            done += len(data)
            if progress is not None:
                progress(done, total)


def find_pre_tokenizer(vocabulary: Vocabulary) -> str:
    """Return llama.cpp's name of the pre-tokeniser of a vocabulary; raise `TokenizerError` if it has none."""
    pattern = vocabulary.pattern
    if pattern not in PRE_TOKENIZERS:
        message = (
            f"llama.cpp has no pre-tokeniser for the pattern {shorten(pattern)}, so its ids would differ;"
            " only gpt2, gpt4 and the pattern of Qwen 2 can be exported to gguf"
        )
        raise TokenizerError(message, key="pattern", expected=tuple(PRE_TOKENIZERS), found=pattern)
    return PRE_TOKENIZERS[pattern]


def gguf_name(name: str) -> str:
    """Return GGUF's name of a weight of a Llama.

    >>> gguf_name("model.layers.3.mlp.down_proj.weight"), gguf_name("model.norm.weight")
    ('blk.3.ffn_down.weight', 'output_norm.weight')
    """
    block = re.match(r"model\.layers\.(\d+)\.", name)
    prefix = f"blk.{block[1]}." if block else ""
    module = name[block.end() if block else 0 :].removesuffix(".weight")
    if module not in GGUF_NAMES:
        message = (
            f"GGUF has no name for the weight {name!r} of a Llama, so the model cannot be exported to gguf"
        )
        raise UsageError(message, key=name, expected=tuple(GGUF_NAMES), found=module)
    return f"{prefix}{GGUF_NAMES[module]}.weight"


class _Header:
    """Everything before the weights: metadata, tokenizer, and the names, shapes and types of the weights.

    The file appears only when it is complete, through `storage.atomic`. So the `gguf` package writes the
    header into memory, and never opens a file itself.
    """

    def __init__(
        self,
        gguf: ModuleType,
        config: ModelConfig,
        vocabulary: Vocabulary,
        weight_type: WeightType,
        name: str,
    ) -> None:
        self._gguf = gguf
        self._weight_type = weight_type
        self._writer = gguf.GGUFWriter(None, "qwen3" if config.qk_norm else "llama")
        self.alignment: int = gguf.GGUF_DEFAULT_ALIGNMENT
        self.num_weight_bytes = 0
        self._add_model(config, name)
        self._add_tokenizer(vocabulary, config.vocab_size)

    def type_of(self, num_dimensions: int) -> Any:
        """Return the type of a weight: F32 for the gain of a norm, the chosen type for a matrix."""
        name = self._weight_type.upper() if num_dimensions > 1 else "F32"
        return self._gguf.GGMLQuantizationType[name]

    def add_weight(self, name: str, shape: tuple[int, ...]) -> None:
        """Add the name, shape and type of a weight; the weights follow the header in this order."""
        kind = self.type_of(len(shape))
        byte_shape = self._gguf.quants.quant_shape_to_byte_shape(shape, kind)
        num_bytes = int(np.prod(byte_shape))
        self._writer.add_tensor_info(name, byte_shape, np.dtype(np.uint8), num_bytes, raw_dtype=kind)
        self.num_weight_bytes += num_bytes

    def to_bytes(self) -> bytes:
        """Return the header, padded to the position of the first weight."""
        stream = io.BytesIO()
        writer = self._writer
        writer.fout, writer.state = [stream], self._gguf.gguf_writer.WriterState.EMPTY
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        header = stream.getvalue()
        return header + bytes(-len(header) % self.alignment)

    def _add_model(self, config: ModelConfig, name: str) -> None:
        writer, gguf = self._writer, self._gguf
        kinds = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16", "q8_0": "MOSTLY_Q8_0"}
        writer.add_name(name)
        writer.add_file_type(gguf.LlamaFileType[kinds[self._weight_type]])
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        writer.add_vocab_size(config.vocab_size)
        writer.add_context_length(config.context_length)
        writer.add_embedding_length(config.d_model)
        writer.add_block_count(config.num_layers)
        writer.add_feed_forward_length(config.ffn_width)
        writer.add_head_count(config.num_heads)
        writer.add_head_count_kv(config.kv_heads)
        writer.add_key_length(config.d_head)
        writer.add_value_length(config.d_head)
        writer.add_layer_norm_rms_eps(llama_settings(config)["rms_norm_eps"])
        writer.add_rope_dimension_count(config.d_head)
        writer.add_rope_freq_base(config.rope_theta)

    def _add_tokenizer(self, vocabulary: Vocabulary, num_ids: int) -> None:
        writer = self._writer
        texts, types = list_tokens(vocabulary, num_ids, self._gguf.TokenType)
        end = find_end_of_text(vocabulary)
        if end is None:
            message = (
                "the tokenizer has no special token, but llama.cpp needs one that ends a text;"
                f" train the tokenizer with {END_OF_TEXT}"
            )
            raise TokenizerError(message, key="special_tokens", expected=END_OF_TEXT)
        if not vocabulary.merges:
            message = (
                "the tokenizer has no merges, but llama.cpp needs at least one; train a larger vocabulary"
            )
            raise TokenizerError(message, key="merges")
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(find_pre_tokenizer(vocabulary))
        writer.add_token_list(texts)
        writer.add_token_types(types)
        writer.add_token_merges(spell_merges(vocabulary.merges))
        # Always written: without these keys, llama.cpp uses the id 11.
        writer.add_bos_token_id(end[1])
        writer.add_eos_token_id(end[1])
        writer.add_add_bos_token(False)
        writer.add_add_eos_token(False)
        writer.add_add_space_prefix(False)


def list_tokens(vocabulary: Vocabulary, num_ids: int, types: Any) -> tuple[list[str], list[int]]:
    """Return the text and the type of each of the model's ids; ids without a token are unused ones."""
    check_all_bytes(vocabulary, "llama.cpp")
    if vocabulary.size > num_ids:
        message = f"the tokenizer has ids up to {vocabulary.size - 1}, but the model has only {num_ids} ids"
        raise UsageError(message, key="vocab_size", expected=vocabulary.size, found=num_ids)
    spelled = spell_with_special_tokens(vocabulary)
    text_of = {id: text for text, id in spelled.items()}
    special_ids = set(vocabulary.special_tokens.values())
    texts, kinds = [], []
    for id in range(num_ids):
        # Unused names start with a space, which the spelling of an ordinary token never contains.
        texts.append(text_of.get(id, f" unused {id}"))
        kinds.append(
            int(types.CONTROL if id in special_ids else types.NORMAL if id in text_of else types.UNUSED)
        )
    return texts, kinds


def _import_gguf() -> ModuleType:
    try:
        return importlib.import_module("gguf")
    except ImportError:
        message = "the package gguf, which writes GGUF files, is missing; install it with: pip install gguf"
        raise UsageError(message, key="gguf") from None


def _check_weight_type(weights: Mapping[str, Tensor], weight_type: WeightType) -> None:
    """Raise `UsageError` if a matrix cannot be written in a type."""
    for name, weight in weights.items():
        if weight.ndim == 1:
            continue
        if weight_type == "q8_0" and weight.shape[-1] % Q8_0_BLOCK:
            message = (
                f"q8_0 needs rows whose length is a multiple of {Q8_0_BLOCK}, but those of {name!r} have"
                f" {weight.shape[-1]} weights; export as f16, bf16 or f32"
            )
            raise UsageError(message, key=name, expected=Q8_0_BLOCK, found=weight.shape[-1])
        if weight_type == "f16" and not weight.abs().max() <= MAX_F16:
            message = f"the weight {name!r} has values beyond {MAX_F16:.0f}, the range of f16; export as bf16"
            raise UsageError(message, key=name, expected=MAX_F16)


def _in_halves(name: str, weight: Tensor, config: ModelConfig) -> Tensor:
    """Reorder the rows of q and k, and the gains of their norms, for the architecture that rotates halves."""
    rotated = ("attn.q_proj.weight", "attn.k_proj.weight", "attn.q_norm.weight", "attn.k_norm.weight")
    if config.qk_norm and name.endswith(rotated):
        return halves_from_pairs(weight, config.d_head)
    return weight

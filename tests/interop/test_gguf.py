"""A GGUF file contains the model, its tokenizer and its metadata; what it cannot represent is rejected."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bytewright.errors import BytewrightError, StorageError, TokenizerError, UsageError
from bytewright.interop.gguf import WeightType, gguf_name, write_gguf
from bytewright.model import TransformerLM
from bytewright.model.fused import pairs_from_halves
from bytewright.tokenizer.vocabulary import Vocabulary
from bytewright.train.run_model import write_imported_model
from conftest import RunCommand
from model_choices import CHOICES, small_config
from rejection import rejects

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("gguf") is None, reason="the package gguf is missing: pip install gguf"
)

END = "<|endoftext|>"
BYTES = {id: bytes([id]) for id in range(256)}
VOCABULARY = Vocabulary.from_parts({**BYTES, 256: b"th", 257: b"the"}, [(b"t", b"h"), (b"th", b"e")], [END])
EXPORTABLE = ["default", "tied", "qk-norm", "two-kv-heads", "one-kv-head"]


def make_model(choice: str = "default", **changes: Any) -> TransformerLM:
    torch.manual_seed(1)
    return TransformerLM(small_config(choice, **{"vocab_size": VOCABULARY.size, **changes}))


def read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the metadata and the tensors of a file."""
    from gguf import GGUFReader

    reader = GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    return fields, {tensor.name: tensor for tensor in reader.tensors}


def weight_in(tensor: Any) -> torch.Tensor:
    """Return a tensor of a file in float32."""
    from gguf.quants import dequantize

    return torch.from_numpy(dequantize(np.array(tensor.data), tensor.tensor_type))


def export(path: Path, model: TransformerLM, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    write_gguf(model, VOCABULARY, path / "model.gguf", **options)
    return read(path / "model.gguf")


def test_metadata_describe_model_and_tokenizer(tmp_path: Path) -> None:
    fields, _ = export(tmp_path, make_model("two-kv-heads", vocab_size=261, rope_theta=500.0), name="owl")
    assert fields["general.architecture"] == "llama"
    assert fields["general.name"] == "owl"
    expected = {
        "vocab_size": 261,
        "context_length": 16,
        "embedding_length": 32,
        "block_count": 2,
        "feed_forward_length": 48,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 8,
        "attention.value_length": 8,
        "attention.layer_norm_rms_epsilon": pytest.approx(1e-5),
        "rope.dimension_count": 8,
        "rope.freq_base": 500.0,
    }
    assert {key: fields[f"llama.{key}"] for key in expected} == expected
    assert fields["tokenizer.ggml.model"] == "gpt2"
    assert fields["tokenizer.ggml.pre"] == "gpt-2"
    assert fields["tokenizer.ggml.merges"] == ["t h", "th e"]
    assert fields["tokenizer.ggml.bos_token_id"] == fields["tokenizer.ggml.eos_token_id"] == 258
    assert fields["tokenizer.ggml.add_bos_token"] is False
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    assert (tokens[32], tokens[257], tokens[258]) == ("Ġ", "the", END)
    assert (types[32], types[257], types[258]) == (1, 1, 3)
    assert types[259:] == [5, 5]  # ids of the model that the tokenizer does not have
    assert len(set(tokens)) == len(tokens) == 261


@pytest.mark.parametrize("choice", EXPORTABLE)
def test_f32_contains_exactly_the_weights(choice: str, tmp_path: Path) -> None:
    model = make_model(choice)
    _, tensors = export(tmp_path, model)
    weights = model.state_dict()
    assert len(tensors) == len(weights)
    rows = weight_in(tensors["blk.1.attn_k.weight"])
    if choice == "qk-norm":  # the architecture qwen3 rotates halves
        rows = pairs_from_halves(rows, model.config.d_head)
        gains = pairs_from_halves(weight_in(tensors["blk.1.attn_k_norm.weight"]), model.config.d_head)
        assert torch.equal(gains, weights["layers.1.attn.k_norm.weight"])
    assert torch.equal(rows, weights["layers.1.attn.k_proj.weight"])
    assert torch.equal(weight_in(tensors["token_embd.weight"]), weights["token_embeddings.weight"])
    assert torch.equal(weight_in(tensors["blk.0.ffn_down.weight"]), weights["layers.0.ffn.w2.weight"])
    assert ("output.weight" in tensors) == (not model.config.tie_embeddings)


def test_a_model_with_norms_of_queries_is_a_qwen3(tmp_path: Path) -> None:
    assert export(tmp_path, make_model("qk-norm"))[0]["general.architecture"] == "qwen3"


@pytest.mark.parametrize(("kind", "error"), [("f16", 2**-11), ("bf16", 2**-8), ("q8_0", 2**-7)])
def test_smaller_types_round_matrices_only(kind: WeightType, error: float, tmp_path: Path) -> None:
    model = make_model(d_ff=64)
    _, tensors = export(tmp_path, model, weight_type=kind)
    for ours, theirs in (("layers.0.ffn.w2", "blk.0.ffn_down"), ("token_embeddings", "token_embd")):
        weight, tensor = model.state_dict()[f"{ours}.weight"], tensors[f"{theirs}.weight"]
        assert tensor.tensor_type.name.lower() == kind
        deviation = (weight_in(tensor) - weight).abs().max()
        assert 0 < deviation <= error * weight.abs().max()
    assert tensors["output_norm.weight"].tensor_type.name == "F32"


def test_progress_ends_with_all_bytes_of_weights(tmp_path: Path) -> None:
    model = make_model()
    calls: list[tuple[int, int]] = []
    export(tmp_path, model, progress=lambda done, total: calls.append((done, total)))
    total = 4 * sum(parameter.numel() for parameter in model.parameters())
    assert len(calls) == len(model.state_dict())
    assert calls[-1] == (total, total)


@pytest.mark.parametrize("choice", sorted(CHOICES.keys() - set(EXPORTABLE)))
def test_an_option_that_llama_cpp_lacks_is_rejected(choice: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        export(tmp_path, make_model(choice))
    assert caught.value.key in CHOICES[choice]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "weight"),
    [({"d_model": 48}, "token_embeddings.weight"), ({"d_ff": 40}, "layers.0.ffn.w2.weight")],
)
def test_q8_0_needs_rows_of_whole_blocks(changes: dict[str, Any], weight: str, tmp_path: Path) -> None:
    (found,) = changes.values()
    with rejects(UsageError, key=weight, expected=32, found=found):
        export(tmp_path, make_model(**{"d_ff": 64, **changes}), weight_type="q8_0")
    assert not list(tmp_path.iterdir())


def test_weights_beyond_the_range_of_f16_are_rejected(tmp_path: Path) -> None:
    model = make_model()
    with torch.no_grad():
        model.get_parameter("layers.0.ffn.w1.weight")[0, 0] = 1e5
    with pytest.raises(UsageError) as caught:
        export(tmp_path, model, weight_type="f16")
    assert caught.value.key == "layers.0.ffn.w1.weight"


@pytest.mark.parametrize(
    ("changes", "error", "key"),
    [
        ({"pattern": r"\w+|\W"}, TokenizerError, "pattern"),
        (
            {"special_tokens": {}, "tokens": BYTES | {256: b"th", 257: b"the"}},
            TokenizerError,
            "special_tokens",
        ),
        ({"merges": (), "tokens": BYTES | {258: END.encode()}}, TokenizerError, "merges"),
        ({"tokens": {id: t for id, t in VOCABULARY.tokens.items() if id != 255}}, TokenizerError, None),
        ({"tokens": {**VOCABULARY.tokens, 300: b"owl"}}, UsageError, "vocab_size"),
        (
            {"tokens": {**VOCABULARY.tokens, 259: b"a"}, "special_tokens": {END: 258, "a": 259}},
            TokenizerError,
            None,
        ),
    ],
    ids=["pattern", "no special token", "no merges", "a byte is missing", "too many ids", "ambiguous"],
)
def test_a_tokenizer_that_llama_cpp_cannot_use_is_rejected(
    changes: dict[str, Any], error: type[BytewrightError], key: str | None, tmp_path: Path
) -> None:
    with pytest.raises(error) as caught:
        write_gguf(
            make_model(vocab_size=260), dataclasses.replace(VOCABULARY, **changes), tmp_path / "model.gguf"
        )
    assert caught.value.key == key
    assert not list(tmp_path.iterdir())


def test_an_existing_file_is_replaced_only_on_request(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"mine")
    with pytest.raises((UsageError, StorageError)):
        export(tmp_path, make_model())
    assert (tmp_path / "model.gguf").read_bytes() == b"mine"
    assert export(tmp_path, make_model(), replace=True)[1]


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    def fail(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(tmp_path, make_model(), progress=fail)
    assert not list(tmp_path.iterdir())


def test_without_the_package_the_error_states_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UsageError, match="pip install gguf") as caught:
        export(tmp_path, make_model())
    assert caught.value.key == "gguf"


def test_a_weight_without_a_name_in_gguf_is_rejected() -> None:
    with pytest.raises(UsageError) as caught:
        gguf_name("model.layers.0.mlp.router.weight")
    assert caught.value.found == "mlp.router"


# The command


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    write_imported_model(tmp_path / "run", make_model(d_ff=64), VOCABULARY)
    return tmp_path / "run"


def test_the_command_writes_the_requested_type(run: RunCommand, saved: Path, tmp_path: Path) -> None:
    outcome = run("export", saved, "--to", "gguf", "--out", tmp_path / "small.gguf", "--type", "q8_0")
    assert outcome.code == 0, outcome.err
    fields, tensors = read(tmp_path / "small.gguf")
    assert fields["general.name"] == "run"
    assert tensors["output.weight"].tensor_type.name == "Q8_0"
    assert str(tmp_path / "small.gguf") in outcome.out


def test_a_type_for_another_format_is_rejected(run: RunCommand, saved: Path, tmp_path: Path) -> None:
    outcome = run("export", saved, "--to", "hf", "--out", tmp_path / "hf", "--type", "f16")
    assert outcome.code == 2
    assert "--type" in outcome.err
    assert not (tmp_path / "hf").exists()

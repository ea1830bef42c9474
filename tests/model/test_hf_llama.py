"""`transformers` computes the same with an exported model; imports are exact; invalid input is rejected."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from bytewright.errors import BytewrightError, FormatError, StorageError, UsageError
from bytewright.generate import SamplingConfig, generate
from bytewright.model import ModelConfig, TransformerLM
from bytewright.model.exports import llama_names
from bytewright.model.hf_llama import llama_config, read_llama, write_llama
from model_choices import small_config
from rejection import rejects

LLAMAS = ["default", "tied", "two-kv-heads", "one-kv-head"]


def make_model(choice: str = "default", **changes: Any) -> TransformerLM:
    """Build a small model with random gains and logits of size 5."""
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = TransformerLM(small_config(choice, **changes))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter.uniform_(0.5, 1.5)
                else:
                    parameter.mul_(2)
    return model


@pytest.mark.parametrize("choice", LLAMAS)
def test_an_exported_model_is_imported_unchanged(choice: str, tmp_path: Path) -> None:
    model = make_model(choice, rope_theta=321.0)
    write_llama(model, tmp_path / "llama")
    back = read_llama(tmp_path / "llama")
    assert back.state_dict().keys() == model.state_dict().keys()
    for name, weight in model.state_dict().items():
        assert torch.equal(back.state_dict()[name], weight), name
    ids = torch.arange(10)
    assert torch.equal(back(ids), model(ids))
    assert (back.config.kv_heads, back.config.rope_theta) == (model.config.kv_heads, 321.0)


def test_reference_and_fused_export_the_same_bytes(tmp_path: Path) -> None:
    files = []
    for implementation in ("fused", "reference"):
        write_llama(make_model(implementation=implementation), tmp_path / implementation)
        files.append((tmp_path / implementation / "model.safetensors").read_bytes())
    assert files[0] == files[1]


def test_rows_of_queries_and_keys_are_reordered_and_no_others(tmp_path: Path) -> None:
    model = make_model("two-kv-heads")
    write_llama(model, tmp_path / "llama")
    theirs = safetensors.torch.load_file(tmp_path / "llama" / "model.safetensors")
    d_head = model.config.d_head
    for name, weight in model.state_dict().items():
        if "q_proj" in name or "k_proj" in name:
            heads = weight.reshape(-1, d_head, weight.shape[-1])
            weight = torch.cat((heads[:, 0::2], heads[:, 1::2]), dim=1).reshape(weight.shape)
        assert torch.equal(theirs.pop(llama_names(model.config)[name]), weight), name
    assert not theirs


@pytest.mark.parametrize(
    ("choice", "key", "expected"),
    [
        ("post-norm", "norm", "pre"),
        ("no-norm", "norm", "pre"),
        ("position-none", "position", "rope"),
        ("ffn-silu", "ffn", "swiglu"),
        ("qk-norm", "qk_norm", False),
    ],
)
def test_a_model_that_is_not_a_llama_is_rejected_and_nothing_is_written(
    choice: str, key: str, expected: object, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as rejection:
        write_llama(make_model(choice), tmp_path / "llama")
    assert (rejection.value.key, rejection.value.expected) == (key, expected)
    assert list(tmp_path.iterdir()) == []


def test_an_option_that_the_export_does_not_list_is_rejected() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class NewerConfig(ModelConfig):
        new_option: bool = False

    fields = small_config("default").to_dict()
    assert llama_config(NewerConfig(**fields))["model_type"] == "llama"
    with rejects(UsageError, key="new_option", found=True):
        llama_config(NewerConfig(**fields, new_option=True))


def test_a_folder_that_exists_is_replaced_only_on_request(tmp_path: Path) -> None:
    write_llama(make_model(), tmp_path / "llama")
    with rejects(UsageError, path=tmp_path / "llama"):
        write_llama(make_model(), tmp_path / "llama")
    write_llama(make_model("tied"), tmp_path / "llama", replace=True)
    assert read_llama(tmp_path / "llama").config.tie_embeddings


def test_the_stop_token_is_written_even_if_it_is_none() -> None:
    config = small_config("default")
    assert llama_config(config)["eos_token_id"] is None  # without the key, `transformers` would stop at id 2
    assert llama_config(config, 60)["eos_token_id"] == 60


# Formats of other versions and tools.


def edit_config(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    fields = json.loads((folder / "config.json").read_text())
    change(fields)
    (folder / "config.json").write_text(json.dumps(fields))


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    change(weights)
    safetensors.torch.save_file(weights, folder / "model.safetensors")


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    write_llama(make_model("tied"), tmp_path / "llama")
    return tmp_path / "llama"


def test_the_older_spelling_of_the_config_is_read(llama: Path) -> None:
    def as_version_4(fields: dict[str, Any]) -> None:
        for key in (
            "rope_parameters",
            "head_dim",
            "num_key_value_heads",
            "attention_bias",
            "mlp_bias",
            "dtype",
        ):
            del fields[key]
        fields.update(rope_theta=77.0, rope_scaling=None, torch_dtype="float32")

    edit_config(llama, as_version_4)
    assert read_llama(llama).config.rope_theta == 77.0


def test_half_precision_and_repeated_tied_weights_are_read(llama: Path) -> None:
    def as_others_do(weights: dict[str, torch.Tensor]) -> None:
        for name in list(weights):
            weights[name] = weights[name].to(torch.bfloat16)
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
        weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)

    edit_weights(llama, as_others_do)
    model = read_llama(llama)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    expected = make_model("tied").token_embeddings.weight.to(torch.bfloat16).float()
    assert torch.equal(model.token_embeddings.weight, expected)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"model_type": "mistral"}, "model_type"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"rms_norm_eps": -1e-6}, "norm_options.eps"),
        ({"head_dim": 12}, "head_dim"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5}}, "rope_parameters.rope_type"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_parameters.partial_rotary_factor"),
        ({"partial_rotary_factor": 0.25}, "partial_rotary_factor"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling.type"),
        ({"rope_parameters": {"rope_theta": "x"}}, "rope_parameters.rope_theta"),
        ({"hidden_size": "32"}, "hidden_size"),
        ({"num_attention_heads": 5}, "num_heads"),
        ({"num_hidden_layers": 0}, "num_layers"),
        ({"num_hidden_layers": 10**8}, "num_hidden_layers"),
        ({"num_hidden_layers": 1}, "model.layers.1.input_layernorm.weight"),
        ({"max_position_embeddings": 10**8}, "max_position_embeddings"),
        ({"hidden_size": 10**12}, "d_model"),
        ({"vocab_size": 10**8}, "model.embed_tokens.weight"),
        ({"intermediate_size": 50}, "model.layers.0.mlp.gate_proj.weight"),
    ],
)
def test_an_unsupported_config_is_rejected(llama: Path, change: dict[str, Any], key: str) -> None:
    edit_config(llama, lambda fields: fields.update(change))
    with pytest.raises(FormatError) as rejection:
        read_llama(llama)
    assert rejection.value.key == key
    assert rejection.value.path is not None
    assert rejection.value.path.parent == llama


def test_a_number_beyond_the_range_of_a_float_is_rejected(llama: Path) -> None:
    edit_config(llama, lambda fields: fields.update({"rope_theta": 10**400}))
    with rejects(FormatError, path=llama / "config.json"):
        read_llama(llama)


@pytest.mark.parametrize(
    "key", ["vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size", "model_type"]
)
def test_a_missing_field_is_named(llama: Path, key: str) -> None:
    edit_config(llama, lambda fields: fields.pop(key))
    with pytest.raises(FormatError) as rejection:
        read_llama(llama)
    assert rejection.value.key == key


def test_missing_unknown_and_wrong_weights_are_rejected(llama: Path) -> None:
    name, bias = "model.layers.1.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.bias"
    original = (llama / "model.safetensors").read_bytes()
    changes: list[tuple[Callable[[dict[str, torch.Tensor]], object], str]] = [
        (lambda weights: weights.pop(name), name),
        (lambda weights: weights.update({bias: torch.ones(2)}), bias),
        (lambda weights: weights.update({name: torch.ones(3, 3)}), name),
        (lambda weights: weights.update({name: weights[name].to(torch.int8)}), name),
    ]
    for change, key in changes:
        (llama / "model.safetensors").write_bytes(original)
        edit_weights(llama, change)
        with rejects(FormatError, key=key):
            read_llama(llama)


@pytest.mark.parametrize("kind", ["F4", "F6_E2M3", "F6_E3M2", "F8_E8M0", "F8_E4M3"])
def test_unsupported_weight_types_are_rejected(llama: Path, kind: str) -> None:
    data = (llama / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__")
    bits, end = int(kind[1]), 0
    for weight in header.values():
        start, end = end, end + math.prod(weight["shape"]) * bits // 8
        weight |= {"dtype": kind, "data_offsets": [start, end]}
    spelled = json.dumps(header).encode()
    (llama / "model.safetensors").write_bytes(len(spelled).to_bytes(8, "little") + spelled + bytes(end))
    if kind == "F8_E4M3":  # supported by torch and exact in float32
        assert not read_llama(llama).output_weight.any()
        return
    with rejects(FormatError, path=llama / "model.safetensors", found=kind):
        read_llama(llama)


def test_layers_without_weights_are_not_built(llama: Path) -> None:
    """The file names the last of a million layers; without the count, all of them would be built."""
    edit_config(llama, lambda fields: fields.update(num_hidden_layers=10**6))
    last = "model.layers.999999.input_layernorm.weight"
    edit_weights(llama, lambda weights: weights.update({last: torch.ones(1)}))
    with rejects(FormatError, expected=10**6):
        read_llama(llama)


@pytest.mark.parametrize("cut", [0, 7, 100, -1])
def test_a_truncated_file_is_rejected(llama: Path, cut: int) -> None:
    for name in ("model.safetensors", "config.json"):
        original = (llama / name).read_bytes()
        (llama / name).write_bytes(original[:cut] if cut >= 0 else original[:-2])
        with rejects(BytewrightError, path=llama / name):
            read_llama(llama)
        (llama / name).write_bytes(original)


def test_a_missing_folder_or_one_without_weights_is_rejected(llama: Path) -> None:
    (llama / "model.safetensors").unlink()
    with rejects(StorageError, path=llama / "model.safetensors"):
        read_llama(llama)
    with pytest.raises(StorageError):
        read_llama(llama / "nowhere")


# Several files and an index, as for large models.


def split_weights(folder: Path) -> dict[str, str]:
    """Split the weights of a folder into two files with an index; return the file of each weight."""
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    parts: list[dict[str, torch.Tensor]] = [{}, {}]
    for number, (name, weight) in enumerate(sorted(weights.items())):
        parts[number % 2][name] = weight
    placed: dict[str, str] = {}
    for number, part in enumerate(parts, start=1):
        file = f"model-0000{number}-of-00002.safetensors"
        safetensors.torch.save_file(part, folder / file)
        placed |= dict.fromkeys(part, file)
    write_index(folder, placed)
    return placed


def write_index(folder: Path, placed: object) -> None:
    index = {"metadata": {"total_size": 1}, "weight_map": placed}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_weights_in_several_files_are_read(llama: Path) -> None:
    split_weights(llama)
    ids = torch.arange(10)
    assert torch.equal(read_llama(llama)(ids), make_model("tied")(ids))


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("../other.safetensors", "should be a plain name that ends in .safetensors"),
        ("/etc/passwd", "should be a plain name that ends in .safetensors"),
        ("pytorch_model.bin", "should be a plain name that ends in .safetensors"),
        (7, "should be a string, but is 7"),
        ("model-00003-of-00002.safetensors", "model-00003-of-00002.safetensors: no such file"),
        ("model-00001-of-00002.safetensors", "the weight 'model.norm.weight' is listed, but missing"),
    ],
)
def test_an_index_with_a_wrong_file_is_rejected(llama: Path, place: object, words: str) -> None:
    placed: dict[str, object] = {**split_weights(llama)}
    assert placed["model.norm.weight"] == "model-00002-of-00002.safetensors"
    del placed["model.norm.weight"]
    write_index(llama, {"model.norm.weight": place} | placed)
    with rejects(BytewrightError) as caught:
        read_llama(llama)
    assert words in str(caught.value)


def test_an_incomplete_index_is_rejected(llama: Path) -> None:
    placed = split_weights(llama)
    del placed["model.norm.weight"]
    write_index(llama, placed)
    with rejects(FormatError, key="model.norm.weight"):
        read_llama(llama)
    write_index(llama, [])
    with rejects(FormatError, key="weight_map"):
        read_llama(llama)


# Comparison with `transformers`, if it is installed.


@pytest.fixture
def transformers(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return pytest.importorskip("transformers")


@pytest.mark.filterwarnings("default")  # from `transformers`
@pytest.mark.parametrize("choice", LLAMAS)
def test_transformers_computes_the_same_logits_and_greedy_ids(
    choice: str, tmp_path: Path, transformers: Any
) -> None:
    model = make_model(choice, context_length=64, rope_theta=500.0)
    write_llama(model, tmp_path / "llama")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "llama")
    assert type(theirs).__name__ == "LlamaForCausalLM"
    ids = torch.randint(0, 61, (2, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert (theirs(ids).logits - model(ids)).abs().max().item() <= 1e-4
    prompts = ids[:, :5]
    written = theirs.generate(
        prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=40, do_sample=False, pad_token_id=0
    )
    ours = generate(model, prompts.tolist(), SamplingConfig(max_new_tokens=40, temperature=0.0))
    assert [completion.ids for completion in ours] == written[:, 5:].tolist()
    for folder, size in ((tmp_path / "saved by the library", "5GB"), (tmp_path / "in parts", "20KB")):
        theirs.save_pretrained(folder, max_shard_size=size)
        assert (folder / "model.safetensors.index.json").exists() == (size == "20KB")
        assert torch.equal(read_llama(folder)(ids), model(ids))


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("eps", [1e-5, 1e-6])
def test_a_model_of_transformers_has_the_same_logits_here(
    tmp_path: Path, transformers: Any, eps: float
) -> None:
    torch.manual_seed(0)
    theirs = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=90,
            hidden_size=48,
            intermediate_size=80,
            num_hidden_layers=2,
            num_attention_heads=6,
            num_key_value_heads=3,
            max_position_embeddings=32,
            rms_norm_eps=eps,
        )
    )
    theirs.save_pretrained(tmp_path / "llama")
    ours = read_llama(tmp_path / "llama")
    ids = torch.randint(0, 90, (3, 32))
    with torch.no_grad():
        assert (theirs(ids).logits - ours(ids)).abs().max().item() <= 1e-4
    assert ours.config == ModelConfig(
        vocab_size=90,
        context_length=32,
        d_model=48,
        num_layers=2,
        num_heads=6,
        d_ff=80,
        num_kv_heads=3,
        norm_options={} if eps == 1e-5 else {"eps": eps},
    )
    assert llama_config(ours.config)["rms_norm_eps"] == eps

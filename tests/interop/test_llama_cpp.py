"""llama.cpp computes the ids, the logits and the greedy text of Bytewright from an exported file."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bytewright.generate import SamplingConfig, generate
from bytewright.interop.gguf import PRE_TOKENIZERS, WeightType, write_gguf
from bytewright.model import ModelConfig, TransformerLM
from bytewright.model.fused import halves_from_pairs
from bytewright.tokenizer import Tokenizer
from bytewright.tokenizer.train import count_texts, train_tokenizer
from bytewright.train.run import Run
from random_strings import CODE_POINTS, random_strings
from texts import WORDS
from trained_runs import train_runs

llama_cpp = pytest.importorskip(
    "llama_cpp", reason="llama-cpp-python is missing: pip install '.[interop]' (compiles llama.cpp)"
)
pytest.importorskip("gguf", reason="the package gguf is missing: pip install gguf")

END = "<|endoftext|>"
PROMPT = "One fresh spring evening, Kate set out to catch a tearful lobster. She"
F32 = 0
"""llama.cpp's number of the type F32, for its key/value cache."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return train_runs(tmp_path_factory.mktemp("trained"))


def load(path: Path, **options: Any) -> Any:
    """Open a file with an F32 cache, so that the logits can be compared."""
    return llama_cpp.Llama(
        str(path), n_ctx=256, n_threads=1, logits_all=True, type_k=F32, type_v=F32, verbose=False, **options
    )


def logits_of(path: Path, ids: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    model = load(path)
    try:
        model.eval(ids)
        return np.array(model.scores[: len(ids)])
    finally:
        model.close()


def our_logits(model: TransformerLM, ids: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    with torch.no_grad():
        return model(torch.tensor([ids]))[0].numpy()


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_logits_and_greedy_text_in_f32_are_ours(
    architecture: str, trained: dict[str, Path], tmp_path: Path
) -> None:
    run = Run.open(trained[architecture])
    model, tokenizer = run.load_model(), run.tokenizer
    write_gguf(model, tokenizer.vocabulary, tmp_path / "model.gguf")
    ids = tokenizer.encode(PROMPT)
    (ours,) = generate(model, [ids], SamplingConfig(max_new_tokens=60, temperature=0.0, num_ids=512))
    whole = ids + ours.ids
    difference = np.abs(logits_of(tmp_path / "model.gguf", whole) - our_logits(model, whole)).max()
    assert difference < 5e-5  # of logits up to about 20

    theirs = load(tmp_path / "model.gguf")
    try:
        assert theirs.tokenize(PROMPT.encode(), add_bos=False, special=True) == ids
        assert theirs.token_eos() == theirs.token_bos() == tokenizer.special_tokens[END]
        written = theirs.create_completion(PROMPT, max_tokens=60, temperature=0.0)
    finally:
        theirs.close()
    assert written["choices"][0]["text"] == tokenizer.decode(ours.ids).split(END)[0]


@pytest.mark.parametrize(("kind", "limit"), [("f16", 0.1), ("bf16", 1.0), ("q8_0", 2.0)])
def test_smaller_types_give_similar_logits(
    kind: WeightType, limit: float, trained: dict[str, Path], tmp_path: Path
) -> None:
    run = Run.open(trained["llama"])
    model, tokenizer = run.load_model(), run.tokenizer
    write_gguf(model, tokenizer.vocabulary, tmp_path / "model.gguf", weight_type=kind)
    ids = tokenizer.encode(PROMPT)
    difference = np.abs(logits_of(tmp_path / "model.gguf", ids) - our_logits(model, ids)).max()
    assert 0 < difference < limit


def test_rows_in_the_wrong_order_are_detected(trained: dict[str, Path], tmp_path: Path) -> None:
    run = Run.open(trained["llama"])
    model, tokenizer = run.load_model(), run.tokenizer
    ids = tokenizer.encode(PROMPT)
    expected = our_logits(model, ids)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                parameter.copy_(halves_from_pairs(parameter, model.config.d_head))
    write_gguf(model, tokenizer.vocabulary, tmp_path / "model.gguf")
    assert np.abs(logits_of(tmp_path / "model.gguf", ids) - expected).max() > 0.1


# Ids


@pytest.fixture(params=PRE_TOKENIZERS, ids=PRE_TOKENIZERS.get)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Yield a tokenizer that was trained on random strings, and llama.cpp's function with the same ids."""
    strings = ("".join(batch) for batch in random_strings(50_000, seed=3))
    counter = count_texts(strings, [END], pattern=request.param)
    vocabulary = train_tokenizer(counter, 3000, [END], pattern=request.param).vocabulary
    config = ModelConfig(vocab_size=3000, context_length=8, d_model=8, num_layers=1, num_heads=1)
    write_gguf(TransformerLM(config), vocabulary, tmp_path / "model.gguf")
    theirs = load(tmp_path / "model.gguf", vocab_only=True)
    yield (
        Tokenizer.from_vocabulary(vocabulary),
        lambda text: theirs.tokenize(text, add_bos=False, special=True),
    )
    theirs.close()


def is_in_unicode_14(text: str) -> bool:
    """Return whether llama.cpp's tables have all characters; other Python versions have other tables."""
    tables = unicodedata if unicodedata.unidata_version == "14.0.0" else unicodedata.ucd_3_2_0
    return all(tables.category(character) != "Cn" for character in text)


def test_ids_of_the_fuzz_corpus_are_ours(pair: tuple[Tokenizer, Callable[[bytes], list[int]]]) -> None:
    ours, theirs = pair
    known = [character for character in CODE_POINTS if is_in_unicode_14(character)]
    assert len(known) > 200_000
    pieces = [*filter(is_in_unicode_14, WORDS), END]
    for strings in random_strings(20_000, seed=4, characters=known, pieces=pieces):
        expected = ours.encode_batch(strings)
        for text, ids in zip(strings, expected, strict=True):
            if ids.tolist() != (found := theirs(text.encode())):
                assert (text, found) == (text, ids.tolist())


def test_ids_of_real_text_are_ours(
    pair: tuple[Tokenizer, Callable[[bytes], list[int]]], shared_data: Path
) -> None:
    ours, theirs = pair
    text = (shared_data / "multilingual.txt").read_text()[:300_000]
    assert theirs(text.encode()) == ours.encode(text)

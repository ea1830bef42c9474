"""Hugging Face's `tokenizer.json`, restricted to byte-level BPE.

A `tokenizer.json` can contain features that a `Vocabulary` cannot represent: normalisers, other models,
prefix spaces, dropout, templates that add tokens. Each is rejected by name, because ignoring it would change
ids. The library ignores the ids in `added_tokens`: it uses the ids of the model's vocabulary, or else the
next free ones. So the writer adds special tokens to that vocabulary, and the reader checks their ids against
this rule. Regular expressions are passed on unchanged, although the library uses another engine.
"""

from __future__ import annotations

from itertools import groupby
from typing import NoReturn

from bytewright.errors import TokenizerError, shorten
from bytewright.storage import atomic
from bytewright.storage.json_reader import Json, dump_json
from bytewright.tokenizer.formats.gpt2 import (
    read_ids,
    read_merge,
    read_token,
    spell_merges,
    spell_with_special_tokens,
)
from bytewright.tokenizer.formats.tiktoken import check_reachable, recover_merges
from bytewright.tokenizer.vocabulary import PATTERNS, Merge, Vocabulary, naming_files

_WIDENING_FLAGS = ("single_word", "lstrip", "rstrip")
_KEYS = (
    *("version", "truncation", "padding", "added_tokens", "normalizer"),
    *("pre_tokenizer", "post_processor", "decoder", "model"),
)
# `unk_token` and `fuse_unk` concern bytes without a token, which cannot be encoded here.
_MODEL_KEYS = (
    *("type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk"),
    *("byte_fallback", "ignore_merges", "vocab", "merges"),
)


# Writing


def write_huggingface(vocabulary: Vocabulary, path: atomic.StrPath) -> None:
    """Write a `tokenizer.json` with which the `tokenizers` library produces the same ids."""
    atomic.write_bytes(path, to_tokenizer_json(vocabulary))


def to_tokenizer_json(vocabulary: Vocabulary) -> bytes:
    """Return the contents of a `tokenizer.json` with which the `tokenizers` library produces the same ids."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    return dump_json(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                _added_token(special, id)
                for special, id in sorted(vocabulary.special_tokens.items(), key=lambda item: item[1])
            ],
            "normalizer": None,
            "pre_tokenizer": _pre_tokenizer(vocabulary.pattern, byte_level),
            "post_processor": None,
            "decoder": byte_level,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": spell_with_special_tokens(vocabulary),
                "merges": spell_merges(vocabulary.merges),
            },
        }
    )


def warn_of_pattern(vocabulary: Vocabulary) -> str | None:
    r"""Return a warning that the library may produce other ids, or None for the tested patterns.

    In other patterns, classes such as `\w` may contain other characters in the library's engine, such as `²`.
    """
    if vocabulary.pattern in PATTERNS:
        return None
    return (
        "The pattern is not a named one. Hugging Face's library uses another regular expression engine, so it"
        " may split some texts differently and produce other ids."
    )


def _added_token(special: str, id: int) -> dict[str, object]:
    flags = dict.fromkeys((*_WIDENING_FLAGS, "normalized"), False)
    return {"id": id, "content": special, **flags, "special": True}


def _pre_tokenizer(pattern: str, byte_level: dict[str, object]) -> dict[str, object]:
    if pattern == "gpt2":
        return byte_level
    expression = PATTERNS.get(pattern, pattern)
    split = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, byte_level | {"use_regex": False}]}


# Reading


def read_huggingface(path: atomic.StrPath) -> Vocabulary:
    """Return the vocabulary of a `tokenizer.json`; features it cannot represent are rejected."""
    root = Json.read(path)
    root.check_keys(*_KEYS)
    for feature in ("truncation", "padding", "normalizer"):
        if root.get(feature).value is not None:
            _reject(root[feature])
    _check_post_processor(root.get("post_processor"))
    if root.get("decoder").value is not None:
        _expect_type(root["decoder"], "ByteLevel")
    pattern = _read_pattern(root.get("pre_tokenizer"))
    model = root["model"]
    ignores_merges = _read_model_options(model)
    vocab = model["vocab"]
    ids = read_ids(vocab)
    specials = _read_added_tokens(root.get("added_tokens"), ids)
    tokens = {id: read_token(key, vocab) for key, id in ids.items() if key not in specials}
    with naming_files(path):
        merges = _without_idle_merges([read_merge(merge) for merge in model["merges"].elements()])
        vocabulary = Vocabulary.from_parts(tokens, merges, specials, pattern)
        if ignores_merges:  # whole words are looked up first: equivalent if each token is reachable
            check_reachable(vocabulary)
    return vocabulary


def _check_post_processor(processor: Json) -> None:
    """Reject a processor that adds tokens; ByteLevel and a template of only the text do not."""
    if processor.value is None:
        return
    is_sequence = processor.get("type").value == "Sequence"
    for step in processor["processors"].elements() if is_sequence else (processor,):
        if step.get("type").value != "TemplateProcessing":
            _expect_type(step, "ByteLevel")
        else:  # `transformers` writes one into every file that it saves
            template = step["single"]
            parts = [key for part in template.elements() for key in part.as_object()]
            if parts != ["Sequence"]:
                raise template.error("only the text: Bytewright cannot add tokens")


def _read_pattern(step: Json) -> str:
    """Return the pattern: GPT-2's for ByteLevel alone, or that of a Split before a ByteLevel."""
    if step.get("type").value != "Sequence":
        _check_byte_level(step, uses_regex=True)
        return "gpt2"
    steps = list(step["pretokenizers"].elements())
    if len(steps) != 2:
        raise step["pretokenizers"].error("one Split and one ByteLevel")
    split, byte_level = steps
    _expect_type(split, "Split")
    split.check_keys("type", "pattern", "behavior", "invert")
    if split["behavior"].value != "Isolated":
        raise split["behavior"].error("'Isolated', the only supported value")
    _expect_flag(split.get("invert"), False, default=False)
    split["pattern"].check_keys("Regex")
    expression = split["pattern"]["Regex"].as_text()
    _check_byte_level(byte_level, uses_regex=False)
    # In a file, "gpt2" is an expression and not the name of a pattern.
    return f"(?:{expression})" if expression in PATTERNS else expression


def _check_byte_level(step: Json, *, uses_regex: bool) -> None:
    _expect_type(step, "ByteLevel")
    step.check_keys("type", "add_prefix_space", "trim_offsets", "use_regex")
    _expect_flag(step.get("add_prefix_space"), False, default=True)
    _expect_flag(step.get("use_regex"), uses_regex, default=True)


def _read_model_options(model: Json) -> bool:
    """Reject models other than plain BPE; return whether whole words are looked up before merging."""
    model.check_keys(*_MODEL_KEYS)
    if model.get("type").value is not None:  # early files do not contain it
        _expect_type(model, "BPE")
    if model.get("dropout").value not in (None, 0):
        _reject(model["dropout"])
    for affix in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(affix).value not in (None, ""):
            _reject(model[affix])
    _expect_flag(model.get("byte_fallback"), False, default=False)
    return model.get("ignore_merges").as_boolean(default=False)


def _read_added_tokens(added: Json, ids: dict[str, int]) -> dict[str, int]:
    """Return the special tokens; their ids must be those that the library assigns."""
    specials: dict[str, int] = {}
    highest = -1
    normalized: bool | None = None
    for token in added.elements() if added.value is not None else ():
        token.check_keys("id", "content", "special", "normalized", *_WIDENING_FLAGS)
        for flag in _WIDENING_FLAGS:
            _expect_flag(token.get(flag), False, default=False)
        if normalized is None:
            normalized = token.get("normalized").as_boolean(default=True)
        # Otherwise the library would match one kind of token first.
        _expect_flag(token.get("normalized"), normalized, default=True)
        content = token["content"].as_text()
        if content in specials:
            raise token["content"].error("a token that was not added before")
        expected = ids.get(content, highest + 1 if highest >= len(ids) else len(ids))
        if token["id"].as_integer() != expected:
            raise token["id"].error(f"{expected}, the id that the library assigns to {shorten(content)}")
        specials[content] = expected
        highest = max(highest, expected)
    return specials


def _without_idle_merges(merges: list[Merge]) -> list[Merge] | tuple[Merge, ...]:
    """Return one merge per token for a file made from ranks, which lists every pair that produces a token.

    The other merges have no effect if each token is reachable and all pairs of a token are adjacent. Then
    this is merging by rank (see `formats.tiktoken`).
    """
    products = [left + right for left, right in merges]
    distinct = list(dict.fromkeys(products))
    if len(distinct) == len(products) or len(distinct) != sum(1 for _ in groupby(products)):
        return merges  # not made from ranks; `Vocabulary` rejects two merges of one token
    kept = recover_merges(distinct)
    listed = set(merges)
    for merge in kept:
        if merge not in listed:
            message = f"merge {shorten(merge)} is missing, although other pairs make the same token"
            raise TokenizerError(message, expected=merge)
    return kept


def _expect_type(step: Json, expected: str) -> None:
    if step.get("type").value != expected:
        raise step.get("type").error(f"{shorten(expected)}, the only supported value")


def _expect_flag(flag: Json, expected: bool, *, default: bool) -> None:
    if flag.as_boolean(default) is not expected:
        raise flag.error(f"{str(expected).lower()}, the only supported value")


def _reject(feature: Json) -> NoReturn:
    raise feature.error("null, because Bytewright does not support it")

"""Each format is read back unchanged, and the libraries of three formats read our files alike."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiktoken
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tiktoken.load import load_tiktoken_bpe

from bytewright.errors import FormatError, TokenizerError, UsageError
from bytewright.tokenizer.formats import (
    read_bytewright,
    read_gpt2,
    read_huggingface,
    read_tiktoken,
    read_vocabulary,
    warn_of_pattern,
    write_bytewright,
    write_gpt2,
    write_huggingface,
    write_tiktoken,
)
from bytewright.tokenizer.formats.gpt2 import TokenizerWarning, spell, unspell
from bytewright.tokenizer.reference import BYTES, encode_reference, train_bpe_reference
from bytewright.tokenizer.vocabulary import PATTERNS, Vocabulary
from rejection import rejects

TEXT = (
    "It's the newest, the widest, the lowest! Don't they're WE'LL 1234567 12.5%\n\n  indented\ttabs \r\n"
    "Fußgänger gehen über die Straße, naïve café. Ёлка и ёжик. 日本語の文章です。 "
    "한국어 مرحبا 🙂👍🏽 \u00a0 e\u0301 "
) * 4
SPECIALS = ["<|end|>", "<|end|><|end|>", "<| with spaces |>", "<|é|>"]
APART = ["<|end|>", "<| with spaces |>", "<|é|>"]  # tiktoken does not say which of two that overlap it takes
USERS_OWN = r"\p{L}+|\p{N}|[^\p{L}\p{N}]+"
WITH_SPECIALS = TEXT + "<|end|>" + TEXT + "<|end|><|end|><|end|>a<| with spaces |> b<|é|>" + "<|end" + TEXT


def trained(pattern: str = "gpt2", specials: list[str] = SPECIALS, vocab_size: int = 420) -> Vocabulary:
    tokens, merges, _ = train_bpe_reference(TEXT.encode(), vocab_size, pattern=pattern)
    return Vocabulary.from_parts(tokens, merges, specials, pattern)


def renumbered(vocabulary: Vocabulary) -> Vocabulary:
    """Reverse and spread the ids, so that no test passes because of their order."""
    new_id = {id: 5 + 3 * (vocabulary.size - id) for id in vocabulary.tokens}
    return Vocabulary(
        tokens={new_id[id]: token for id, token in vocabulary.tokens.items()},
        merges=vocabulary.merges,
        special_tokens={special: new_id[id] for special, id in vocabulary.special_tokens.items()},
        pattern=vocabulary.pattern,
    )


PATTERNS_TO_TRY = pytest.mark.parametrize("pattern", ["gpt2", "gpt4", USERS_OWN])


# The alphabet


def test_the_alphabet_has_one_printable_character_for_each_byte() -> None:
    spelled = [spell(byte) for byte in BYTES]
    assert len(set(spelled)) == 256
    assert all(len(character) == 1 and character.isprintable() and character != " " for character in spelled)
    assert set(spelled) == set(tokenizers.pre_tokenizers.ByteLevel.alphabet())


@given(st.binary())
def test_a_spelling_is_read_back(token: bytes) -> None:
    assert unspell(spell(token)) == token


@given(st.text())
def test_no_other_text_is_a_spelling(text: str) -> None:
    alphabet = {spell(byte) for byte in BYTES}
    assert (unspell(text) is None) == (not set(text) <= alphabet)


# Our own folder


@PATTERNS_TO_TRY
def test_our_folder_is_read_back_unchanged(tmp_path: Path, pattern: str) -> None:
    for number, vocabulary in enumerate(
        [trained(pattern), renumbered(trained(pattern)), trained(pattern, [])]
    ):
        write_bytewright(vocabulary, tmp_path / str(number))
        again = read_bytewright(tmp_path / str(number))
        assert again == vocabulary
        assert again.fingerprint == vocabulary.fingerprint


def test_our_folder_supports_special_tokens_spelled_like_ordinary_ones(tmp_path: Path) -> None:
    vocabulary = Vocabulary.from_parts(dict(enumerate(BYTES)), [], ["a", "Ġ", "\n", "é"])
    write_bytewright(vocabulary, tmp_path / "tokenizer")
    assert read_bytewright(tmp_path / "tokenizer") == vocabulary


def test_our_folder_is_replaced_only_on_request(tmp_path: Path) -> None:
    write_bytewright(trained(), tmp_path / "tokenizer")
    with rejects(UsageError, path=tmp_path / "tokenizer", key="replace"):
        write_bytewright(trained("gpt4"), tmp_path / "tokenizer")
    assert read_bytewright(tmp_path / "tokenizer").pattern == "gpt2"
    write_bytewright(trained("gpt4"), tmp_path / "tokenizer", replace=True)
    assert read_bytewright(tmp_path / "tokenizer").pattern == "gpt4"


# GPT-2


def test_gpt2_files_are_read_back_unchanged(tmp_path: Path) -> None:
    for vocabulary in [trained(), renumbered(trained()), trained(specials=[])]:
        write_gpt2(vocabulary, tmp_path / "vocab.json", tmp_path / "merges.txt")
        again = read_gpt2(tmp_path / "vocab.json", tmp_path / "merges.txt", list(vocabulary.special_tokens))
        assert again == vocabulary


def test_the_first_line_of_merges_may_name_a_version_or_be_a_merge(tmp_path: Path) -> None:
    tokens, merges, _ = train_bpe_reference({b"##": 9, b"ab": 5}, 258)
    assert merges[0] == (b"#", b"#")
    vocabulary = Vocabulary.from_parts(tokens, merges)
    write_gpt2(vocabulary, tmp_path / "vocab.json", tmp_path / "merges.txt")
    version, *lines = (tmp_path / "merges.txt").read_text().splitlines(keepends=True)
    assert version == "#version: 0.2\n"
    (tmp_path / "merges.txt").write_text("".join(lines))
    assert read_gpt2(tmp_path / "vocab.json", tmp_path / "merges.txt") == vocabulary


def test_a_special_token_the_files_lack_gets_the_next_free_id(tmp_path: Path) -> None:
    vocabulary = trained(specials=["<|end|>"])
    write_gpt2(vocabulary, tmp_path / "vocab.json", tmp_path / "merges.txt")
    again = read_gpt2(tmp_path / "vocab.json", tmp_path / "merges.txt", ["<|pad|>", "<|end|>"])
    assert again.special_tokens == {"<|end|>": vocabulary.size - 1, "<|pad|>": vocabulary.size}


def test_an_undeclared_special_token_causes_a_warning_and_is_an_ordinary_token_without_a_merge(
    tmp_path: Path,
) -> None:
    vocabulary = trained(specials=["<|end|>"])
    write_gpt2(vocabulary, tmp_path / "vocab.json", tmp_path / "merges.txt")
    with pytest.warns(TokenizerWarning, match=r"'<\|end\|>'.*special_tokens"):
        again = read_gpt2(tmp_path / "vocab.json", tmp_path / "merges.txt")
    assert again.special_tokens == {}
    assert again.ids_of_ordinary_tokens[b"<|end|>"] == vocabulary.special_tokens["<|end|>"]


def test_special_tokens_spelled_as_bytes_are_read(tmp_path: Path) -> None:
    vocabulary = trained(specials=["<| é |>"])
    write_gpt2(vocabulary, tmp_path / "vocab.json", tmp_path / "merges.txt")
    vocab = json.loads((tmp_path / "vocab.json").read_text())
    vocab[spell("<| é |>".encode())] = vocab.pop("<| é |>")
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    assert read_gpt2(tmp_path / "vocab.json", tmp_path / "merges.txt", ["<| é |>"]) == vocabulary


@pytest.mark.parametrize("writer", [write_huggingface, lambda v, path: write_gpt2(v, path, path)])
def test_a_special_token_spelled_like_an_ordinary_one_is_not_written(
    tmp_path: Path, writer: Callable[[Vocabulary, Path], None]
) -> None:
    vocabulary = Vocabulary.from_parts(dict(enumerate(BYTES)), [], ["Ġ"])
    with rejects(TokenizerError, found="Ġ"):
        writer(vocabulary, tmp_path / "file")
    assert not list(tmp_path.iterdir())


def test_gpt2_files_cannot_contain_another_pattern(tmp_path: Path) -> None:
    with rejects(TokenizerError, key="pattern", expected="gpt2", found="gpt4"):
        write_gpt2(trained("gpt4"), tmp_path / "vocab.json", tmp_path / "merges.txt")
    assert not list(tmp_path.iterdir())


def test_the_tokenizers_library_reads_our_gpt2_files_as_we_do(tmp_path: Path) -> None:
    vocabulary = renumbered(trained())
    write_gpt2(vocabulary, tmp_path / "vocab.json", tmp_path / "merges.txt")
    model = tokenizers.models.BPE.from_file(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    theirs = tokenizers.Tokenizer(model)
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.add_special_tokens(list(vocabulary.special_tokens))
    assert theirs.encode(WITH_SPECIALS).ids == encode_reference(WITH_SPECIALS.encode(), vocabulary)


# Hugging Face


@PATTERNS_TO_TRY
def test_the_tokenizers_library_reads_our_tokenizer_json_as_we_do(tmp_path: Path, pattern: str) -> None:
    for vocabulary in [trained(pattern), renumbered(trained(pattern)), trained(pattern, [])]:
        write_huggingface(vocabulary, tmp_path / "tokenizer.json")
        theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        assert theirs.encode(WITH_SPECIALS).ids == encode_reference(WITH_SPECIALS.encode(), vocabulary)
        assert theirs.decode(theirs.encode(TEXT).ids) == TEXT
        assert read_huggingface(tmp_path / "tokenizer.json") == vocabulary


def test_a_user_defined_pattern_comes_with_a_warning(
    tmp_path: Path,
) -> None:
    tokens = dict(enumerate([*BYTES, b"a\xc2"]))
    cuts = Vocabulary.from_parts(tokens, [(b"a", b"\xc2")], pattern=r"\w+|\W+")
    write_huggingface(cuts, tmp_path / "tokenizer.json")
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert theirs.encode("a²").ids == [256, 0xB2], "its engine treats ² as a word character"
    assert encode_reference("a²".encode(), cuts) == [ord("a"), 0xC2, 0xB2]
    assert "may split some texts differently" in (warn_of_pattern(cuts) or "")
    assert [warn_of_pattern(trained(name)) for name in PATTERNS] == [None, None]


@PATTERNS_TO_TRY
def test_files_of_the_tokenizers_library_are_read_unchanged(tmp_path: Path, pattern: str) -> None:
    write_huggingface(trained(pattern), tmp_path / "ours.json")
    tokenizers.Tokenizer.from_file(str(tmp_path / "ours.json")).save(str(tmp_path / "theirs.json"))
    assert read_huggingface(tmp_path / "theirs.json") == trained(pattern)


def test_files_of_the_transformers_library_are_read_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It adds a template to every file, which here contains only the text."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    write_huggingface(trained("gpt4"), tmp_path / "ours.json")
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "ours.json"))
    theirs.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "tokenizer.json").read_text())["post_processor"] is not None
    assert read_huggingface(tmp_path / "tokenizer.json") == trained("gpt4")


def test_a_sequence_of_processors_that_add_nothing_is_accepted(tmp_path: Path) -> None:
    write_huggingface(trained("gpt2"), tmp_path / "ours.json")
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "ours.json"))
    theirs.post_processor = tokenizers.processors.Sequence(
        [
            tokenizers.processors.ByteLevel(trim_offsets=False),
            tokenizers.processors.TemplateProcessing(single="$A", pair="$A $B", special_tokens=[]),
        ]
    )
    theirs.save(str(tmp_path / "tokenizer.json"))
    assert read_huggingface(tmp_path / "tokenizer.json") == trained("gpt2")


def test_a_tokenizer_trained_by_the_tokenizers_library_yields_the_same_ids(tmp_path: Path) -> None:
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE())
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.decoder = tokenizers.decoders.ByteLevel()
    theirs.train_from_iterator(
        [TEXT],
        tokenizers.trainers.BpeTrainer(
            vocab_size=400,
            special_tokens=["<|end|>"],
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    theirs.add_special_tokens(["<|late|>"])  # an id the library counts out by itself
    theirs.save(str(tmp_path / "tokenizer.json"))
    ours = read_huggingface(tmp_path / "tokenizer.json")
    text = TEXT + "<|end|>a<|late|>b"
    assert encode_reference(text.encode(), ours) == theirs.encode(text).ids


def test_added_tokens_outside_the_vocabulary_get_the_ids_of_the_library(
    tmp_path: Path,
) -> None:
    vocabulary = trained(specials=["<a>", "<b>"])
    write_huggingface(vocabulary, tmp_path / "tokenizer.json")
    contents = json.loads((tmp_path / "tokenizer.json").read_text())
    for special in vocabulary.special_tokens:
        del contents["model"]["vocab"][special]
    (tmp_path / "tokenizer.json").write_text(json.dumps(contents))
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    ours = read_huggingface(tmp_path / "tokenizer.json")
    assert ours.special_tokens == {special: theirs.token_to_id(special) for special in ("<a>", "<b>")}


def all_pairs(vocabulary: Vocabulary) -> list[list[str]]:
    """Return every pair of tokens that forms a token, as in files converted from ranks."""
    tokens = vocabulary.ids_of_ordinary_tokens
    pairs = []
    for left, right in vocabulary.merges:
        token = left + right
        for cut in range(1, len(token)):
            if token[:cut] in tokens and token[cut:] in tokens:
                pairs.append([spell(token[:cut]), spell(token[cut:])])
    return pairs


def test_a_file_that_lists_every_pair_of_each_token_is_read_as_its_merges(tmp_path: Path) -> None:
    text = "aaaaaaaa aaaaa aaa banana anna bananas ananas nanas " * 3
    vocabulary = Vocabulary.from_parts(*train_bpe_reference(text.encode(), 285)[:2])
    write_huggingface(vocabulary, tmp_path / "tokenizer.json")
    contents = json.loads((tmp_path / "tokenizer.json").read_text())
    contents["model"]["merges"] = all_pairs(vocabulary)
    contents["model"]["ignore_merges"] = True
    assert len(contents["model"]["merges"]) > len(vocabulary.merges)
    (tmp_path / "tokenizer.json").write_text(json.dumps(contents))
    assert read_huggingface(tmp_path / "tokenizer.json") == vocabulary
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for word in text.split():
        for cut in range(len(word)):
            assert theirs.encode(word[cut:]).ids == encode_reference(word[cut:].encode(), vocabulary)


def test_the_published_spellings_of_named_patterns_are_recognised(tmp_path: Path) -> None:
    published = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    write_huggingface(trained("gpt4"), tmp_path / "tokenizer.json")
    contents = json.loads((tmp_path / "tokenizer.json").read_text())
    contents["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = published
    (tmp_path / "tokenizer.json").write_text(json.dumps(contents))
    assert read_huggingface(tmp_path / "tokenizer.json") == trained("gpt4")


def test_a_regular_expression_equal_to_a_name_is_not_that_name(tmp_path: Path) -> None:
    write_huggingface(trained("gpt4"), tmp_path / "tokenizer.json")
    contents = json.loads((tmp_path / "tokenizer.json").read_text())
    contents["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "gpt2"
    (tmp_path / "tokenizer.json").write_text(json.dumps(contents))
    assert read_huggingface(tmp_path / "tokenizer.json").pattern == "(?:gpt2)"


# tiktoken


def tiktoken_of(path: Path, vocabulary: Vocabulary) -> tiktoken.Encoding:
    return tiktoken.Encoding(
        "ours",
        pat_str=PATTERNS.get(vocabulary.pattern, vocabulary.pattern),
        mergeable_ranks=load_tiktoken_bpe(str(path)),
        special_tokens=dict(vocabulary.special_tokens),
    )


@PATTERNS_TO_TRY
def test_tiktoken_reads_our_ranks_as_we_do(
    tmp_path: Path, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")
    for vocabulary in [trained(pattern, APART), trained(pattern, [])]:
        write_tiktoken(vocabulary, tmp_path / "ours.tiktoken")
        theirs = tiktoken_of(tmp_path / "ours.tiktoken", vocabulary)
        ids = theirs.encode(WITH_SPECIALS, allowed_special="all")
        assert ids == encode_reference(WITH_SPECIALS.encode(), vocabulary)
        again = read_tiktoken(
            tmp_path / "ours.tiktoken", special_tokens=vocabulary.special_tokens, pattern=pattern
        )
        assert again == vocabulary
        by_name = read_tiktoken(
            tmp_path / "ours.tiktoken", special_tokens=list(vocabulary.special_tokens), pattern=pattern
        )
        assert by_name == vocabulary


def test_bytes_and_special_tokens_may_have_any_ids_in_a_ranks_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")
    plain = trained(specials=APART)
    new_id = {id: 900 - id if id < 256 else id * 2 - 512 for id in plain.tokens}
    vocabulary = Vocabulary(
        tokens={new_id[id]: token for id, token in plain.tokens.items()},
        merges=plain.merges,
        special_tokens={special: new_id[id] for special, id in plain.special_tokens.items()},
    )
    write_tiktoken(vocabulary, tmp_path / "ours.tiktoken")
    theirs = tiktoken_of(tmp_path / "ours.tiktoken", vocabulary)
    ids = theirs.encode(WITH_SPECIALS, allowed_special="all")
    assert ids == encode_reference(WITH_SPECIALS.encode(), vocabulary)
    assert read_tiktoken(tmp_path / "ours.tiktoken", special_tokens=vocabulary.special_tokens) == vocabulary


def test_ids_out_of_the_order_of_merges_cannot_be_ranks(tmp_path: Path) -> None:
    with rejects(TokenizerError) as caught:
        write_tiktoken(renumbered(trained()), tmp_path / "ours.tiktoken")
    assert "merge 1 produces" in str(caught.value)


def test_a_token_that_merges_do_not_reach_cannot_be_a_rank(tmp_path: Path) -> None:
    tokens = dict(enumerate([*BYTES, b"ab", b"bc", b"abc"]))
    vocabulary = Vocabulary.from_parts(tokens, [(b"a", b"b"), (b"b", b"c"), (b"a", b"bc")])
    with rejects(TokenizerError, found=b"abc"):
        write_tiktoken(vocabulary, tmp_path / "ours.tiktoken")
    orphan = Vocabulary.from_parts(dict(enumerate([*BYTES, b"<|end|>"])), [])
    with rejects(TokenizerError, found=b"<|end|>"):
        write_tiktoken(orphan, tmp_path / "ours.tiktoken")


# Detecting the format


def test_the_format_of_a_path_is_detected(tmp_path: Path) -> None:
    vocabulary = trained(specials=["<|end|>"])
    write_bytewright(vocabulary, tmp_path / "ours")
    write_gpt2(vocabulary, tmp_path / "gpt2" / "vocab.json", tmp_path / "gpt2" / "merges.txt")
    write_huggingface(vocabulary, tmp_path / "hf" / "tokenizer.json")
    write_tiktoken(vocabulary, tmp_path / "ours.tiktoken")
    assert read_vocabulary(tmp_path / "ours") == vocabulary
    assert read_vocabulary(tmp_path / "gpt2", ["<|end|>"]) == vocabulary
    assert read_vocabulary(tmp_path / "hf") == vocabulary
    assert read_vocabulary(tmp_path / "hf" / "tokenizer.json") == vocabulary
    assert read_vocabulary(tmp_path / "ours.tiktoken", ["<|end|>"]) == vocabulary
    with rejects(UsageError, path=tmp_path / "ours", key="special_tokens"):
        read_vocabulary(tmp_path / "ours", ["<|end|>"])
    assert read_vocabulary(tmp_path / "ours.tiktoken", pattern="gpt4").pattern == "gpt4"
    for path in ("ours", "gpt2", "hf/tokenizer.json"):
        with rejects(UsageError, path=tmp_path / path, key="pattern"):
            read_vocabulary(tmp_path / path, pattern="gpt4")


@pytest.mark.parametrize(("lost", "kept"), [("merges.txt", "vocab.json"), ("vocab.json", "merges.txt")])
def test_a_missing_one_of_gpt2s_two_files_is_named(tmp_path: Path, lost: str, kept: str) -> None:
    write_gpt2(trained(), tmp_path / "vocab.json", tmp_path / "merges.txt")
    (tmp_path / lost).unlink()
    with rejects(FormatError, path=tmp_path, expected=lost, found=kept):
        read_vocabulary(tmp_path, ["<|end|>"])


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty.json").mkdir()
    for folder in (tmp_path / "empty.json", tmp_path / "empty"):
        folder.mkdir(exist_ok=True)
        with rejects(FormatError, path=folder):
            read_vocabulary(folder)


def test_a_folder_or_file_without_a_tokenizer_is_an_error_that_names_one(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    with pytest.raises(FormatError, match="is not a tokenizer: it has no"):
        read_vocabulary(tmp_path / "run")
    write_bytewright(trained(), tmp_path / "run" / "tokenizer")
    with pytest.raises(FormatError, match=re.escape(f"name {tmp_path / 'run' / 'tokenizer'}")):
        read_vocabulary(tmp_path / "run")
    for text in ("A gloomy kitten", "Once upon a time"):  # "Once" is base64
        (tmp_path / "text.txt").write_text(text)
        with pytest.raises(FormatError, match=r"is not a tokenizer.*and the text after it"):
            read_vocabulary(tmp_path / "text.txt")


# The real GPT-2


def test_gpt2_itself_survives_every_format(shared_data: Path, tmp_path: Path) -> None:
    gpt2 = read_gpt2(shared_data / "gpt2_vocab.json", shared_data / "gpt2_merges.txt", ["<|endoftext|>"])
    assert gpt2.size == 50257
    assert gpt2.special_tokens == {"<|endoftext|>": 50256}
    write_bytewright(gpt2, tmp_path / "ours")
    write_gpt2(gpt2, tmp_path / "vocab.json", tmp_path / "merges.txt")
    write_huggingface(gpt2, tmp_path / "tokenizer.json")
    write_tiktoken(gpt2, tmp_path / "gpt2.tiktoken")
    assert read_bytewright(tmp_path / "ours") == gpt2
    assert read_gpt2(tmp_path / "vocab.json", tmp_path / "merges.txt", ["<|endoftext|>"]) == gpt2
    assert read_huggingface(tmp_path / "tokenizer.json") == gpt2
    assert read_tiktoken(tmp_path / "gpt2.tiktoken", special_tokens=["<|endoftext|>"]) == gpt2


def test_gpt2_yields_the_same_ids_in_all_libraries(
    shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")
    gpt2 = read_gpt2(shared_data / "gpt2_vocab.json", shared_data / "gpt2_merges.txt", ["<|endoftext|>"])
    write_huggingface(gpt2, tmp_path / "tokenizer.json")
    write_tiktoken(gpt2, tmp_path / "gpt2.tiktoken")
    text: Any = (shared_data / "multilingual.txt").read_text()[:100_000]
    text += (shared_data / "tinystories_valid.txt").read_text()[:100_000]
    ours = encode_reference(text.encode(), gpt2)
    assert tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(text).ids == ours
    assert tiktoken_of(tmp_path / "gpt2.tiktoken", gpt2).encode(text, allowed_special="all") == ours

"""No Python value causes a panic: the result is an error of Bytewright or an ordinary Python exception.

A panic in Rust becomes a `pyo3_runtime.PanicException`. It is not a subclass of `Exception`, so ordinary
handlers do not catch it. Each call may succeed or raise one of the listed errors. Many calls are repeated
from many threads with one tokenizer, whose ids must stay correct.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hostile_values import (
    BYTES,
    IDS,
    MERGES,
    NOT_IDS,
    NOT_TEXTS,
    NUMBERS,
    PATHS,
    PATTERNS,
    SPECIALS,
    TEXTS,
    TOKENS,
    VOCABULARIES,
    OddError,
)

from bytewright import _native
from bytewright.errors import BytewrightError
from bytewright.tokenizer.tokenizer import Tokenizer
from bytewright.tokenizer.train import (
    count_texts,
    count_words,
    extend_tokenizer,
    train_bpe,
    train_tokenizer,
)
from bytewright.tokenizer.vocabulary import Vocabulary

PLAIN = (TypeError, ValueError, OverflowError)
"""The exceptions of Python for an argument of the wrong type or size."""

Call = Callable[[], object]


def outcome_of(call: Call) -> str:
    """Call a function and return its outcome; unexpected exceptions propagate."""
    try:
        call()
    except (BytewrightError, *PLAIN, OddError) as refusal:
        return f"refused: {type(refusal).__name__}"
    except BaseException as error:
        if type(error).__name__ == "PanicException":
            pytest.fail(f"a panic was reached by {call}: {error}")
        raise
    return "done"


def exhaust(generate: Callable[[Any], Iterator[int]], source: object) -> None:
    """Take some ids from a lazy generator."""
    for _ in itertools.islice(generate(source), 1000):
        pass


def calls_with_text(tokenizer: Tokenizer) -> Iterator[Call]:
    for text in TEXTS + NOT_TEXTS:
        yield partial(tokenizer.encode, text)
        yield partial(tokenizer.encode, text, allowed_special=())
        yield partial(tokenizer.encode, text, disallowed_special="all")
        yield partial(tokenizer.encode_array, text, num_threads=2)
        yield partial(tokenizer.encode_batch, [text, "a", text], num_threads=2)
        yield partial(exhaust, tokenizer.encode_iterable, [text, text])
        yield partial(count_texts, [text])
        yield partial(_native.pretokenize, text, "gpt2")
        yield partial(_native.pretokenize, text, "gpt4")
        yield partial(_native.pretokenize, text, r"\S+")
    for texts in NOT_TEXTS:
        yield partial(tokenizer.encode_batch, texts)
        yield partial(exhaust, tokenizer.encode_iterable, texts)


def calls_with_ids(tokenizer: Tokenizer) -> Iterator[Call]:
    for ids in IDS + NOT_IDS:
        yield partial(tokenizer.decode, ids)
        yield partial(tokenizer.decode_bytes, ids)
        yield partial(tokenizer.stream_decoder().feed, ids)
    for id in NUMBERS:
        yield partial(tokenizer.stream_decoder().feed, id)


def calls_with_numbers(tokenizer: Tokenizer) -> Iterator[Call]:
    counts = count_words({b"aab": 3})
    for number in NUMBERS:
        yield partial(tokenizer.encode_array, "a b" * 200_000, num_threads=number)
        yield partial(tokenizer.encode_batch, ["a b" * 100_000] * 3, num_threads=number)
        yield partial(train_tokenizer, counts, number)
        yield partial(train_tokenizer, counts, 300, min_count=number)
        yield partial(extend_tokenizer, tokenizer, counts, number)
        yield partial(count_words, {b"ab": number})
        yield partial(_native.learn_merges, counts.copy(), number, 1, [], None)
        yield partial(_native.learn_merges, counts.copy(), 5, number, [], None)
        yield partial(_native.learn_merges, counts.copy(), 5, 1, [(97, number)], None)


def calls_with_special_tokens(tokenizer: Tokenizer) -> Iterator[Call]:
    counts = count_words({b"aab": 3})
    for specials in SPECIALS:
        yield partial(tokenizer.encode, "some <e> text", allowed_special=specials)
        yield partial(tokenizer.encode, "some <e> text", disallowed_special=specials)
        yield partial(Tokenizer, BYTES, [], specials)
        yield partial(count_texts, ["some <e> text"], specials)
        yield partial(train_tokenizer, counts, 5000, specials)
        yield partial(_native.WordCounter, "gpt2", specials)


def calls_with_patterns(tokenizer: Tokenizer) -> Iterator[Call]:
    for pattern in PATTERNS:
        yield partial(Tokenizer, BYTES, [], pattern=pattern)
        yield partial(_native.pretokenize, "a" * 60, pattern)
        yield partial(_native.pretokenize, b"a\xff" * 60, pattern)
        yield partial(count_texts, ["a" * 60], pattern=pattern)


def calls_with_vocabularies(tokenizer: Tokenizer) -> Iterator[Call]:
    for tokens in VOCABULARIES:
        yield partial(Tokenizer, tokens, [])
        yield partial(Vocabulary.from_parts, tokens, [], {"x": 256})
    for token in TOKENS:
        yield partial(Tokenizer, BYTES | {256: token}, [])
        yield partial(_native.Encoder, [(0, token)], [], [], "gpt2")
        yield partial(count_words, [(token, 1)])
    for merge in MERGES:
        yield partial(Tokenizer, BYTES, [merge])
        yield partial(Tokenizer, BYTES, merge)
        yield partial(_native.Encoder, list(BYTES.items()), [merge], [], "gpt2")
    yield partial(_native.Encoder, [], [], [], "gpt2")
    yield partial(_native.Encoder, [(7, b"x")] * 3, [(b"a", b"b")] * 3, [("x", 7)] * 3, "gpt2")
    yield partial(_native.learn_merges, count_words({b"ab": 1}), 5, 1, [(97, 300), (2**32 - 1, 0)], None)
    yield partial(_native.WordCounter, "gpt2", range(2**60))  # type: ignore[arg-type]


CALLS: dict[str, Callable[[Tokenizer], Iterator[Call]]] = {
    "text": calls_with_text,
    "ids": calls_with_ids,
    "numbers": calls_with_numbers,
    "special tokens": calls_with_special_tokens,
    "patterns": calls_with_patterns,
    "vocabularies": calls_with_vocabularies,
}


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer(BYTES | {256: b"aa", 257: b"ab"}, [(b"a", b"a"), (b"a", b"b")], ["<e>"])


def assert_sound(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("aab<e>é") == [256, 98, 258, 0xC3, 0xA9]
    assert tokenizer.decode([256, 98, 258, 0xC3, 0xA9]) == "aab<e>é"


@pytest.mark.parametrize("kind", CALLS)
def test_hostile_arguments_raise_ordinary_errors(tokenizer: Tokenizer, kind: str) -> None:
    outcomes = [outcome_of(call) for call in CALLS[kind](tokenizer)]
    assert any(outcome != "done" for outcome in outcomes), "some of them are mistakes"
    assert_sound(tokenizer)


def test_hostile_arguments_from_many_threads_at_once_change_nothing(tokenizer: Tokenizer) -> None:
    kinds = list(CALLS)
    expected = {kind: [outcome_of(call) for call in CALLS[kind](tokenizer)] for kind in kinds}
    failures: list[str] = []

    def attack(first: int) -> None:
        for kind in kinds[first:] + kinds[:first]:  # not all do the same at the same time
            try:
                if [outcome_of(call) for call in CALLS[kind](tokenizer)] != expected[kind]:
                    failures.append(f"{kind}: a thread saw another outcome")
                assert_sound(tokenizer)
            except BaseException as error:
                failures.append(f"{kind}: {error!r}")

    threads = [threading.Thread(target=attack, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("number", range(len(TEXTS)))
def test_every_kind_of_text_is_accepted(tokenizer: Tokenizer, number: int) -> None:
    text = TEXTS[number]
    expected = text.encode() if isinstance(text, str) else text
    assert tokenizer.decode_bytes(tokenizer.encode(text)) == expected
    assert tokenizer.decode_bytes(tokenizer.encode_array(text, num_threads=3)) == expected
    assert tokenizer.decode_bytes(tokenizer.encode_iterable([text])) == expected


@pytest.mark.parametrize("number", range(len(IDS)))
def test_every_kind_of_ids_is_accepted(tokenizer: Tokenizer, number: int) -> None:
    expected = b"".join(tokenizer.vocab[int(id)] for id in IDS[number])
    assert tokenizer.decode_bytes(IDS[number]) == expected


@pytest.mark.parametrize("number", range(len(PATHS)))
def test_hostile_paths_raise_ordinary_errors(tokenizer: Tokenizer, tmp_path: Path, number: int) -> None:
    source = PATHS[number]
    for call in (
        partial(train_bpe, source, 300, []),
        partial(tokenizer.encode_file, source, tmp_path / "ids.npy"),
        partial(_native.FileEncoder, tokenizer._native, source),
        partial(_native.WordCounter("gpt2", []).add_files, source, 1, None),
        partial(_native.WordCounter("gpt2", []).add_files, [source], 1, None),
    ):
        assert outcome_of(call) != "done"
    assert list(tmp_path.iterdir()) == []


def test_hostile_numbers_with_files_raise_ordinary_errors(tokenizer: Tokenizer, tmp_path: Path) -> None:
    source, target = tmp_path / "text.txt", tmp_path / "ids.npy"
    source.write_text("low lower lowest")
    for number in NUMBERS:
        outcome_of(partial(train_tokenizer, source, 300, num_threads=number))
        outcome_of(partial(tokenizer.encode_file, source, target, num_threads=number))
        file = _native.FileEncoder(tokenizer._native, str(source))
        for position in (0, 7, number):
            outcome_of(partial(file.next_cut, position, number))
            outcome_of(partial(file.encode, position, number))
    assert_sound(tokenizer)


def test_a_counter_used_by_many_threads_raises_or_counts_correctly() -> None:
    counter = count_texts([])
    text = "low lower lowest " * 20_000
    done: list[int] = []
    failures: list[BaseException] = []

    def count() -> None:
        for _ in range(5):
            try:
                counter.add_text(text)
                done.append(1)
            except RuntimeError:  # "Already borrowed": another thread is counting with it
                pass
            except BaseException as error:
                failures.append(error)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sum(counter.counts().values()) == len(done) * len(_native.pretokenize(text, "gpt2"))


def test_a_progress_callback_that_uses_the_counter_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("low lower")
    counter = count_texts([])
    with pytest.raises(RuntimeError, match="borrowed"):
        counter.add_files([str(tmp_path / "text.txt")], 1, lambda done: counter.counts())
    assert counter.counts() == {}


def test_an_error_of_the_callers_iterator_propagates_from_decode(tokenizer: Tokenizer) -> None:
    def ids() -> Iterator[int]:
        yield 97
        raise OddError("no more")

    with pytest.raises(OddError, match="no more"):
        tokenizer.decode(ids())
    with pytest.raises(OddError, match="no more"):
        list(tokenizer.encode_iterable(str(id) for id in ids()))

"""Text of a choice: whole characters, stop strings across tokens, offsets of tokens."""

from __future__ import annotations

import random

from bytewright.serve.jobs import TokenScore
from bytewright.serve.text import ChoiceText
from bytewright.tokenizer import Tokenizer

BYTES = Tokenizer({id: bytes([id]) for id in range(256)} | {256: b" the", 257: b"end"}, [])
SCORE = TokenScore(-1.0, ((104, -0.5),))


def write(text: str, stop: tuple[str, ...] = (), *, piece: int = 1) -> tuple[str, bool]:
    choice = ChoiceText(BYTES, stop)
    ids = list(text.encode())
    parts = [choice.feed(ids[start : start + piece]) for start in range(0, len(ids), piece)]
    return "".join(parts) + choice.finish(), choice.is_stopped


def test_pieces_are_whole_characters() -> None:
    choice = ChoiceText(BYTES)
    assert [choice.feed([byte]) for byte in "aé🙂".encode()] == ["a", "", "é", "", "", "", "🙂"]
    assert choice.feed([0xE2]) + choice.finish() == "\ufffd"


def test_a_text_ends_before_the_first_stop_string() -> None:
    """Compared with searching the whole text, for random texts, stop strings and pieces."""
    generator = random.Random(0)
    for _ in range(500):
        text = "".join(generator.choices("abé", k=generator.randint(0, 12)))
        stops = tuple("".join(generator.choices("abé", k=generator.randint(1, 3))) for _ in range(2))
        found = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
        places = [start for end, start in found if end == min(found)[0]]
        expected = (text[: min(places)], True) if places else (text, False)
        assert write(text, stops, piece=generator.randint(1, 4)) == expected, (text, stops)


def test_tokens_after_a_stop_string_are_not_counted() -> None:
    choice = ChoiceText(BYTES, ["en"])
    assert choice.feed([256, 257, 104, 105]) == " the"
    assert (choice.num_tokens, choice.is_stopped) == (2, True)


def test_logprobs_have_the_offsets_of_their_tokens() -> None:
    choice = ChoiceText(BYTES, ["zz"], has_logprobs=True)
    text = choice.feed_prompt("é!", list("é!".encode()), [SCORE, SCORE])
    text += choice.feed([256, 122, 257], [SCORE] * 3)
    first = choice.take_logprobs(is_last=False)
    text += choice.feed([122, 122, 104], [SCORE] * 3)
    last = choice.take_logprobs(is_last=True)
    assert first is not None
    assert last is not None
    assert text == "é! thezend"
    assert first["tokens"] + last["tokens"] == ["bytes:\\xc3", "bytes:\\xa9", "!", " the", "z", "end"]
    assert first["text_offset"] + last["text_offset"] == [0, 0, 1, 2, 6, 7]
    assert first["token_logprobs"][0] is None
    assert first["top_logprobs"][1] == {"h": -0.5, "bytes:\\xa9": -1.0}


def test_a_token_after_an_incomplete_character_begins_after_its_replacement() -> None:
    choice = ChoiceText(BYTES, has_logprobs=True)
    assert choice.feed([0xE2, 118, 0xC3, 0xE2, 120], [SCORE] * 5) == "\ufffdv\ufffd\ufffdx"
    logprobs = choice.take_logprobs(is_last=True)
    assert logprobs is not None
    assert logprobs["text_offset"] == [0, 1, 2, 3, 4]


def test_without_logprobs_there_are_none() -> None:
    choice = ChoiceText(BYTES)
    choice.feed([104])
    assert choice.take_logprobs(is_last=True) is None

"""Whole stories are measured as the definition says, whatever stands beside them in a batch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from bytewright.data.sampler import Tokens
from bytewright.errors import UsageError
from bytewright.model import ModelConfig, TransformerLM
from bytewright.train.evaluate_stories import StoryEvaluation, evaluate_stories, split_stories

END = 0
VOCAB = 11
TOKEN_BYTES = np.array([0, *range(1, VOCAB)], dtype=np.int64)


def make_model(context_length: int = 16) -> TransformerLM:
    torch.manual_seed(3)
    return TransformerLM(
        ModelConfig(vocab_size=VOCAB, context_length=context_length, d_model=8, num_layers=2, num_heads=2)
    )


def make_stories(lengths: list[int]) -> list[Tokens]:
    chance = np.random.default_rng(1)
    return [chance.integers(1, VOCAB, length).astype(np.uint16) for length in lengths]


def bits_by_definition(model: TransformerLM, story: Tokens) -> float:
    """One story, one prediction after the other, with nothing beside it."""
    ids = [END, *story.tolist(), END]
    bits = 0.0
    for place in range(1, len(ids)):
        logits = model(torch.tensor([ids[:place]]))[0, -1].double()
        bits -= torch.log_softmax(logits, dim=-1)[ids[place]].item() / math.log(2)
    return bits


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_every_story_takes_the_bits_of_its_definition(batch_size: int) -> None:
    model, stories = make_model(), make_stories([5, 1, 15, 7, 3, 15, 2])
    told: list[tuple[int, int]] = []
    found = evaluate_stories(
        model,
        stories,
        END,
        TOKEN_BYTES,
        batch_size=batch_size,
        progress=lambda done, total: told.append((done, total)),
    )
    expected = [bits_by_definition(model, story) for story in stories]
    assert found.bits == pytest.approx(expected, rel=1e-5)
    assert found.num_tokens.tolist() == [len(story) + 1 for story in stories]
    assert found.num_bytes.tolist() == [int(story.sum()) for story in stories]
    assert found.bits_per_byte == pytest.approx(sum(expected) / sum(int(story.sum()) for story in stories))
    assert found.loss == pytest.approx(sum(expected) * math.log(2) / sum(len(story) + 1 for story in stories))
    assert told[-1] == (7, 7)


def test_a_model_that_knows_nothing_needs_log_of_the_vocabulary_for_every_prediction() -> None:
    model, stories = make_model(), make_stories([4, 9])
    with torch.no_grad():
        model.output_weight.zero_()
    found = evaluate_stories(model, stories, END, TOKEN_BYTES)
    assert found.bits == pytest.approx([5 * math.log2(VOCAB), 10 * math.log2(VOCAB)])


def test_stories_are_what_end_tokens_end() -> None:
    tokens = np.array([3, 4, END, 5, END, END, 6, 7], dtype=np.uint16)
    assert [story.tolist() for story in split_stories(tokens, END)] == [[3, 4], [5], []]
    assert [story.tolist() for story in split_stories(tokens, END, max_stories=1)] == [[3, 4]]
    assert split_stories(tokens[:2], END) == []


def test_the_first_story_begins_with_the_newline_that_the_others_begin_with() -> None:
    def split(*tokens: int) -> list[list[int]]:
        ids = np.array(tokens, dtype=np.uint16)
        return [story.tolist() for story in split_stories(ids, END, newline=1)]

    assert split(5, 1, END, 1, 6, 1, END, 1) == [[1, 5, 1], [1, 6, 1]]
    assert split(5, 1, END, 1) == [[1, 5, 1]], "what follows the last end token begins the next story"
    assert split(1, 5, END, 1, 6, END) == [[1, 5], [1, 6]], "it has one already"
    assert split(5, END, 6, END) == [[5], [6]], "the others have none"
    assert split(END, 1, 6, END) == [[1], [1, 6]]
    assert split(5, END) == [[5]]


def test_a_story_that_does_not_fit_in_the_context_is_refused_by_its_number() -> None:
    model = make_model(context_length=8)
    evaluate_stories(model, make_stories([7]), END, TOKEN_BYTES)
    with pytest.raises(UsageError, match="story 1 has 8 tokens, but a context of 8 holds 7"):
        evaluate_stories(model, make_stories([2, 8]), END, TOKEN_BYTES)
    with pytest.raises(UsageError, match="no whole stories"):
        evaluate_stories(model, [], END, TOKEN_BYTES)


def test_the_gap_to_a_floor_is_measured_story_by_story() -> None:
    chance = np.random.default_rng(0)
    num_bytes = chance.integers(300, 900, 4000)
    floor = num_bytes * 0.4 + chance.normal(0, 30, 4000)  # some stories are harder than others
    above = num_bytes * 0.05 + chance.normal(0, 3, 4000)
    evaluation = StoryEvaluation(floor + above, num_bytes // 4, num_bytes)
    gap, error = evaluation.gap_to(floor)
    assert gap == pytest.approx(evaluation.bits_per_byte - floor.sum() / num_bytes.sum())
    assert abs(gap - 0.05) < 3 * error
    assert error == pytest.approx(3 / math.sqrt(4000) / num_bytes.mean(), rel=0.1), "hardness cancels"
    assert evaluation.gap_to(evaluation.bits) == (0.0, 0.0)

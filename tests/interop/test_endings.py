"""Questions about stories have one answer, which the checker of the storybook decides; scores are exact."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

from bytewright.corpus.storybook import Storybook
from bytewright.corpus.storybook.check import split_sentences
from bytewright.errors import FormatError, UsageError
from bytewright.generate import Generator, SamplingConfig, generate
from bytewright.interop.endings import (
    TASKS,
    EndingScores,
    Question,
    make_question,
    make_questions,
    read_questions,
    read_tasks,
    score_questions,
    write_tasks,
)
from bytewright.interop.scoring import encode_pair, generate_until, score_continuations
from bytewright.model import ModelConfig, TransformerLM
from bytewright.tokenizer import Tokenizer
from bytewright.train.run_model import write_imported_model
from conftest import RunCommand
from rejection import rejects

BOOK = Storybook.load()


@pytest.fixture(scope="module")
def questions() -> dict[str, list[Question]]:
    return make_questions(15, seed=7)


@pytest.fixture(scope="module")
def model(tokenizer: Path) -> TransformerLM:
    torch.manual_seed(5)
    size = Tokenizer.load(tokenizer).vocab_size
    config = ModelConfig(vocab_size=size + 3, context_length=176, d_model=16, num_layers=2, num_heads=2)
    return TransformerLM(config)


def all_of(questions: dict[str, list[Question]]) -> list[Question]:
    return [question for asked in questions.values() for question in asked]


def sentences_of(text: str) -> list[str]:
    return [text[start:end] for start, end in split_sentences(text)]


# Questions


def test_only_the_answer_is_consistent(questions: dict[str, list[Question]]) -> None:
    for question in all_of(questions):
        checks = [BOOK.checker.check(question.context + ending) for ending in question.endings]
        assert [check.is_consistent for check in checks].index(True) == question.answer
        assert sum(check.is_consistent for check in checks) == 1
        for number, check in enumerate(checks):
            assert check.has_shape
            assert check.contradictions == (() if number == question.answer else (question.fact,))


def test_the_distance_is_the_shortest_text_that_rules_out_all_wrong_endings(
    questions: dict[str, list[Question]],
) -> None:
    for question in all_of(questions):
        before = sentences_of(question.context)
        wrong = [each for number, each in enumerate(question.endings) if number != question.answer]

        def rules_out_all(distance: int, before: list[str] = before, wrong: list[str] = wrong) -> bool:
            last = before[len(before) - distance :]
            return all(BOOK.checker.contradictions([*last, *sentences_of(ending)]) for ending in wrong)

        assert rules_out_all(question.distance)
        assert not rules_out_all(question.distance - 1)


def test_each_task_has_questions_of_its_distances(questions: dict[str, list[Question]]) -> None:
    assert {task: len(asked) for task, asked in questions.items()} == dict.fromkeys(TASKS, 15)
    for task, asked in questions.items():
        assert {question.distance for question in asked} <= set(TASKS[task])
    assert {question.answer for question in all_of(questions)} == {0, 1, 2, 3}
    assert len({question.fact for question in all_of(questions)}) > 2


def test_stories_are_validation_stories_and_depend_on_the_seed(questions: dict[str, list[Question]]) -> None:
    assert make_questions(3, seed=7)["storybook_far"] == questions["storybook_far"][:3]
    assert make_questions(3, seed=8)["storybook_far"] != questions["storybook_far"][:3]
    for question in all_of(questions):
        plot = BOOK.parse(question.context + question.endings[question.answer]).plot
        assert plot is not None
        numbers = [variable.values.index(plot[variable.name]) for variable in BOOK.grammar.variables]
        assert BOOK.generator.split_of_plot(numbers) == "validation"


def test_a_question_does_not_depend_on_others() -> None:
    story = next(BOOK.stories(3, "validation"))
    assert make_question(story, random.Random(1), BOOK) == make_question(story, random.Random(1), BOOK)


def test_at_least_one_question_is_required() -> None:
    with rejects(UsageError, key="num_questions", found=0):
        make_questions(0)


# Files


def test_tasks_are_read_as_written(questions: dict[str, list[Question]], tmp_path: Path) -> None:
    assert write_tasks(tmp_path / "tasks", 15, seed=7) == questions
    assert read_tasks(tmp_path / "tasks") == all_of(questions)
    names = {path.name for path in (tmp_path / "tasks").iterdir()}
    assert names == {"manifest.json", *(f"{task}.{kind}" for task in TASKS for kind in ("yaml", "jsonl"))}
    yaml = (tmp_path / "tasks" / "storybook_far.yaml").read_text()
    assert json.dumps(str(tmp_path / "tasks" / "storybook_far.jsonl")) in yaml


@pytest.mark.parametrize(
    ("change", "key"), [({"answer": 4}, "answer"), ({"endings": "a"}, "endings"), ({"context": 1}, "context")]
)
def test_a_damaged_file_names_the_line_and_the_field(
    change: dict[str, object], key: str, questions: dict[str, list[Question]], tmp_path: Path
) -> None:
    fields = vars(questions["storybook_near"][0]) | change
    (tmp_path / "a.jsonl").write_text(json.dumps(fields) + "\n")
    with pytest.raises(FormatError) as caught:
        read_questions(tmp_path / "a.jsonl")
    assert caught.value.path == tmp_path / "a.jsonl"
    assert f"line 1.{key}" in str(caught.value)


def test_an_existing_folder_is_rejected_before_questions_are_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("years of work")
    reports: list[int] = []
    with rejects(UsageError, key="replace"):
        write_tasks(tmp_path, 1, progress=lambda done, total: reports.append(done))
    assert reports == []


def test_a_file_without_questions_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("")
    with rejects(FormatError, path=tmp_path / "a.jsonl"):
        read_questions(tmp_path / "a.jsonl")


# Scores


def plain_score(model: TransformerLM, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    """Return ln p of a continuation and whether it is greedy, token by token."""
    total, is_greedy = 0.0, True
    for place, id in enumerate(continuation):
        before = [*context, *continuation[:place]]
        with torch.no_grad():
            logits = model(torch.tensor([before]))[0, -1].double()
        total += (logits[id] - logits.logsumexp(0)).item()
        is_greedy &= logits.argmax().item() == id
    return total, is_greedy


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_scores_are_those_of_plain_predictions(model: TransformerLM, batch_size: int) -> None:
    draw = random.Random(2)
    size = model.config.vocab_size
    pairs = [
        ([draw.randrange(size) for _ in range(draw.randint(1, 30))], [draw.randrange(size) for _ in range(n)])
        for n in (1, 2, 5, 9, 0, 17, 3)
    ]
    pairs[1][1][:] = generate(model, [pairs[1][0]], SamplingConfig(max_new_tokens=2, temperature=0.0))[0].ids
    scores = score_continuations(model, pairs, batch_size=batch_size)
    expected = [plain_score(model, *pair) for pair in pairs]
    assert [score.log_probability for score in scores] == pytest.approx([it[0] for it in expected], abs=1e-4)
    assert [score.is_greedy for score in scores] == [it[1] for it in expected]
    assert scores[1].is_greedy


def test_a_long_context_is_cut_at_its_beginning(model: TransformerLM) -> None:
    length = model.config.context_length
    ids = [(7 * place) % 90 for place in range(length + 40)]
    (score,) = score_continuations(model, [(ids[:-10], ids[-10:])])
    (cut,) = score_continuations(model, [(ids[-length - 1 : -10], ids[-10:])])
    assert score == cut


def test_what_cannot_be_scored_is_rejected(model: TransformerLM) -> None:
    with rejects(UsageError, key="context"):
        score_continuations(model, [([], [1])])
    length = model.config.context_length
    with rejects(UsageError, key="continuation", expected=length, found=length + 1):
        score_continuations(model, [([1], [1] * (length + 1))])


def test_space_at_the_end_of_a_context_belongs_to_the_continuation(tokenizer: Path) -> None:
    ours = Tokenizer.load(tokenizer)
    context, continuation = encode_pair(ours, "Once upon ", "a time")
    assert (ours.decode(context), ours.decode(continuation)) == ("Once upon", " a time")


def test_answers_are_the_likeliest_endings(
    model: TransformerLM, tokenizer: Path, questions: dict[str, list[Question]]
) -> None:
    ours = Tokenizer.load(tokenizer)
    asked = questions["storybook_near"][:1]
    scores = score_questions(model, ours, asked, batch_size=5)
    length = model.config.context_length
    for question, found, is_correct in zip(asked, scores.log_probabilities, scores.is_correct, strict=True):
        expected = []
        for ending in question.endings:
            context, continuation = encode_pair(ours, question.context, ending)
            room = length + 1 - len(continuation)
            expected.append(plain_score(model, context[-room:], continuation)[0])
        assert found == pytest.approx(expected, abs=1e-3)
        assert is_correct == (expected.index(max(expected)) == question.answer)


def test_accuracy_by_distance() -> None:
    asked = [
        Question("c", ("a", "b"), answer, "name", distance) for answer, distance in ((0, 2), (1, 2), (1, 5))
    ]
    scores = EndingScores(asked, [(-1.0, -2.0), (-1.0, -2.0), (-3.0, -2.0)])
    assert scores.is_correct == [True, False, True]
    assert scores.accuracy == pytest.approx(2 / 3)
    assert scores.by_distance() == {2: (2, 0.5), 5: (1, 1.0)}


# Generation up to a stop string


def test_generation_ends_before_the_first_stop_string(model: TransformerLM, tokenizer: Path) -> None:
    ours = Tokenizer.load(tokenizer)
    prompts = [ours.encode("Once upon a time"), ours.encode("The")]
    sampling = SamplingConfig(max_new_tokens=30, temperature=0.0, num_ids=ours.vocab_size)
    whole = [ours.decode(completion.ids) for completion in generate(model, prompts, sampling)]
    generator = Generator(model, 2)
    assert generate_until(generator, ours, prompts, sampling) == whole
    stops = [whole[0][8:11], whole[1][4:6]]
    found = generate_until(generator, ours, prompts, sampling, stops)
    for text, part in zip(whole, found, strict=True):
        assert part == text[: min(text.find(stop) % (len(text) + 1) for stop in stops)]
    assert len(found[0]) <= 8


# Commands


def test_commands_write_and_answer_questions(
    run: RunCommand, model: TransformerLM, tokenizer: Path, tmp_path: Path
) -> None:
    outcome = run("corpus", "storybook-tasks", "--out", tmp_path / "tasks", "--count", "4", "--seed", "7")
    assert outcome.code == 0, outcome.err
    ours = Tokenizer.load(tokenizer)
    write_imported_model(tmp_path / "run", model, ours.vocabulary)
    outcome = run("evaluate", tmp_path / "run", "--endings", tmp_path / "tasks", "--json", "--device", "cpu")
    assert outcome.code == 0, outcome.err
    scores = score_questions(model, ours, read_tasks(tmp_path / "tasks"))
    found = json.loads(outcome.out)
    assert found["num_questions"] == 12
    assert found["accuracy"] == scores.accuracy
    assert {int(key): tuple(it.values()) for key, it in found["by_distance"].items()} == scores.by_distance()
    table = run("evaluate", tmp_path / "run", "--endings", tmp_path / "tasks", "--device", "cpu").out
    assert f"{scores.accuracy:.1%}" in table
    both = run("evaluate", tmp_path / "run", "--endings", tmp_path / "tasks", "--stories", tmp_path / "a.txt")
    assert both.code == 2

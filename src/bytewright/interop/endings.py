"""Questions about stories, with the length of the dependency: which ending is consistent.

A question is a story of the storybook without its last paragraph, and four endings. One is the true ending.
In the others, one fact has another value: a name, a promise, an animal. The checker of the storybook decides
all labels. Exactly one ending gives a consistent story. Each of the others contradicts the story in that one
fact. After a story with the other value it would be consistent, so no ending is wrong by itself.

The *distance* of a question is the length of its dependency. It is the number of sentences before the ending
that the checker must read to reject all wrong endings. A model answers by the log-probability of each ending.
Its accuracy by distance shows how far back it uses the text; guessing scores one quarter.

`write_tasks` writes questions as tasks of lm-evaluation-harness, one task per range of distances.
`score_questions` scores a model without the harness.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bytewright.corpus.storybook import Story, Storybook
from bytewright.corpus.storybook.check import split_sentences
from bytewright.errors import FormatError, UsageError, wrong_value
from bytewright.formatting import Progress
from bytewright.storage import atomic
from bytewright.storage.json_reader import Json, parse_json, read_lines

if TYPE_CHECKING:
    from bytewright.model import TransformerLM
    from bytewright.tokenizer import Tokenizer

NUM_ENDINGS = 4

TASKS: Mapping[str, range] = {
    "storybook_near": range(1, 4),
    "storybook_middle": range(4, 8),
    "storybook_far": range(8, 100),
}
"""The tasks, and the distances of their questions in sentences."""

TAG = "storybook"
"""The name that selects all tasks in the harness."""


@dataclass(frozen=True)
class Question:
    """A story without its end, several endings, and which of them is consistent."""

    context: str
    endings: tuple[str, ...]
    """Each begins with the line end before it."""
    answer: int
    """The index of the consistent ending."""
    fact: str
    """The plot variable in which the wrong endings differ."""
    distance: int
    """How many of the last sentences of the context are needed to rule out all wrong endings."""


def make_question(story: Story, draw: random.Random, book: Storybook) -> Question | None:
    """Return a question about a story, or None if no fact has enough wrong values.

    `draw` selects the fact, its wrong values and the order of the endings.
    """
    context, line_end, ending = story.text.rpartition("\n")
    for variable in draw.sample(book.grammar.variables, len(book.grammar.variables)):
        true = variable.values.index(story.plot[variable.name])
        if not _mentions(ending, forms := [form[true] for form in variable.forms.values()]):
            continue
        wrong: list[str] = []
        for other in draw.sample(range(len(variable.values)), len(variable.values)):
            new_of = dict(zip(forms, (form[other] for form in variable.forms.values()), strict=True))
            changed = _replace_words(ending, new_of)
            is_possible = book.parse(_replace_words(story.text, new_of)).num_derivations > 0
            if changed in (ending, *wrong) or not is_possible:
                continue
            if book.checker.check(context + line_end + changed).contradictions == (variable.name,):
                wrong.append(changed)
            if len(wrong) == NUM_ENDINGS - 1:
                endings = draw.sample([ending, *wrong], NUM_ENDINGS)
                return Question(
                    context=context,
                    endings=tuple(line_end + each for each in endings),
                    answer=endings.index(ending),
                    fact=variable.name,
                    distance=max(_distance(context, each, book) for each in wrong),
                )
    return None


def make_questions(
    num_questions: int, *, seed: int = 1, progress: Progress | None = None
) -> dict[str, list[Question]]:
    """Return `num_questions` questions for each of `TASKS`; equal arguments return equal questions.

    The stories are validation stories, whose plots no training story has.
    """
    if num_questions < 1:
        raise wrong_value("num_questions", "at least 1", num_questions)
    book = Storybook.load()
    draw = random.Random(f"endings {seed}")
    questions: dict[str, list[Question]] = {task: [] for task in TASKS}
    for story in book.stories(seed, "validation"):
        question = make_question(story, draw, book)
        for task, distances in TASKS.items():
            if question and question.distance in distances and len(questions[task]) < num_questions:
                questions[task].append(question)
        done = sum(map(len, questions.values()))
        if progress is not None:
            progress(done, num_questions * len(TASKS))
        if done == num_questions * len(TASKS):
            break
    return questions


def _mentions(text: str, words: Sequence[str]) -> bool:
    return any(re.search(rf"\b{re.escape(word)}\b", text) for word in words)


def _replace_words(text: str, new_of: Mapping[str, str]) -> str:
    """Replace whole words or phrases, all at once.

    >>> _replace_words("to feed the elephant", {"feed": "ride", "elephant": "camel"})
    'to ride the camel'
    """
    words = "|".join(sorted(map(re.escape, new_of), key=len, reverse=True))
    return re.sub(rf"\b(?:{words})\b", lambda found: new_of[found[0]], text)


def _distance(context: str, ending: str, book: Storybook) -> int:
    """Return how many of the last sentences contradict the ending; one fewer would not."""
    before, after = _sentences(context), _sentences(ending)
    return next(
        number
        for number in range(len(before) + 1)
        if book.checker.contradictions([*before[len(before) - number :], *after])
    )


def _sentences(text: str) -> list[str]:
    return [text[start:end] for start, end in split_sentences(text)]


# Scores without the harness


@dataclass(frozen=True)
class EndingScores:
    """The answers of a model, in the order of the questions."""

    questions: Sequence[Question]
    log_probabilities: Sequence[tuple[float, ...]]
    """ln p of each ending, given the context."""

    @property
    def is_correct(self) -> list[bool]:
        """Whether the likeliest ending is the consistent one, per question."""
        return [
            scores.index(max(scores)) == question.answer
            for question, scores in zip(self.questions, self.log_probabilities, strict=True)
        ]

    @property
    def accuracy(self) -> float:
        """The share of correct answers."""
        return sum(self.is_correct) / len(self.questions)

    def by_distance(self) -> dict[int, tuple[int, float]]:
        """Return the number of questions and the share of correct answers for each distance."""
        answers: dict[int, list[bool]] = {}
        for question, is_correct in zip(self.questions, self.is_correct, strict=True):
            answers.setdefault(question.distance, []).append(is_correct)
        return {distance: (len(it), sum(it) / len(it)) for distance, it in sorted(answers.items())}


def score_questions(
    model: TransformerLM,
    tokenizer: Tokenizer,
    questions: Sequence[Question],
    *,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> EndingScores:
    """Return the log-probability of every ending of every question.

    The beginning of a story that exceeds the model's context is left out.
    """
    from bytewright.interop.scoring import encode_pair, score_continuations  # needs torch, unlike the rest

    pairs = [
        encode_pair(tokenizer, question.context, ending)
        for question in questions
        for ending in question.endings
    ]
    scores = iter(score_continuations(model, pairs, batch_size=batch_size, progress=progress))
    return EndingScores(
        questions, [tuple(next(scores).log_probability for _ in question.endings) for question in questions]
    )


# Files


def write_tasks(
    folder: atomic.StrPath,
    num_questions: int = 200,
    *,
    seed: int = 1,
    replace: bool = False,
    progress: Progress | None = None,
) -> dict[str, list[Question]]:
    """Write a folder of tasks for lm-evaluation-harness, and return their questions.

    Each task has `num_questions` questions, as JSON lines. Its YAML file names them by their absolute path:
    write the folder again after moving it.
    """
    place = Path(folder).absolute()
    about = {"kind": "storybook tasks", "seed": seed}
    with atomic.write_folder(folder, about=about, replace=replace) as writer:
        questions = make_questions(num_questions, seed=seed, progress=progress)
        for task, asked in questions.items():
            lines = (json.dumps(asdict(question), ensure_ascii=False) for question in asked)
            writer.write_text(f"{task}.jsonl", "".join(f"{line}\n" for line in lines))
            writer.write_text(f"{task}.yaml", describe_task(task, place / f"{task}.jsonl"))
    return questions


def describe_task(task: str, data: Path) -> str:
    """Return the YAML file of a task.

    The function that reads the questions is in the module that registers our model class. So the command
    `lm_eval` finds the class when it is given the folder of the tasks.
    """
    return f"""\
# Which ending of a story is consistent? Written by `bytewright corpus storybook-tasks`.
task: {task}
task_alias: {describe_range(TASKS[task])}
tag: {TAG}
custom_dataset: !function bytewright.interop.lm_eval.read_task
dataset_kwargs:
  file: {json.dumps(str(data), ensure_ascii=False)}
output_type: multiple_choice
test_split: test
num_fewshot: 0
doc_to_text: context
doc_to_choice: endings
doc_to_target: answer
target_delimiter: ""
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
metadata:
  version: 1
"""


def describe_range(distances: range) -> str:
    """Return a range of distances in words: `range(4, 8) -> "4 to 7 sentences back"`."""
    last = "or more" if distances[-1] > 90 else f"to {distances[-1]}"
    return f"{distances[0]} {last} sentences back"


def read_tasks(folder: atomic.StrPath) -> list[Question]:
    """Return the questions of all tasks in a folder that `write_tasks` wrote."""
    if not any(Path(folder).glob("*.jsonl")):
        advice = "`bytewright corpus storybook-tasks --out FOLDER` writes them into a new folder"
        raise UsageError.at(folder, f"has no tasks; {advice}")
    return [question for task in TASKS for question in read_questions(Path(folder) / f"{task}.jsonl")]


def read_questions(file: atomic.StrPath) -> list[Question]:
    """Return the questions of a file that `write_tasks` wrote; it must have at least one."""
    file = Path(file)
    questions = list(_parse_questions(read_lines(file), file))
    if not questions:
        raise FormatError.at(file, "is empty; it must have at least one question")
    return questions


def _parse_questions(lines: Sequence[str], file: Path) -> Iterator[Question]:
    for number, line in enumerate(lines, start=1):
        fields = Json(parse_json(line, file), file, f"line {number}")
        question = Question(
            context=fields["context"].as_text(),
            endings=tuple(each.as_text() for each in fields["endings"].elements()),
            answer=fields["answer"].as_integer(),
            fact=fields["fact"].as_text(),
            distance=fields["distance"].as_integer(),
        )
        if not 0 <= question.answer < len(question.endings):
            raise fields["answer"].error(f"an index below {len(question.endings)}")
        yield question

"""Compute the figures of 2026-11-16-interop.md."""

from __future__ import annotations

from math import sqrt

from records import result

from bytewright.interop.endings import TASKS

measured = result("2026-11-16-interop.json")
MODELS = {"tiny": measured["runs"]["runs/tiny"], "demo": measured["runs"]["demo/run"]}
BY = {
    "bytewright": "Bytewright",
    "lm_eval": "lm_eval, class bytewright",
    "lm_eval_of_transformers": "lm_eval, class hf",
}


TINY, DEMO = MODELS.values()


def float64(model, whose):
    return f"{model['types']['f32'][f'{whose}_difference_from_float64']:.1e}"


def version_rows():
    yield ("package", "version")
    yield ("Python", measured["machine"]["python"])
    yield from measured["versions"].items()


def type_rows():
    yield ("model", "type", "bytes", "difference of logits", "our loss", "their loss", "equal greedy texts")
    for name, model in MODELS.items():
        for kind, it in model["types"].items():
            yield (
                name,
                kind,
                f"{it['bytes']:,}",
                f"{it['largest_difference_of_logits']:.1e}",
                f"{it['our_loss']:.4f}",
                f"{it['their_loss']:.4f}",
                f"{it['equal_greedy_texts']} of {it['greedy_texts']}",
            )


def id_rows():
    yield ("pre-tokeniser", "code points of Unicode 14", "differ", "later letters and digits", "differ")
    for name, ids in measured["ids"].items():
        yield (
            name,
            f"{ids['code_points']:,}",
            f"{ids['code_points_that_differ']:,}",
            f"{ids['later_letters_and_digits']:,}",
            f"{ids['later_letters_and_digits_that_differ']:,}",
        )


def accuracy_rows():
    yield ("model", "scored by", "1 to 3 back", "4 to 7 back", "8 or more back")
    for name, model in MODELS.items():
        for by, accuracy in model["accuracy"].items():
            yield (name, BY[by], *(f"{100 * accuracy[task]:.1f} %" for task in TASKS))


def distance_rows():
    """Merge the distances that few questions have into the last row."""
    yield ("sentences", "questions", *MODELS)
    distances = [int(it) for it in MODELS["tiny"]["by_distance"]]
    last = 11
    groups = [[it] for it in distances if it < last] + [[it for it in distances if it >= last]]
    for group in groups:
        answers = [
            [is_correct for it in group for is_correct in model["by_distance"][str(it)]]
            for model in MODELS.values()
        ]
        name = f"{last} and more" if group[0] >= last else str(group[0])
        shares = (f"{100 * sum(it) / len(it):.0f} %" for it in answers)
        yield (name, len(answers[0]), *shares)


for model in MODELS.values():
    assert len({tuple(accuracy.values()) for accuracy in model["accuracy"].values()}) == 1

FIGURES = [
    f"at commit {measured['commit']}",
    list(version_rows()),
    list(type_rows()),
    (
        f"our logits differ by at most {float64(TINY, 'our')} (tiny) and {float64(DEMO, 'our')} (demo), "
        f"those of llama.cpp by {float64(TINY, 'their')} and {float64(DEMO, 'their')}"
    ),
    list(id_rows()),
    f"The storybook tasks have {measured['questions_per_task']} questions each",
    list(accuracy_rows()),
    f"accuracy is at most {100 * sqrt(0.25 / measured['questions_per_task']):.1f} %",
    list(distance_rows()),
]
GIVEN = {
    "tokens of 20 validation stories": "a setting of the benchmark",
    "up to about 20": "observed once, only the scale matters",
    "from 1e-5 for": "observed on four stories",
    "context of 128 tokens": "the recipe of the tiny model",
    "20,000 random strings": "a setting of the test",
    "Unicode 14": "the version of the tables",
}

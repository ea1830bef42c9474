"""Compute the figures of exports.md."""

from __future__ import annotations

import runpy
from pathlib import Path

from records import DOCS, result

from bytewright.interop.endings import NUM_ENDINGS
from bytewright.interop.gguf import Q8_0_BLOCK

measured = result("2026-11-16-interop.json")
page = runpy.run_path(str(Path(DOCS, "results", "2026-11-16-interop.py")))
ids = measured["ids"]["gpt-2"]
tiny, demo = page["MODELS"]["tiny"], page["MODELS"]["demo"]


def difference(model):
    return f"{model['types']['f32']['largest_difference_of_logits']:.1e}"


FIGURES = [
    f"shared by {Q8_0_BLOCK} weights of a row",
    f"a multiple of {Q8_0_BLOCK}.",
    f"all {ids['code_points']:,} code points",
    f"Of the {ids['later_letters_and_digits']:,} letters",
    f"later, {ids['later_letters_and_digits_that_differ']:,} get other ids",
    f"a logit was {difference(tiny)} for the tiny model and {difference(demo)} for the demo's",
    f"right in {100 // NUM_ENDINGS} % of the cases",
    f"the tiny model has {tiny['context_length']} tokens",
    f"with a context of {demo['context_length']} tokens",
]
GIVEN = {
    "the id 11": "observed with llama.cpp",
    "those of Unicode 14": "the version of llama.cpp's tables",
    "more than 32 bytes": "observed with llama-cpp-python",
}

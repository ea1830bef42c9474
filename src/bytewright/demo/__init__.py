"""The demo: generate stories, train a tokenizer and a small model on them, and check its stories.

Read `pipeline` first: it runs the stages in order. `plan` holds the sizes and settings, `page` writes the
report. Depends on `experiments` and `report`; only the command line imports it.
"""

from bytewright.demo.pipeline import Outcome, run_demo
from bytewright.demo.plan import Plan

__all__ = ["Outcome", "Plan", "run_demo"]

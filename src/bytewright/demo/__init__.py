"""The demo: from nothing to a model that tells stories, in a few minutes on two cores, before one's eyes.

`plan` says what is made and how large, `ledger` recognises what an earlier run has made already, `stages`
does the work, and `report` shows the result on one page. All of it is made of the other packages; nothing
here is needed by them.
"""

from bytewright.demo.pipeline import Outcome, run_demo
from bytewright.demo.plan import Plan

__all__ = ["Outcome", "Plan", "run_demo"]

"""The run-time type checker of the tests: it checks all annotations, including tensor shapes, at each call.

`conftest` installs it as an import hook, so code outside the tests runs without checks. As in mypy, an int is
accepted for a float.
"""

from __future__ import annotations

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))

"""The run-time type checker of the tests: all annotations, shapes of tensors included, hold at each call.

`conftest` installs it as an import hook, so it costs nothing outside the tests. A whole number passes for a
float here, as it does for mypy.
"""

from __future__ import annotations

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))

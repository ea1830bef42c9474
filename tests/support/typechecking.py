"""The run-time type checker of the tests: it checks annotations, including tensor shapes, at each call.

`conftest` installs it as an import hook, so code outside the tests runs without checks. As in mypy, an int is
accepted for a float. Nested functions are not checked. The checks of a function are compiled when it is
defined, so those of a nested function would be compiled at each call of the outer one.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

import jaxtyping
from beartype import BeartypeConf, beartype
from jaxtyping import _import_hook

check_call = beartype(conf=BeartypeConf(is_pep484_tower=True))


class OuterFunctions(_import_hook.JaxtypingTransformer):
    """Adds the decorator that checks calls to the functions of modules and classes only."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:  # noqa: N802
        """Decorate a function; its body stays as it is."""
        body, node.body = node.body, []
        super().visit_FunctionDef(node)
        node.body = body
        return node


def check_calls_of(modules: Sequence[str]) -> None:
    """Check all calls of functions of these modules, which must not have been imported yet."""
    _import_hook.JaxtypingTransformer = OuterFunctions  # type: ignore[misc]
    jaxtyping.install_import_hook(list(modules), "typechecking.check_call")

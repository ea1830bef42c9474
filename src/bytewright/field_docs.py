"""Documentation of dataclass fields at run time.

Each field of a dataclass is documented by a string below it, which Python discards. `described` adds these
strings to the docstring of the class, where `help()` shows them; `describe_fields` returns them. Without
source code there are no descriptions, and nothing else changes.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


def described(cls: type[T]) -> type[T]:
    """Add the descriptions of the fields to the docstring of a class; use it as a decorator."""
    lines = [f"{name}: {sentence}" for name, sentence in describe_fields(cls).items()]
    wrapped = ["\n".join(textwrap.wrap(line, 100, subsequent_indent="    ")) for line in lines]
    parts = (inspect.cleandoc(cls.__doc__ or ""), "\n".join(wrapped))
    cls.__doc__ = "\n\n".join(part for part in parts if part)
    return cls


def describe_fields(cls: type) -> dict[str, str]:
    """Return the descriptions of the fields of a class by field name, each on one line.

    >>> from bytewright.model import ModelConfig
    >>> describe_fields(ModelConfig)["d_model"]
    'Width of the residual stream.'
    """
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):
        return {}
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    sentences = {}
    for field, below in pairwise(definition.body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str() as sentence)),
            ):
                sentences[name] = " ".join(sentence.split())
    return sentences

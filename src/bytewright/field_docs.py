"""The sentences under the fields of a dataclass, for readers who do not have its source open.

A field of ours is explained by the string that stands under it in the source, which Python itself forgets.
`described` puts these sentences into the docstring of the class, where `help()` shows them, and
`describe_fields` gives them to whoever makes a table of them. Where there is no source to read there are no
sentences, and nothing else changes. Nothing here knows what the fields mean.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


def described(cls: type[T]) -> type[T]:
    """Add what is said of each field to the docstring of a class; to be used as a decorator."""
    lines = [f"{name}: {sentence}" for name, sentence in describe_fields(cls).items()]
    wrapped = ["\n".join(textwrap.wrap(line, 100, subsequent_indent="    ")) for line in lines]
    parts = (inspect.cleandoc(cls.__doc__ or ""), "\n".join(wrapped))
    cls.__doc__ = "\n\n".join(part for part in parts if part)
    return cls


def describe_fields(cls: type) -> dict[str, str]:
    """Give the sentences under the fields of a class, each on one line, by the name of the field.

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

"""Language models from raw bytes: tokenizer, model, training and generation, all built from scratch.

The packages in the order of their dependencies: storage, data, corpus, tokenizer, model, optim, parallel,
account, generate, train, experiments, laws, interop, report, serve, studio, demo, cli. Each imports only
packages before it. Import public names from them (`from bytewright.tokenizer import Tokenizer`). `registry`
holds the parts that configs name, and `plugins` loads users' files that register more. Importing `bytewright`
is fast, but sets environment variables that torch and its libraries read once: import it before torch.
"""

from collections.abc import Callable as _Callable
from functools import wraps as _wraps
from typing import Any as _Any
from typing import TypeVar as _TypeVar

from bytewright.torch_environment import prepare as _prepare

_prepare()

_F = _TypeVar("_F", bound=_Callable[..., _Any])


def with_aliases(**aliases: str) -> _Callable[[_F], _F]:
    """Let a function accept further names of its keyword arguments; use it as a decorator.

    Textbooks and courses name the same argument differently.

    >>> @with_aliases(learning_rate="lr")
    ... def scale(lr: float) -> float:
    ...     return 2 * lr
    >>> scale(learning_rate=1.0), scale(lr=2.0)
    (2.0, 4.0)
    """

    def add(function: _F) -> _F:
        @_wraps(function)
        def renaming(*values: _Any, **named: _Any) -> _Any:
            for alias in aliases.keys() & named.keys():
                if aliases[alias] in named:
                    name = function.__name__
                    raise TypeError(f"{name}() got both {alias!r} and {aliases[alias]!r}: they are the same")
                named[aliases[alias]] = named.pop(alias)
            return function(*values, **named)

        return renaming  # type: ignore[return-value]

    return add


def lazy_names(package: str) -> tuple[_Callable[[str], object], _Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package that imports its public names on first use.

    The names are those that the package imports under `if TYPE_CHECKING:`. This block is read from the
    source, so that one list of names serves type checkers and imports. Without torch, which takes seconds to
    import, commands such as `bytewright runs` answer at once.
    """
    import ast
    import inspect
    from importlib import import_module
    from sys import modules

    module = modules[package]
    tree = ast.parse(inspect.getsource(module))
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: str(node.module) for node in imports for alias in node.names}

    def get_name(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        setattr(module, name, value)
        return value

    return get_name, lambda: sorted({*vars(module), *homes})


def __getattr__(name: str) -> str:
    if name == "__version__":  # computed on demand, because reading package metadata is slow
        from importlib import metadata

        try:
            return metadata.version("bytewright")
        except metadata.PackageNotFoundError:  # run from a source tree
            return _version_of_source()
    raise AttributeError(f"module 'bytewright' has no attribute {name!r}")


def _version_of_source() -> str:
    """Return the version from Cargo.toml, which package metadata are made from, too."""
    import tomllib
    from pathlib import Path

    try:
        with open(Path(__file__).parents[2] / "Cargo.toml", "rb") as file:
            return str(tomllib.load(file)["workspace"]["package"]["version"])
    except (OSError, tomllib.TOMLDecodeError, KeyError):
        return "(unknown version)"

"""The parts that a config selects by name: built-in ones, and those that a user's Python file registers.

A part is a class or a function. It is registered once, under the name that recipes use:

    from bytewright.registry import feed_forwards

    @feed_forwards.register("relu2")
    class SquaredReLU(torch.nn.Module): ...

Configs, help texts, the accountant, the decoder and the exporters read the registries and list no variants
themselves. The module that defines a kind of part documents what such a part must provide. `plugins` loads a
user's file from the command line. A part is attributed to the user's file that registers it, so that a run
can record this file.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from bytewright.errors import UsageError, shorten, suggest, wrong_value

P = TypeVar("P", bound=Callable[..., Any])

_accepts_unknown: ContextVar[bool] = ContextVar("accepts_unknown", default=False)
"""Whether names that no part has are accepted, inside `accepting_unknown_parts`."""


class Registry:
    """The parts of one kind, by name.

    `home` is the module that registers the built-in ones, and `key` the setting of a config with the name.
    """

    def __init__(self, kind: str, home: str, key: str) -> None:
        self.kind = kind
        self.key = key
        self._home = home
        self._parts: dict[str, Any] = {}
        self._plugins: dict[str, Path] = {}

    def register(self, name: str) -> Callable[[P], P]:
        """Register a class or function under `name`; use it as a decorator."""
        plugin = _file_of_user(sys._getframe(1).f_globals)
        if plugin is not None:
            importlib.import_module(self._home)  # so that built-in parts are first, and keep their names
        if not (isinstance(name, str) and re.fullmatch(r"[a-z][a-z0-9_]*", name)):
            raise wrong_value(f"the name of a {self.kind}", "of the form [a-z][a-z0-9_]*", name)
        if name in self._parts:
            raise UsageError(f"the {self.kind} {name!r} is already registered; choose another name", key=name)

        def add(part: P) -> P:
            if not callable(part):
                raise wrong_value(f"the {self.kind} {name!r}", "a class or a function", part)
            self._parts[name] = part
            if plugin is not None:
                self._plugins[name] = plugin
            return part

        return add

    def __getitem__(self, name: str) -> Any:
        """Return the part with this name; `UsageError` names the closest one if there is none."""
        if name not in self.names():
            if _accepts_unknown.get():
                return _unknown_part
            message = f"unknown {self.kind} {name!r}{self._suggest(name)}"
            raise UsageError(message, key=self.key, expected=self.names(), found=name)
        return self._parts[name]

    def check(self, name: str, key: str) -> None:
        """Raise `UsageError` about the setting `key` unless a part is registered under `name`."""
        if name not in self:
            message = f"{key} must be a registered {self.kind}, but is {shorten(name)}{self._suggest(name)}"
            raise UsageError(message, key=key, expected=self.names(), found=name)

    def _suggest(self, name: object) -> str:
        return f"{suggest(str(name), self.names())} (plugins add more)"

    def __contains__(self, name: object) -> bool:
        return _accepts_unknown.get() or name in self.names()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def names(self) -> tuple[str, ...]:
        """Return all names, built-in ones first."""
        importlib.import_module(self._home)
        return tuple(self._parts)

    def plugin_of(self, name: str) -> Path | None:
        """Return the file of the plugin that registered a part, or None for a built-in one."""
        return self._plugins.get(name)

    def plugins(self) -> set[Path]:
        """Return the files that registered parts."""
        return set(self._plugins.values())

    def names_from(self, plugin: Path) -> tuple[str, ...]:
        """Return the names of the parts that the file `plugin` registered."""
        return tuple(name for name, path in self._plugins.items() if path == plugin)

    def remove(self, name: str) -> None:
        """Remove a part, for example before a notebook cell registers it again."""
        self._parts.pop(name, None)
        self._plugins.pop(name, None)


@contextmanager
def accepting_unknown_parts() -> Iterator[None]:
    """Accept any name and any options of a part inside the block, to read a config without using its parts.

    `runs` and `report` read runs whose plugins are not loaded.
    """
    token = _accepts_unknown.set(True)
    try:
        yield
    finally:
        _accepts_unknown.reset(token)


def _unknown_part(**options: Any) -> NoReturn:
    """Replace a part whose plugin is not loaded: it accepts any options and cannot be used."""
    raise UsageError("the plugin of this part is not loaded")


def is_built_in(part: Callable[..., Any]) -> bool:
    """Return whether a class or function is one of Bytewright's."""
    return _is_ours(str(getattr(part, "__module__", None)))


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "bytewright"


def _file_of_user(module: dict[str, Any]) -> Path | None:
    """Return the file of a module that is not part of Bytewright; None in an interactive session."""
    if _is_ours(str(module.get("__name__"))) or "__file__" not in module:
        return None
    return Path(os.path.realpath(module["__file__"]))


norms = Registry("norm", "bytewright.model.layers", "model.norm_kind")
feed_forwards = Registry("feed-forward layer", "bytewright.model.layers", "model.ffn")
attentions = Registry("attention", "bytewright.model.attention", "model.attention")
positions = Registry("position encoding", "bytewright.model.attention", "model.position")
losses = Registry("loss", "bytewright.model.loss", "loss.name")
optimizers = Registry("optimizer", "bytewright.optim.build", "optimizer.name")
schedules = Registry("schedule", "bytewright.optim.schedules", "schedule.kind")
samplers = Registry("sampler", "bytewright.generate.sampling", "sampler.name")

REGISTRIES = (norms, feed_forwards, attentions, positions, losses, optimizers, schedules, samplers)

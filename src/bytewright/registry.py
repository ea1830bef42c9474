"""The parts that a config selects by name: built-in ones, and those that a user's Python file registers.

A part is a class or a function. It is registered once, under the name that recipes use:

    from bytewright.registry import feed_forwards

    @feed_forwards.register("relu2")
    class SquaredReLU(torch.nn.Module): ...

Configs, help texts, the accountant, the decoder and the exporters read the registries and list no variants
themselves. The module that defines a kind of part documents what such a part must provide.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from bytewright.errors import UsageError, suggest, wrong_value

P = TypeVar("P", bound=Callable[..., Any])

_plugin: Path | None = None
"""The file of the plugin that is being loaded."""


class Registry:
    """The parts of one kind, by name; `home` is the module that registers the built-in ones."""

    def __init__(self, kind: str, home: str) -> None:
        self.kind = kind
        self._home = home
        self._parts: dict[str, Any] = {}
        self._plugins: dict[str, Path] = {}

    def register(self, name: str) -> Callable[[P], P]:
        """Register a class or function under `name`; use it as a decorator."""
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise wrong_value(f"the name of a {self.kind}", "of the form [a-z][a-z0-9_]*", name)
        if name in self._parts:
            raise UsageError(f"the {self.kind} {name!r} is already registered; choose another name", key=name)

        def add(part: P) -> P:
            self._parts[name] = part
            if _plugin is not None:
                self._plugins[name] = _plugin
            return part

        return add

    def __getitem__(self, name: str) -> Any:
        """Return the part with this name; `UsageError` names the closest one if there is none."""
        if name not in self.names():
            message = f"unknown {self.kind} {name!r}{suggest(name, self.names())}"
            raise UsageError(message, key=self.kind, expected=self.names(), found=name)
        return self._parts[name]

    def check(self, name: str, key: str) -> None:
        """Raise `UsageError` about the setting `key` unless a part is registered under `name`."""
        if name not in self.names():
            message = (
                f"{key} is {name!r}, which is not a registered {self.kind}{suggest(str(name), self.names())}"
            )
            raise UsageError(message, key=key, expected=self.names(), found=name)

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def names(self) -> tuple[str, ...]:
        """Return all names, built-in ones first."""
        importlib.import_module(self._home)
        return tuple(self._parts)

    def plugin_of(self, name: str) -> Path | None:
        """Return the file of the plugin that registered a part, or None for a built-in one."""
        return self._plugins.get(name)

    def remove(self, name: str) -> None:
        """Remove a part, for example before a notebook cell registers it again."""
        self._parts.pop(name, None)
        self._plugins.pop(name, None)


@contextmanager
def registering_from(plugin: Path) -> Iterator[None]:
    """Attribute the parts that are registered inside the block to the file `plugin`."""
    global _plugin
    _plugin = plugin
    try:
        yield
    finally:
        _plugin = None


norms = Registry("norm", "bytewright.model.layers")
feed_forwards = Registry("feed-forward layer", "bytewright.model.layers")
attentions = Registry("attention", "bytewright.model.attention")
positions = Registry("position encoding", "bytewright.model.attention")
losses = Registry("loss", "bytewright.model.loss")
optimizers = Registry("optimizer", "bytewright.optim.reference")
schedules = Registry("schedule", "bytewright.optim.schedules")
samplers = Registry("sampler", "bytewright.generate.sampling")

"""`bytewright parts`: list the parts that recipes can name, with their options."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from bytewright.cli import console, options
from bytewright.errors import UsageError, suggest

if TYPE_CHECKING:
    from bytewright.registry import Registry

REQUIRED = "required"
"""What is shown for an option without a default."""


@dataclass(frozen=True, kw_only=True)
class ListParts:
    """List the norms, feed-forward layers, losses, optimizers and other parts that a recipe can name.

    Each part is listed with the key of a recipe that selects it, its options and their defaults. --plugin
    adds the parts of your own Python file.

    For example:
      bytewright parts
      bytewright parts loss.name --plugin examples/z_loss.py
    """

    key: Annotated[
        str | None,
        tyro.conf.Positional,
        tyro.conf.arg(metavar="[KEY]", help_behavior_hint="(default: all keys)"),
    ] = None
    """The key of a recipe, such as loss.name."""

    plugin: options.Plugins = ()

    json: bool = False
    """Print the parts as JSON."""

    def run(self) -> None:
        """Print the parts."""
        from bytewright.registry import REGISTRIES

        keys = [registry.key for registry in REGISTRIES]
        if self.key is not None and self.key not in keys:
            message = f"{self.key!r} is not a key that names a part{suggest(self.key, keys)}"
            raise UsageError(message, key=self.key, expected=keys)
        parts = [
            part
            for registry in REGISTRIES
            if self.key in (None, registry.key)
            for part in describe_parts(registry)
        ]
        if self.json:
            print(json.dumps(parts, indent=2, default=str))
            return
        rows = []
        for part in parts:
            listed = part["options"].items()
            defaults = [name if value == REQUIRED else f"{name}={value}" for name, value in listed]
            file = f" ({part['plugin']})" if part["plugin"] else ""
            rows.append((part["key"], part["name"], ", ".join(defaults), part["summary"] + file))
        console.print_table(("key", "name", "options", "what it is"), rows, left=range(4))


def describe_parts(registry: Registry) -> Iterator[dict[str, Any]]:
    """Yield the name, options with defaults, summary and plugin of every part of a registry."""
    from bytewright.storage.config_reader import list_options

    for name in registry:
        part = registry[name]
        declared = list_options(part, list_provided(registry, part))
        plugin = registry.plugin_of(name)
        yield {
            "key": registry.key,
            "name": name,
            "options": {
                option: REQUIRED if parameter.default is parameter.empty else parameter.default
                for option, parameter in declared.items()
            },
            "summary": ((part.__doc__ or "").strip().splitlines() or [""])[0],
            "plugin": None if plugin is None else plugin.name,
        }


def list_provided(registry: Registry, part: Any) -> tuple[str, ...]:
    """Return the parameters of a part that are not options, because a run passes them."""
    from bytewright.generate import sampling
    from bytewright.model import config, loss
    from bytewright.optim import schedules
    from bytewright.optim.build import provided_to
    from bytewright.registry import optimizers

    if registry is optimizers:  # its constructor decides which settings it needs
        return provided_to(part)
    of_model = {field.registry.key: field.provided for field in config.PARTS.values()}
    of_training = {
        "loss.name": loss.PROVIDED,
        "sampler.name": sampling.PROVIDED,
        "schedule.kind": schedules.PROVIDED,
    }
    return (of_model | of_training)[registry.key]

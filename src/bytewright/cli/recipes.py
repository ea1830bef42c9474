"""`bytewright recipes` and `parts`: list recipes, the data they need, and the parts that they can name."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from bytewright.cli import console, options
from bytewright.errors import UsageError, suggest
from bytewright.shipped_recipes import DataCommand, ShippedRecipe, find_recipe, find_shipped, list_recipes
from bytewright.storage import atomic

if TYPE_CHECKING:
    from bytewright.registry import Registry
    from bytewright.train import TrainConfig

REQUIRED = "required"
"""What is shown for an option without a default."""


@dataclass(frozen=True, kw_only=True)
class ListRecipes:
    """List the recipes and sweeps that come with Bytewright, or print one of them.

    `bytewright train NAME` runs a recipe and `bytewright sweep NAME` a sweep. To change more than a few
    values, print a recipe into a file of your own.

    For example:
      bytewright recipes
      bytewright recipes tiny > mine.toml
    """

    name: Annotated[Path | None, tyro.conf.Positional, options.arg("[NAME]")] = None
    """Print the file of this recipe."""
    json: bool = False
    """Print the list as JSON."""

    def run(self) -> None:
        """Print the list, or one file."""
        if self.name is not None:
            print(atomic.read_text(find_recipe(self.name)), end="")
            return
        recipes = list_recipes()
        if self.json:
            fields = [dataclasses.asdict(recipe) | {"path": str(recipe.path)} for recipe in recipes]
            print(json.dumps(fields, indent=2))
            return
        rows = [(recipe.name, recipe.kind, recipe.summary) for recipe in recipes]
        console.print_table(("recipe", "run with", ""), rows, left=range(3))


def require_data(config: TrainConfig, recipe: Path, *, make: bool) -> None:
    """Raise unless the data of a recipe exists; with `make`, run the commands of a shipped recipe first."""
    shipped = find_shipped(recipe)
    missing = find_missing_data(config)
    if missing and make:
        make_data(_check_commands(shipped, recipe))
        missing = find_missing_data(config)
    if not missing:
        return
    key, path = missing
    hint = ""
    commands = [] if shipped is None else shipped.data_commands
    if any(path.is_relative_to(command.output) for command in commands):
        console.print_remark(f"These commands make the data of {recipe.stem}:")
        for command in commands:
            console.print_remark(f"  {command}")
        can_run = all(command.is_ours for command in commands)
        hint = "; run these commands first, or add --make-data" if can_run else "; run these commands first"
    elif recipe.read_text(errors="replace").startswith("#"):
        hint = f"; the comments at the top of {recipe} show how to create the data"
    raise UsageError(f"{key} is {path}, which does not exist{hint}", path=path, key=key)


def find_missing_data(config: TrainConfig) -> tuple[str, Path] | None:
    """Return the key and the path of the first data file of a config that does not exist."""
    for key in ("train", "validation", "tokenizer"):
        path = getattr(config.data, key)
        if path is not None and not path.exists():
            return f"data.{key}", path
    return None


def make_data(commands: Sequence[DataCommand]) -> None:
    """Run commands that make data, except those whose output exists.

    A command writes its output atomically. After an interruption, the same commands continue.
    """
    from bytewright.cli.main import run_command

    for number, command in enumerate(commands, 1):
        done = command.output.exists()
        what = f"exists already: {command.output}" if done else str(command)
        console.print_remark(f"[{number}/{len(commands)}] {what}")
        if not done:
            # A killed process can leave the manifest of a token file without the file.
            run_command([*command.words[1:], "--replace"])


def _check_commands(shipped: ShippedRecipe | None, recipe: Path) -> list[DataCommand]:
    """Return the commands that make the data of a shipped recipe; the comments of other files are not run."""
    if shipped is None:
        message = (
            f"--make-data needs a recipe that comes with Bytewright, and {recipe} is another file;"
            " run the commands that make its data yourself"
        )
        raise UsageError(message, path=recipe, key="--make-data")
    foreign = [command for command in shipped.data_commands if not command.is_ours]
    if foreign:
        message = f"--make-data cannot make the data of {shipped.name}; run `{foreign[0]}` yourself"
        raise UsageError(message, path=recipe, key="--make-data", found=str(foreign[0]))
    return shipped.data_commands


@dataclass(frozen=True, kw_only=True)
class ListParts:
    """List the norms, feed-forward layers, losses, optimizers and other parts that a recipe can name.

    Each part is listed with the key of a recipe that selects it, its options and their defaults. The option
    --plugin adds the parts of your own Python file.

    For example:
      bytewright parts
      bytewright parts loss.name --plugin examples/z_loss.py
    """

    key: Annotated[str | None, tyro.conf.Positional, options.arg("[KEY]", "(default: all keys)")] = None
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

    if registry is optimizers:  # its constructor determines which settings a run passes
        return provided_to(part)
    of_model = {field.registry.key: field.provided for field in config.PARTS.values()}
    of_training = {
        "loss.name": loss.PROVIDED,
        "sampler.name": sampling.PROVIDED,
        "schedule.kind": schedules.PROVIDED,
    }
    return (of_model | of_training)[registry.key]

"""Load plugins: Python files of users that register parts, and check the plugins that a run was made with.

    from bytewright.plugins import load_plugin
    load_plugin("my_lab.py")

A plugin is executed once per process, as a module. It is loaded only if a user names it, on the command line
or in Python. Recipes and folders of runs never execute code. A run records the plugins of the parts that its
config names: path, SHA-256 and a copy of the file. `check_loaded` compares this record with the plugins of
the process. A part that an imported module registers belongs to the file of that module.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from bytewright.errors import BytewrightError, FormatError, UsageError, first_line, is_out_of_memory
from bytewright.registry import REGISTRIES, Registry
from bytewright.storage import atomic

MAX_PLUGIN_BYTES = 2**20
PLUGINS = "plugins.json"
"""The file of a run that lists its plugins."""
COPIES = "plugins"
"""The folder of a run with copies of its plugins."""
IN_MODEL = "model."
"""The start of the keys of parts that a model consists of; the others are used in training only."""


class PluginWarning(UserWarning):
    """A plugin was executed, but registered no new part."""


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """A file that registers parts; `source` is what was executed."""

    path: Path
    source: bytes = field(repr=False)

    @functools.cached_property
    def sha256(self) -> str:
        """The SHA-256 of the source."""
        return hashlib.sha256(self.source).hexdigest()

    @property
    def parts(self) -> dict[str, tuple[str, ...]]:
        """The names of the parts that it registered, by the key of a config."""
        found = {registry.key: registry.names_from(self.path) for registry in REGISTRIES}
        return {key: names for key, names in found.items() if names}


@dataclass(frozen=True, kw_only=True)
class RecordedPlugin:
    """A plugin in the record of a run; `parts` are the parts of the run's config that it registered."""

    path: str
    sha256: str
    copy: Path
    parts: Mapping[str, str]


_loaded: dict[Path, Plugin] = {}


def load_plugin(path: atomic.StrPath) -> Plugin:
    """Execute the Python file at `path`, so that the parts that it registers can be used by their names.

    Loading a file again, or a copy of it, has no effect. A file that has changed since replaces its parts. An
    error in the file raises `UsageError` with the file and line, and none of its parts is registered. A file
    that registers nothing new, also not through a module that it imports, causes a `PluginWarning`.
    """
    file = Path(os.path.realpath(path))
    plugin = Plugin(path=file, source=_read(Path(path)))
    for loaded in _loaded.values():
        if loaded.sha256 == plugin.sha256:
            return loaded
    if file not in _loaded and plugin.parts:  # a module that was imported before
        _loaded[file] = plugin
        return plugin
    unload_plugin(file)
    before = _files_with_parts()
    _execute(plugin, shown=Path(path))
    if _files_with_parts() == before:
        message = f'{path} registers no new part; a decorator such as @losses.register("name") registers one'
        warnings.warn(message, PluginWarning, stacklevel=2)
    _loaded[file] = plugin
    return plugin


def _files_with_parts() -> set[Path]:
    return {file for registry in REGISTRIES for file in registry.plugins()}


def unload_plugin(path: atomic.StrPath) -> None:
    """Remove the parts that the file at `path` registered, if any."""
    file = Path(os.path.realpath(path))
    _loaded.pop(file, None)
    sys.modules.pop(_module_name(file), None)
    for registry in REGISTRIES:
        for name in registry.names_from(file):
            registry.remove(name)


def _read(path: Path) -> bytes:
    if not path.exists():
        raise UsageError(f"the plugin {path} does not exist", path=path)
    if not path.is_file():
        raise UsageError(f"the plugin {path} is not a regular file; name a Python file", path=path)
    return atomic.read_bytes(path, max_bytes=MAX_PLUGIN_BYTES)


def _module_name(file: Path) -> str:
    """Return a name that no other module has: two plugins may have files of the same name."""
    stem = re.sub(r"\W", "_", file.stem)
    return f"bytewright_plugin_{stem}_{hashlib.sha256(os.fsencode(file)).hexdigest()[:8]}"


def _execute(plugin: Plugin, shown: Path) -> None:
    module = ModuleType(_module_name(plugin.path))
    module.__file__ = str(plugin.path)
    sys.modules[module.__name__] = module  # dataclasses and `inspect` find the source through it
    try:
        code = compile(plugin.source, str(plugin.path), "exec", dont_inherit=True)
        with _unchanged_defaults():
            exec(code, module.__dict__)
    except BaseException as error:
        if _is_signal(error):
            raise
        unload_plugin(plugin.path)
        line = _line_of(error, plugin.path)
        place = f"{shown}, line {line}" if line else str(shown)
        what = "" if isinstance(error, UsageError | SyntaxError) else f"{type(error).__name__}: "
        message = error.msg if isinstance(error, SyntaxError) else first_line(error)
        raise UsageError(f"{place}: {what}{message}", path=shown, key="plugin", found=line) from error


def _is_signal(error: BaseException) -> bool:
    """Return whether a signal raised an exception: Ctrl-C, or SIGTERM by a class of Bytewright."""
    is_ours = type(error).__module__.startswith("bytewright.") and not isinstance(error, Exception)
    return is_ours or isinstance(error, KeyboardInterrupt | GeneratorExit)


@contextmanager
def _unchanged_defaults(subject: str = "it") -> Iterator[None]:
    """Raise if the block changes the device or the type of new tensors in all of torch; change it back.

    The error says that `subject` changes them.
    """
    torch = sys.modules.get("torch")
    before = ("cpu", "torch.float32") if torch is None else _read_defaults(torch)
    yield
    torch = sys.modules.get("torch")
    if torch is None or (found := _read_defaults(torch)) == before:
        return
    # Without a default device, torch does not call Python for each operation.
    torch.set_default_device(None if before[0] == "cpu" else before[0])
    torch.set_default_dtype(getattr(torch, before[1].removeprefix("torch.")))
    message = (
        f"{subject} changes torch's default device or type to {' and '.join(found)}, which all other code"
        " uses too; pass device= and dtype= to the tensors of the plugin"
    )
    raise UsageError(message, key="plugin", expected=before, found=found)


def _read_defaults(torch: Any) -> tuple[str, str]:
    return str(torch.get_default_device()), str(torch.get_default_dtype())


def _line_of(error: BaseException, path: Path) -> int | None:
    """Return the line of a file at which an error occurred: the innermost one that is in the file."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return lines[-1] if lines else None


def place_in_plugin(error: BaseException) -> str | None:
    """Return the file and line of a plugin at which an error occurred; None if no plugin was executing."""
    files = {*_loaded, *_files_with_parts()}
    lines = {str(file): line for file in files if (line := _line_of(error, file))}
    frames = reversed(traceback.extract_tb(error.__traceback__))
    file = next((frame.filename for frame in frames if frame.filename in lines), None)
    return None if file is None else f"{file}, line {lines[file]}"


@contextmanager
def errors_of_part(registry: Registry, name: str, action: str) -> Iterator[None]:
    """Raise `UsageError` about a user's part for any error in the block, such as "cannot be built: …".

    A part that changes the default device or type of torch is an error, too, since later code would fail.
    Errors of built-in parts, of Bytewright and of the memory pass unchanged.
    """
    if (plugin := registry.plugin_of(name)) is None:
        yield
        return
    try:
        with _unchanged_defaults(f"{plugin}: the {registry.kind} {name!r}"):
            yield
    except BaseException as error:
        if _is_signal(error) or isinstance(error, BytewrightError) or is_out_of_memory(error):
            raise
        place = place_in_plugin(error) or str(plugin)
        what = f"{type(error).__name__}: {first_line(error)}"
        message = f"{place}: the {registry.kind} {name!r} {action}: {what}"
        raise UsageError(message, path=plugin, key=registry.key, found=name) from error


def find_plugins(settings: Mapping[str, Any]) -> list[tuple[Plugin, dict[str, str]]]:
    """Return the plugins of the parts that a config names, each with these parts by their keys.

    `settings` is the config with dotted keys.
    """
    used: dict[Path, dict[str, str]] = {}
    for registry in REGISTRIES:
        name = settings.get(registry.key)
        file = registry.plugin_of(name) if isinstance(name, str) else None
        if file is not None:
            used.setdefault(file, {})[registry.key] = str(name)
    return [(_plugin_at(file), parts) for file, parts in used.items()]


def plugin_digests(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of the plugin of each part that a config names, by the key of the part."""
    return {key: plugin.sha256 for plugin, parts in find_plugins(settings) for key in parts}


def _plugin_at(file: Path) -> Plugin:
    if file in _loaded:
        return _loaded[file]
    return Plugin(path=file, source=_read(file))  # of a module that was imported


# The record of a run


def write_plugins(run: Path, settings: Mapping[str, Any]) -> None:
    """Record the plugins of a config in the folder of a run; a run without plugins records nothing."""
    for name in (PLUGINS, COPIES):  # of a process that was killed before the run began
        atomic.remove_if_present(run / name, within=run)
    used = find_plugins(settings)
    records = []
    for number, (plugin, parts) in enumerate(used):
        taken = [other.path.name for other, _ in used[:number]]
        name = f"{number}-{plugin.path.name}" if plugin.path.name in taken else plugin.path.name
        atomic.write_bytes(run / COPIES / name, plugin.source, within=run)
        records.append({"path": str(plugin.path), "sha256": plugin.sha256, "copy": name, "parts": parts})
    if records:
        atomic.write_document(run / PLUGINS, {"plugins": records}, within=run)


def read_plugins(run: Path) -> list[RecordedPlugin]:
    """Return the plugins that a run recorded."""
    file = run / PLUGINS
    if not file.is_file():
        return []
    records = atomic.read_document(file, max_bytes=MAX_PLUGIN_BYTES).get("plugins")
    if not isinstance(records, list) or not all(map(_is_record, records)):
        raise FormatError.at(file, "is not a list of plugins with path, sha256, copy and parts")
    return [
        RecordedPlugin(
            path=record["path"],
            sha256=record["sha256"],
            copy=run / COPIES / record["copy"],
            parts=record["parts"],
        )
        for record in records
    ]


def _is_record(record: object) -> bool:
    if not isinstance(record, dict) or not isinstance(record.get("parts"), dict):
        return False
    texts = [*(record.get(name) for name in ("path", "sha256", "copy")), *record["parts"].values()]
    return all(isinstance(text, str) for text in texts) and "/" not in record["copy"]


def check_loaded(run: Path, *, of_model_only: bool = False) -> None:
    """Raise `UsageError` unless the plugins that a run recorded are loaded, with the same contents.

    With `of_model_only`, only plugins that registered parts of the model are required.
    """
    needed = [
        (plugin, _registry_of(key, run), name)
        for plugin in read_plugins(run)
        for key, name in plugin.parts.items()
        if key.startswith(IN_MODEL) or not of_model_only
    ]
    missing = [(plugin, registry, name) for plugin, registry, name in needed if name not in registry.names()]
    if missing:
        files = dict.fromkeys(_existing_file(plugin) for plugin, _, _ in missing)
        advice = f"add {' '.join(f'--plugin {file}' for file in files)}"
        plugin, registry, name = missing[0]
        message = f"{_describe(run, plugin, registry, name)}, which is not loaded; {advice}"
        raise UsageError(message, path=run, key=registry.key, expected=plugin.sha256)
    for plugin, registry, name in needed:
        file = registry.plugin_of(name)
        found = None if file is None else _plugin_at(file).sha256
        if found != plugin.sha256:
            expected, other = plugin.sha256[:12], found[:12] if found else "none"
            message = (
                f"{_describe(run, plugin, registry, name)} with SHA-256 {expected}, but that of the loaded"
                f" {file or registry.kind} is {other}; restore the file, or load the copy {plugin.copy}"
            )
            raise UsageError(message, path=run, key=registry.key, expected=plugin.sha256, found=found)


def check_recorded(run: Path, settings: Mapping[str, Any]) -> None:
    """Raise `FormatError` unless a run recorded the plugins of all parts of plugins that its config names."""
    recorded = {key for plugin in read_plugins(run) for key in plugin.parts}
    for key in plugin_digests(settings):
        if key not in recorded:
            message = f"{run / PLUGINS} does not record the plugin of {key}; restore it to continue the run"
            raise FormatError(message, path=run / PLUGINS, key=key)


def _describe(run: Path, plugin: RecordedPlugin, registry: Registry, name: str) -> str:
    return f"{run} uses the {registry.kind} {name!r} of the plugin {Path(plugin.path).name}"


def _existing_file(plugin: RecordedPlugin) -> Path:
    """Return the file that a user can load: the original if it is unchanged, otherwise the recorded copy."""
    path = Path(plugin.path)
    try:
        is_same = hashlib.sha256(_read(path)).hexdigest() == plugin.sha256
    except (BytewrightError, OSError):
        is_same = False
    return path if is_same else plugin.copy


def _registry_of(key: str, run: Path) -> Registry:
    for registry in REGISTRIES:
        if registry.key == key:
            return registry
    raise FormatError.at(run / PLUGINS, f"{key} is not the key of a part", key=key)

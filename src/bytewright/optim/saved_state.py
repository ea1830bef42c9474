"""Checks of saved optimizer states before they are loaded: of ours, of torch's, and of older versions.

A state dict has the form of torch: `state` by parameter number and `param_groups`. Checkpoints of earlier
versions have other names for the state tensors, and one state dict per part of a combined optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bytewright.errors import FormatError, first_line

if TYPE_CHECKING:
    from bytewright.optim.reference import CombinedOptimizer, Optimizer

Saved = dict[str, Any]


def load_state(optimizer: Any, state_dict: Any) -> None:
    """Load a saved state into any optimizer, with the values and types that were saved.

    torch's `load_state_dict` converts all state tensors but counts to the type of the parameter. Here they
    keep their own type, so that integers, booleans, other precisions and strings survive.
    """
    if not isinstance(state_dict, Mapping):
        raise FormatError("the saved state is not that of an optimizer", key="optimizer")
    if hasattr(optimizer, "check_state_dict") or not isinstance(optimizer, torch.optim.Optimizer):
        optimizer.load_state_dict(state_dict)  # ours check a state and copy it in place
        return
    try:
        optimizer.load_state_dict(dict(state_dict))
    except FormatError:
        raise
    except (ValueError, KeyError, TypeError, RuntimeError, AttributeError) as error:
        kind = type(optimizer).__name__
        message = f"the saved optimizer state is not that of this {kind}: {first_line(error)}"
        raise FormatError(message, key="optimizer") from None
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    states = state_dict.get("state")
    for number, saved in states.items() if isinstance(states, Mapping) else ():
        if isinstance(number, int) and number < len(parameters) and parameters[number] in optimizer.state:
            loaded = optimizer.state[parameters[number]]
            optimizer.state[parameters[number]] = _with_saved_types(loaded, saved)


def _with_saved_types(loaded: Any, saved: Any) -> Any:
    """Return loaded values, with tensors of another type than the saved ones replaced by those.

    Strings are the saved ones: torch handles a string as a sequence, and loads the repr of a generator.
    """
    if isinstance(saved, str):
        return saved
    if isinstance(loaded, Tensor) and isinstance(saved, Tensor) and loaded.dtype != saved.dtype:
        return saved.to(loaded.device, copy=True)
    if isinstance(loaded, dict) and isinstance(saved, Mapping):
        for name in loaded.keys() & saved.keys():
            loaded[name] = _with_saved_types(loaded[name], saved[name])
    elif isinstance(loaded, list) and isinstance(saved, list) and len(loaded) == len(saved):
        loaded[:] = map(_with_saved_types, loaded, saved)
    elif type(loaded) is tuple and isinstance(saved, tuple) and len(loaded) == len(saved):
        return tuple(map(_with_saved_types, loaded, saved))
    return loaded


def translate_state(state_dict: Mapping[str, Any], names: Mapping[str, str]) -> Saved:
    """Return a saved state with the current names of the state tensors; raise if it is not a state dict."""
    fields = state_dict if isinstance(state_dict, Mapping) else {}
    states, groups = fields.get("state"), fields.get("param_groups")
    are_groups = isinstance(groups, list) and all(isinstance(group, Mapping) for group in groups)
    if not isinstance(states, Mapping) or not are_groups:
        raise FormatError("the saved state is not that of an optimizer", key="optimizer")
    if not all(isinstance(values, Mapping) for values in states.values()):
        raise FormatError("the saved state is not that of an optimizer", key="state")
    translated = {
        number: {names.get(name, name): value for name, value in values.items()}
        for number, values in states.items()
    }
    return {**fields, "state": translated, "param_groups": groups}


def split_combined_state(optimizer: CombinedOptimizer, state_dict: Mapping[str, Any]) -> list[Saved]:
    """Return the state dict of each part of a combined optimizer."""
    parts = optimizer.optimizers
    former = state_dict.get("optimizers") if isinstance(state_dict, Mapping) else None
    if former is not None:
        if not isinstance(former, list) or not all(isinstance(one, dict) for one in former):
            raise FormatError("the saved state is not that of a CombinedOptimizer", key="optimizers")
        if len(former) != len(parts):
            message = f"the saved state has {len(former)} optimizers, this run has {len(parts)}"
            raise FormatError(message, key="optimizers", expected=len(parts), found=len(former))
        return former
    saved = translate_state(state_dict, {})
    groups = saved["param_groups"]
    _check_same_number("parameter groups", len(optimizer.param_groups), len(groups), "param_groups")
    _check_numbering(groups, [len(group["params"]) for group in optimizer.param_groups])
    split, first_group, first = [], 0, 0
    for part in parts:
        own = groups[first_group : first_group + len(part.param_groups)]
        first_group += len(own)
        after = first + sum(len(group["params"]) for group in own)
        state = {n - first: one for n, one in saved["state"].items() if n in range(first, after)}
        renumbered = [{**group, "params": [n - first for n in group["params"]]} for group in own]
        split.append({"state": state, "param_groups": renumbered})
        first = after
    return split


def check_saved_state(optimizer: Optimizer, saved: Saved) -> None:
    """Raise `FormatError` if a translated state is invalid or is of other parameters or of another rule.

    A state of torch's class may lack the state of parameters that were never updated.
    """
    states, groups = saved["state"], saved["param_groups"]
    parameters = optimizer.parameters
    _check_same_number("parameter groups", len(optimizer.param_groups), len(groups), "param_groups")
    is_of_torch = any(optimizer.torch_settings.keys() & group.keys() for group in groups)
    for ours, theirs in zip(optimizer.param_groups, groups, strict=True):
        _check_same_settings(optimizer, ours, theirs)
    _check_numbering(groups, [len(group["params"]) for group in optimizer.param_groups])
    numbers = set(range(len(parameters)))
    if not set(states) <= numbers or (set(states) != numbers and not is_of_torch):
        _check_same_number("parameters", len(parameters), len(states), "state")
        raise FormatError("the saved optimizer state has other parameter numbers", key="state")
    for number, values in states.items():
        count = values.get("step", 0 if is_of_torch else None)
        if isinstance(count, Tensor) and count.numel() == 1 and float(count).is_integer():
            count = int(count)
        if type(count) is not int or not 0 <= count < 2**63:
            message = f"the saved optimizer state of parameter {number} has no valid update count"
            raise FormatError(message, key=f"state.{number}.step", found=count)
        shape = tuple(parameters[number].shape)
        for name in optimizer.state_names:
            found = values.get(name)
            found_shape = tuple(found.shape) if isinstance(found, Tensor) else None
            if found_shape != shape:
                message = (
                    f"the saved optimizer state {name!r} of parameter {number} has the shape {found_shape}, "
                    f"expected {shape}"
                )
                raise FormatError(message, key=f"state.{number}.{name}", expected=shape, found=found_shape)


def _check_same_number(what: str, ours: int, theirs: int, key: str) -> None:
    if ours != theirs:
        message = f"the saved optimizer state has {theirs} {what}, this optimizer has {ours}"
        raise FormatError(message, key=key, expected=ours, found=theirs)


def _check_numbering(groups: list[Mapping[str, Any]], sizes: list[int]) -> None:
    """Raise unless the groups number all parameters from 0 on, and have these sizes."""
    numbers = [group.get("params") for group in groups]
    found = sum(len(each) for each in numbers if isinstance(each, list))
    _check_same_number("parameters", sum(sizes), found, "state")
    first = 0
    for each, size in zip(numbers, sizes, strict=True):
        if each != list(range(first, first + size)):
            message = "the saved parameter groups hold other parameters than those of this optimizer"
            raise FormatError(message, key="param_groups", expected=sizes)
        first += size


def _check_same_settings(optimizer: Optimizer, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Raise `FormatError` if settings are missing, have another type, or change the rule of this class."""
    own = {name: ours[name] for name in (*optimizer.defaults, "params") if name in ours}
    if not own.keys() <= theirs.keys():
        message = f"the saved optimizer settings are {', '.join(map(str, theirs))}, expected {', '.join(own)}"
        raise FormatError(message, key="param_groups", expected=list(own), found=list(theirs))
    for name, value in own.items():
        if name != "params" and not _has_same_type(value, theirs[name]):
            found = theirs[name]
            message = f"the saved optimizer setting {name!r} is {found!r}, expected a value like {value!r}"
            raise FormatError(message, key=name, expected=value, found=found)
    for name, value in optimizer.torch_settings.items():
        if name in theirs and value is not ... and theirs[name] != value:
            message = (
                f"the saved optimizer has {name} = {theirs[name]!r}, which {type(optimizer).__name__} of"
                f" Bytewright does not have; only {value!r} can be loaded"
            )
            raise FormatError(message, key=name, expected=value, found=theirs[name])


def _has_same_type(ours: object, theirs: object) -> bool:
    if isinstance(ours, tuple | list) and isinstance(theirs, tuple | list):
        return len(ours) == len(theirs) and all(map(_has_same_type, ours, theirs))
    numbers = (int, float)
    if isinstance(ours, Tensor | float) and isinstance(theirs, Tensor) and theirs.numel() == 1:
        return True  # torch's learning rates may be tensors
    if isinstance(ours, Tensor) and type(theirs) in numbers:
        return True
    return type(ours) is type(theirs) or (type(ours) in numbers and type(theirs) in numbers)

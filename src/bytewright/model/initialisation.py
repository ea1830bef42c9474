"""The initial weights of a model, as a function of a seed and the names of its modules.

Each built-in module with weights, and each part of a user that has `reset_parameters`, has a random stream of
its own. The seed and the full name of the module select the stream. So the weights of a module depend neither
on the modules before it nor on the process that draws them. A part of a user without `reset_parameters` keeps
the weights of its constructor.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import Module

from bytewright.data.rng import mix_key
from bytewright.registry import is_built_in


def initialise(model: Module, seed: int) -> None:
    """Draw the weights of all modules again, each from its own random stream; the global state is unchanged.

    >>> from bytewright.model.layers import Linear
    >>> left, right = Linear(2, 2), Linear(2, 2)
    >>> initialise(left, seed=1), initialise(right, seed=1)
    (None, None)
    >>> torch.equal(left.weight, right.weight)
    True
    """
    for name, module in find_initialised(model):
        with seeded_by(seed, name):
            module.reset_parameters()  # type: ignore[operator]


@torch.no_grad()
def draw_weights(skeleton: Module, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights that `initialise` would draw, with their names; one module is in memory at a time.

    `skeleton` is a model on torch's meta device, which stores no weights.

    >>> from bytewright.model.layers import Linear
    >>> whole = Linear(2, 2)
    >>> initialise(whole, seed=1)
    >>> ((name, drawn),) = draw_weights(Linear(2, 2, "meta"), seed=1)
    >>> name, torch.equal(drawn, whole.weight)
    ('weight', True)
    """
    for name, module in find_initialised(skeleton):
        whole = copy.deepcopy(module).to_empty(device="cpu")
        with seeded_by(seed, name):
            whole.reset_parameters()  # type: ignore[operator]
        yield from whole.named_parameters(prefix=name)


def find_initialised(module: Module, name: str = "") -> Iterator[tuple[str, Module]]:
    """Yield the modules whose `reset_parameters` draws weights, with their full names.

    A module with that method is responsible for its children. A part of a user without it may have changed
    the weights of its children, so they are not drawn again.
    """
    if _has_own_reset(type(module)):
        yield name, module
    elif is_built_in(type(module)) or isinstance(module, torch.nn.ModuleList):
        for child_name, child in module.named_children():
            yield from find_initialised(child, f"{name}.{child_name}" if name else child_name)


def _has_own_reset(kind: type[Module]) -> bool:
    """Return whether a class has `reset_parameters`, and no later constructor that may set other weights."""
    for base in kind.__mro__:
        if "reset_parameters" in vars(base):
            return True
        if "__init__" in vars(base):
            return False
    return False


@contextlib.contextmanager
def seeded_by(seed: int, name: str) -> Iterator[None]:
    """Seed torch's random numbers on the CPU by `seed` and `name` in the block, and restore them after it."""
    digest = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed also seeds all other devices, and without them formats three stack traces.
        torch.default_generator.manual_seed(mix_key(seed, digest))
        yield

"""Write the tables of recipes.md from the fields of the configs."""

from __future__ import annotations

import dataclasses
import types
from pathlib import Path
from typing import Literal, Union, get_args, get_origin, get_type_hints

from bytewright.model import ModelConfig
from bytewright.registry import REGISTRIES
from bytewright.storage.config_reader import describe_fields
from bytewright.train.config import (
    BudgetConfig,
    DataConfig,
    LossConfig,
    OptimizerConfig,
    ParallelConfig,
    SamplerConfig,
    ScheduleConfig,
    TrainConfig,
)

TYPES = {int: "integer", float: "number", bool: "boolean", str: "text", Path: "path"}
TABLES = {ModelConfig: "model", OptimizerConfig: "optimizer", ScheduleConfig: "schedule"}
TABLES |= {LossConfig: "loss", SamplerConfig: "sampler", ParallelConfig: "parallel"}
PARTS = {registry.key: registry.names() for registry in REGISTRIES}


def as_toml(value):
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int):
        return f"`{value:_}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def type_of(hint):
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (option for option in get_args(hint) if option is not type(None))
    if get_origin(hint) is dict:
        return "table"
    return ", ".join(map(as_toml, get_args(hint))) if get_origin(hint) is Literal else TYPES[hint]


def keys_of(cls):
    hints, meanings = get_type_hints(cls), describe_fields(cls)
    rows = [("key", "values", "default", "meaning")]
    for field in dataclasses.fields(cls):
        if not dataclasses.is_dataclass(hints[field.name]):
            default = "required" if field.default is dataclasses.MISSING else as_toml(field.default)
            if field.default_factory is dict:
                default = "`{}`"
            names = PARTS.get(f"{TABLES.get(cls)}.{field.name}")
            values = ", ".join(map(as_toml, names)) if names else type_of(hints[field.name])
            rows.append((f"`{field.name}`", values, default, meanings[field.name]))
    return rows


FIGURES = [
    # Before the first table
    keys_of(TrainConfig),
    # [model]
    keys_of(ModelConfig),
    # [data]
    keys_of(DataConfig),
    # [budget]
    keys_of(BudgetConfig),
    # [optimizer]
    keys_of(OptimizerConfig),
    # [schedule]
    keys_of(ScheduleConfig),
    # [loss]
    keys_of(LossConfig),
    # [sampler]
    keys_of(SamplerConfig),
    # [parallel]
    keys_of(ParallelConfig),
]

"""Predict the cost of a run before it starts, and add predictions to records that lack them.

Before a run, the machine is the one that will train it. Afterwards it is the one that the run recorded, if
its rates are known.
"""

from __future__ import annotations

import dataclasses
import functools

import torch

from bytewright.account.devices import Device, find_known, measure_device
from bytewright.errors import UsageError
from bytewright.experiments.records import RunRecord
from bytewright.storage.config_reader import build
from bytewright.train.config import TrainConfig
from bytewright.train.costs import describe_costs
from bytewright.train.recipe import unflatten


@functools.cache
def machine_of(device: torch.device) -> Device:
    """Return the rates of a device: from its data sheet if its name is known, measured otherwise."""
    if device.type == "cuda" and (known := find_known(torch.cuda.get_device_name(device))):
        memory = float(torch.cuda.get_device_properties(device).total_memory)
        return dataclasses.replace(known, memory_bytes=memory)
    return measure_device("cuda" if device.type == "cuda" else "cpu")


def compare_record(record: RunRecord) -> RunRecord:
    """Return a record of an earlier version with the costs that it lacks, as far as they can be computed."""
    if "sampling.temperature" in record.settings:
        return record
    try:
        fields = unflatten(record.settings)
        fields.pop("init", None)
        config = build(TrainConfig, fields, source=record.name)
    except UsageError:  # written by another version with other settings
        return record
    name = record.environment.get("cuda")
    device = torch.device("cuda" if name and config.device in ("auto", "cuda") else "cpu")
    costs = describe_costs(config, device, str(name))
    return dataclasses.replace(
        record,
        predicted=costs["predicted"] | dict(record.predicted),  # those made before the run take precedence
        measured=costs["counted"] | dict(record.measured),
    )

"""What a model costs, predicted from its shape: parameters, FLOPs, memory and time.

`account(config)` gives everything at once; each formula has a module of its own, with its derivation, and is
written to be read. Tests hold parameters, FLOPs and caches equal to what a built model has and does, and
memory to a count of what is alive during a step; docs/results has the same on a real GPU.

    account(find_preset("gpt2-xl")).parameters.total
"""

from bytewright.account.devices import DEVICES, Device, find_device, measure_device
from bytewright.account.flops import (
    FlopCount,
    Matmul,
    count_flops,
    flops_utilisation,
    list_matmuls,
    training_flops_per_token,
)
from bytewright.account.inference import InferenceMemory, inference_memory
from bytewright.account.memory import TrainingMemory, largest_batch, training_memory
from bytewright.account.optimizers import UpdateCost, update_cost
from bytewright.account.parameters import ParameterCount, count_parameters
from bytewright.account.peak import peak_flops
from bytewright.account.predict import Training
from bytewright.account.presets import PRESETS, find_preset
from bytewright.account.summary import Account, TimeAccount, account, largest_batches, time_on
from bytewright.account.textbook_memory import Inventory, simplified_inventory
from bytewright.account.time import Part, roofline, training_days
from bytewright.formatting import parse_bytes

__all__ = [
    "DEVICES",
    "PRESETS",
    "Account",
    "Device",
    "FlopCount",
    "InferenceMemory",
    "Inventory",
    "Matmul",
    "ParameterCount",
    "Part",
    "TimeAccount",
    "Training",
    "TrainingMemory",
    "UpdateCost",
    "account",
    "count_flops",
    "count_parameters",
    "find_device",
    "find_preset",
    "flops_utilisation",
    "inference_memory",
    "largest_batch",
    "largest_batches",
    "list_matmuls",
    "measure_device",
    "parse_bytes",
    "peak_flops",
    "roofline",
    "simplified_inventory",
    "time_on",
    "training_days",
    "training_flops_per_token",
    "training_memory",
    "update_cost",
]

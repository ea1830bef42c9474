"""The costs of a model, predicted from its config: parameters, FLOPs, memory and time.

`account(config)` returns all of them at once (`summary`). Read `parameters` and `flops` first; each module
documents its formulas. The parts of a model state their own costs, or `tracing` measures them. `optimizers`
has the update rules, `memory` the peak of a training step, `textbook` a rule of thumb for it, `generation`
the memory of generation, and `ranks` what several ranks store and send. `time` predicts a step from the rates
in `devices`, and `predict` a whole run. `shapes` has model configs.
Tests compare the predictions with built models, and docs/results compares them with measurements on a GPU.
Depends on `model` and `optim`.

    account(find_preset("gpt2-xl")).parameters.total
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bytewright.account.devices import DEVICES, Device, find_device, measure_device, peak_flops
    from bytewright.account.flops import (
        FlopCount,
        count_flops,
        flops_utilisation,
        list_matmuls,
        training_flops_per_token,
    )
    from bytewright.account.generation import InferenceMemory, inference_memory
    from bytewright.account.memory import TrainingMemory, largest_batch, training_memory
    from bytewright.account.optimizers import UpdateCost, state_bytes, update_cost
    from bytewright.account.parameters import ParameterCount, count_parameters
    from bytewright.account.predict import TrainingCosts, TrainingSetup, predict_training, training_costs
    from bytewright.account.ranks import Ranks, predict_rank_memory, sent_bytes
    from bytewright.account.shapes import PRESETS, find_preset, propose_shape
    from bytewright.account.summary import Account, TimeAccount, account, largest_batches, time_on
    from bytewright.account.textbook import TextbookMemory, textbook_estimate
    from bytewright.account.time import StepPart, roofline, training_days
    from bytewright.formatting import parse_bytes
    from bytewright.model.costs import Matmul
else:
    from bytewright import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "DEVICES",
    "PRESETS",
    "Account",
    "Device",
    "FlopCount",
    "InferenceMemory",
    "Matmul",
    "ParameterCount",
    "Ranks",
    "StepPart",
    "TextbookMemory",
    "TimeAccount",
    "TrainingCosts",
    "TrainingMemory",
    "TrainingSetup",
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
    "predict_rank_memory",
    "predict_training",
    "propose_shape",
    "roofline",
    "sent_bytes",
    "state_bytes",
    "textbook_estimate",
    "time_on",
    "training_costs",
    "training_days",
    "training_flops_per_token",
    "training_memory",
    "update_cost",
]

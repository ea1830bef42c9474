"""Training: loss, optimizers, schedules, checkpoints and the loop that joins them.

Read `loss`, `optimizers`, `schedules` and `clip` for the mathematics; `step` and `loop` for how a run goes;
`checkpoint`, `metrics` and `run_folder` for what it leaves on disk. Needs ids only: no text, no native
extension.
"""

from bytewright.data.sampler import get_batch
from bytewright.model.loss import cross_entropy
from bytewright.optim.clip import clip_gradients
from bytewright.optim.reference import SGD, AdamW, Muon
from bytewright.optim.schedules import constant_schedule, cosine_schedule, linear_schedule, wsd_schedule
from bytewright.train.checkpoint import load_checkpoint, load_model, save_checkpoint
from bytewright.train.config import BudgetConfig, DataConfig, OptimizerConfig, ScheduleConfig, TrainConfig
from bytewright.train.loop import TrainResult, resume, train
from bytewright.train.outcome import Ending, RunStatus
from bytewright.train.recipe import read_recipe
from bytewright.train.run import Run

__all__ = [
    "SGD",
    "AdamW",
    "BudgetConfig",
    "DataConfig",
    "Ending",
    "Muon",
    "OptimizerConfig",
    "Run",
    "RunStatus",
    "ScheduleConfig",
    "TrainConfig",
    "TrainResult",
    "clip_gradients",
    "constant_schedule",
    "cosine_schedule",
    "cross_entropy",
    "get_batch",
    "linear_schedule",
    "load_checkpoint",
    "load_model",
    "read_recipe",
    "resume",
    "save_checkpoint",
    "train",
    "wsd_schedule",
]

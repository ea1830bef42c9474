"""Training: configs, the loop, checkpoints, metrics, and `Run`, which reads what a run wrote.

Read `step` for one update, then `loop` for a session of a run. The other modules:

    config, recipe                  the settings of a run; recipes in TOML
    setup, part_check               data, model, optimizer and step of a config; a trial of users' parts
    initial_weights                 start from the weights of another model
    recorder, metrics, console      results of steps; every metric and the log; the display
    evaluate, costs                 validation loss and norms; predicted and counted costs
    checkpoint, checkpoint_list     save and load; list checkpoints without torch
    resume_policy, outcome          what a resume may change; every reason why a run ends, and its status
    run, run_files                  `Run` opens a run by its folder; the files of a run and their writer
    ranks                           what rank 0 writes and decides for the others

Depends on data, model, optim, parallel, account and generate. Training needs token ids only: no text, and no
native extension.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bytewright.data.sampler import get_batch
    from bytewright.model.loss import cross_entropy
    from bytewright.optim.clip import clip_gradients
    from bytewright.optim.reference import SGD, AdamW, Muon
    from bytewright.optim.schedules import constant_schedule, cosine_schedule, linear_schedule, wsd_schedule
    from bytewright.train.checkpoint import load_checkpoint, load_model, save_checkpoint
    from bytewright.train.config import (
        BudgetConfig,
        DataConfig,
        OptimizerConfig,
        ParallelConfig,
        ScheduleConfig,
        TrainConfig,
    )
    from bytewright.train.initial_weights import InitialWeights
    from bytewright.train.loop import TrainResult, resume, train
    from bytewright.train.outcome import Ending, RunStatus
    from bytewright.train.recipe import read_recipe
    from bytewright.train.run import Run
else:
    from bytewright import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "SGD",
    "AdamW",
    "BudgetConfig",
    "DataConfig",
    "Ending",
    "InitialWeights",
    "Muon",
    "OptimizerConfig",
    "ParallelConfig",
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

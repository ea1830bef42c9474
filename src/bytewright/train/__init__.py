"""Training: configs, the loop, checkpoints, metrics, and `Run`, which reads what a run wrote.

Read `step` for one update, then `session/loop` for a session of a run. The other modules:

    config, recipe                  the settings of a run; recipes in TOML
    setup                           data, samplers and model of a config
    session/                        what happens from the start or resume of a run to the end of the process
    metrics, metrics_log, evaluate  every metric; the log of a run; validation loss and norms
    checkpoint, checkpoint_list     save, read and prune checkpoints; list them without torch
    saved_model                     load the model of a run or checkpoint; checkpoints as single files
    outcome                         every reason why a run ends, and its status
    run, run_files                  `Run` opens a run by its folder; the files of a run and their writer
    run_model                       open, measure and import the models of runs

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
    from bytewright.train.config import (
        BudgetConfig,
        DataConfig,
        OptimizerConfig,
        ParallelConfig,
        ScheduleConfig,
        TrainConfig,
    )
    from bytewright.train.outcome import Ending, RunStatus
    from bytewright.train.recipe import read_recipe
    from bytewright.train.run import Run
    from bytewright.train.saved_model import load_checkpoint, load_model, save_checkpoint
    from bytewright.train.session.initial_weights import InitialWeights
    from bytewright.train.session.loop import TrainResult
    from bytewright.train.session.start import resume, train
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

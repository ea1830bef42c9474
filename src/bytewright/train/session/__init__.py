"""One session of a run: from a config or a checkpoint to the end of the budget, or to a signal.

Read `start` (`train` and `resume`), then `loop`, which decides when to step, record, evaluate and save.

    part_check, initial_weights     a trial of users' parts; start from the weights of another model
    resume_policy                   what a resume may change
    recorder, console               results of steps, and the plan of a run with a time budget; the display
    engine                          model, optimizer and step of a config, also of a sharded model
    costs, timing                   predicted and counted costs; the expected time of a run
    ranks                           what rank 0 writes and decides for the others

Depends on the other modules of `train`, except `run`, which calls this package.
"""

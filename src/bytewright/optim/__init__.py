"""Optimizers: SGD, AdamW and Muon, learning-rate schedules, and clipping by the global norm.

Read `reference` first: it defines each update rule, one parameter at a time. `fused` applies the same rules
to whole groups of parameters at once. Depends on `errors` and on the precision helpers of `model.layers`.
"""

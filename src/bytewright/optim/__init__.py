"""Optimizers: SGD, AdamW and Muon, learning-rate schedules, and clipping by the global norm.

Read `reference` first: it defines each update rule, one parameter at a time. `fused` applies the same rules
to whole groups of parameters. By default a run uses `fused`: `apply_clipped` clips and updates in one
compiled function, and `clip.clip_gradients` and `Optimizer.step` are not called. A run with
`optimizer.implementation = "reference"` calls these two. tests/optim compares both implementations. Depends
on `errors` and on the precision helpers of `model.layers`.
"""

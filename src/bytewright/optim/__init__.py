"""Optimizers: SGD, AdamW and Muon, learning-rate schedules, and clipping by the global norm.

All optimizers are `torch.optim.Optimizer` subclasses. Read `reference` first: it defines each update rule,
one parameter at a time. `fused` applies the same rules to whole groups of parameters. By default a run uses
`fused`: `apply_clipped` clips and updates in one compiled function, and `clip.clip_gradients` and
`Optimizer.step` are not called. A run with `optimizer.implementation = "reference"` calls these two, and so
does a run with an optimizer of torch or of a user. Tests compare both implementations. `build` builds the
optimizer that a config names, and `saved_state` checks a saved state before it is loaded. Depends on
`errors`, `registry`, `storage` and on the precision helpers of `model.layers`.
"""

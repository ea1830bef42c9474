"""Sweeps: plan, execute and resume many runs that answer one question, and read their results.

Read `sweep` first: it expands a sweep file (`sweep_file`, `axis_values`) into trials. `plan` finds the state
of each run and predicts its cost; `execute` trains them, or copies an identical run. `records`, `results`
and `inputs` read runs, `listing` filters them, `groups` combines seeds, `loss_metric` compares them.
`corpora` prepares data, `recognition` finds out whether a run was trained on the storybook, and `evaluation/`
samples text and measures what a model has learned. Depends on everything up to `train`.
"""

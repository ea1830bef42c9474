"""Sweeps: many runs that answer one question, planned, executed, resumed and recorded.

Read `sweep` first: it expands a sweep file into trials. `plan` estimates them, `execute` trains them,
`records` and `results` read what they produced, `groups` combines seeds. `corpora`, `stories` and
`story_eval` prepare texts and evaluate generated stories. Depends on everything up to `train`.
"""

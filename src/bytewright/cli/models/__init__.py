"""The commands that use the model of a run: generate text, measure, look inside, serve, export and import.

Start with `generate`. `evaluate` measures losses, and `interpret` prints probabilities and attention weights.
`serve` starts the HTTP server or the studio, and `exchange` converts models. The commands call the packages
`generate`, `train`, `experiments`, `serve`, `studio` and `interop`.
"""

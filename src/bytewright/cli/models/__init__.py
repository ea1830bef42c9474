"""The commands that use the model of a run: generate text, look inside, serve, export and import.

Start with `generate`. `interpret` prints probabilities, losses and attention weights, `serve` starts the HTTP
server, and `exchange` converts models. The commands call the packages `generate`, `serve` and `interop`.
"""

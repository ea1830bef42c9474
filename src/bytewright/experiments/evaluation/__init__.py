"""What the model of a run has learned: samples of its text, and its loss on stories, tokens and facts.

Read `story_eval` first: the losses of a model on documents, compared with their entropy. `token_eval`
computes losses of tokens, `world_eval` assigns them to the choices of a world book, and `stories` samples and
checks stories. Depends on `corpus`, `tokenizer`, `generate` and `train`.
"""

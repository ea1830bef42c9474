"""What the model of a run has learned: samples of its text, and its loss on stories, tokens and facts.

Read `document_eval` first: the losses of a model on documents, compared with their entropy. `world_eval`
assigns the losses of tokens to the choices of a world book, and `stories` samples and checks stories. Depends
on `corpus`, `tokenizer`, `generate` and `train`.
"""

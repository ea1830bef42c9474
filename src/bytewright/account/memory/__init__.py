"""The memory of training and generation, predicted from a config.

Read `training` first: the peak of a training step, and the tensors that the forward pass keeps. `ranks` has
the peak on one of several ranks, `textbook` the rule of thumb of a textbook, and `inference` the memory of
generation. Depends on the other modules of `account`, except `time`, `predict` and
`summary`.
"""

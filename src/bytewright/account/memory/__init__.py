"""The memory of training and generation, predicted from a config.

Read `training` first: the peak of a training step. `activations` lists the tensors that the forward pass
keeps, and `ranks` has the peak on one of several ranks. `textbook` has the rule of thumb of a textbook, and
`inference` the memory of generation. Depends on the other modules of `account`, except `time`, `predict` and
`summary`.
"""

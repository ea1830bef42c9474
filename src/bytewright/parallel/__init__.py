"""Several processes (ranks) that train one model: the process group, and the sum of their gradients.

Read `tree` first: it fixes the order in which gradients are added, so that the number of ranks does not
change the result. `rank_group` is the group of processes. `replicate` sums the gradients of ranks that each
hold the whole model, after or during the backward pass. With "replicate", a single process does not use
torch.distributed. `shard` distributes the rows of a model over the ranks, and `shard_update` updates
them. `rows` computes which rank stores which rows.
"""

"""Lion, an optimizer with one state tensor per parameter instead of AdamW's two (arXiv 2302.06675)."""

import torch

from bytewright.registry import optimizers


@optimizers.register("lion")
class Lion(torch.optim.Optimizer):
    """Steps of equal size: the sign of a mean of momentum and gradient, with decoupled weight decay."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        """Update all parameters that have a gradient."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                direction = torch.lerp(parameter.grad, momentum, beta1).sign()
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.sub_(group["lr"] * direction)
                momentum.lerp_(parameter.grad, 1 - beta2)
        return loss

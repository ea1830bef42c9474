"""The cross-entropy plus a penalty on large logits, the z-loss of PaLM (arXiv 2204.02311)."""

from bytewright.model.loss import of_logits
from bytewright.registry import losses


@losses.register("z_loss")
@of_logits
def z_loss(logits, targets, *, weight: float = 1e-4):
    """Return the cross-entropy of each row plus `weight` times the square of log Z."""
    log_z = logits.logsumexp(dim=-1)
    log_score = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return log_z - log_score + weight * log_z.square()

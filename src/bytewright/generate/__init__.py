"""Text generation from a model: many prompts at once, with a cache of keys and values.

Read `reference` first (generation by definition), then `sampling` (how a token is chosen). `decoder`, with
`packed_weights`, computes the same logits from a cache, and `generator` runs it for a batch; its ids equal
those of `reference`. `device_steps` repeats the steps on the device, `fused_step` takes a step in few kernels
of a GPU, and `transfer` copies without waiting. `slots` and `row_sampling` generate for sequences that join
and leave a batch, with settings of their own. `model_check` decides whether the decoder can run a model or
its own forward must. `interpret` returns probabilities, losses and attention weights of single tokens.
`scoring` computes losses and divides texts that are longer than the context. All of these handle ids; `text`
adds a tokenizer. Depends on `model`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bytewright.generate.generator import Generator, generate, stream
    from bytewright.generate.reference import Completion
    from bytewright.generate.sampling import SamplingConfig
else:
    from bytewright import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

__all__ = ["Completion", "Generator", "SamplingConfig", "generate", "stream"]

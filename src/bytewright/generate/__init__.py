"""Let a model write: continue many prompts at once, with a cache of keys and values. Ids only, never text.

`generate` and `stream` are the doors; `sampling` says how a token is chosen; `reference` is generation by the
definition, which the cached kind must equal.
"""

from bytewright.generate.generate import Completion, Generator, generate, stream
from bytewright.generate.sampling import SamplingConfig

__all__ = ["Completion", "Generator", "SamplingConfig", "generate", "stream"]

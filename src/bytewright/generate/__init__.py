"""Generation: continue many prompts at once, with a cache of keys and values.

`generate` and `stream` are the entry points; `sampling` defines how a token is chosen; `reference` is
generation by the definition, which the cached one must equal. All of these handle ids; `text` handles text.
"""

from bytewright.generate.generator import Generator, generate, stream
from bytewright.generate.reference import Completion
from bytewright.generate.sampling import SamplingConfig

__all__ = ["Completion", "Generator", "SamplingConfig", "generate", "stream"]

"""Bytewright builds language models from raw bytes: tokenizer, model, training, generation, all from scratch.

The data flows left to right through the subpackages, and each depends only on those before it; the public
names live there (`from bytewright.tokenizer import Tokenizer`). Importing this package imports nothing heavy.
"""


def __getattr__(name: str) -> str:
    if name == "__version__":  # looked up only when asked for: reading package metadata takes a while
        from importlib import metadata

        try:
            return metadata.version("bytewright")
        except metadata.PackageNotFoundError:
            return "not installed"
    raise AttributeError(f"module 'bytewright' has no attribute {name!r}")

"""Bytewright builds language models from raw bytes: tokenizer, model, training, generation, all from scratch.

The data flows left to right through the subpackages, and each depends only on those before it; the public
names live there (`from bytewright.tokenizer import Tokenizer`). Importing this package imports nothing heavy.
It sets environment variables that torch and its libraries read once: import it before torch.
"""

from bytewright.torch_environment import prepare as _prepare

_prepare()


def __getattr__(name: str) -> str:
    if name == "__version__":  # looked up only when asked for: reading package metadata takes a while
        from importlib import metadata

        try:
            return metadata.version("bytewright")
        except metadata.PackageNotFoundError:  # run from a source tree
            return _version_of_source()
    raise AttributeError(f"module 'bytewright' has no attribute {name!r}")


def _version_of_source() -> str:
    """Read the version where the source tree states it; package metadata take it from there, too."""
    import tomllib
    from pathlib import Path

    try:
        with open(Path(__file__).parents[2] / "Cargo.toml", "rb") as file:
            return str(tomllib.load(file)["workspace"]["package"]["version"])
    except (OSError, tomllib.TOMLDecodeError, KeyError):
        return "of unknown version"

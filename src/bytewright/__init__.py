"""Language models from raw bytes: tokenizer, model, training and generation, all built from scratch.

The packages in the order of their dependencies: storage, data, corpus, tokenizer, model, optim, account,
generate, train, experiments, report, demo, cli. Each imports only packages before it. Import public names
from them (`from bytewright.tokenizer import Tokenizer`). Importing `bytewright` is fast, but sets environment
variables that torch and its libraries read once: import it before torch.
"""

from bytewright.torch_environment import prepare as _prepare

_prepare()


def __getattr__(name: str) -> str:
    if name == "__version__":  # computed on demand, because reading package metadata is slow
        from importlib import metadata

        try:
            return metadata.version("bytewright")
        except metadata.PackageNotFoundError:  # run from a source tree
            return _version_of_source()
    raise AttributeError(f"module 'bytewright' has no attribute {name!r}")


def _version_of_source() -> str:
    """Return the version from Cargo.toml, which package metadata are made from, too."""
    import tomllib
    from pathlib import Path

    try:
        with open(Path(__file__).parents[2] / "Cargo.toml", "rb") as file:
            return str(tomllib.load(file)["workspace"]["package"]["version"])
    except (OSError, tomllib.TOMLDecodeError, KeyError):
        return "(unknown version)"

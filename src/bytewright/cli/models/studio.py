"""`bytewright studio`: a page with views of runs, tokenizers and models, served on this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from bytewright.cli import console, options
from bytewright.cli.models.serve import KEY_VARIABLE
from bytewright.errors import UsageError

StudioFolder = Annotated[
    Path | None,
    tyro.conf.Positional,
    tyro.conf.arg(metavar="[FOLDER]", help_behavior_hint="(default: runs, or else this folder)"),
]


@dataclass(frozen=True, kw_only=True)
class OpenStudio:
    """Show the runs, tokenizers and models below a folder on a page, until Ctrl-C or SIGTERM.

    Five views: curves of runs while they train, tokens of a text, writing with a model, attention and
    predictions inside a model, and a calculator of costs. The page needs no network. Nothing is written.
    Other machines can connect only if --host allows it; then an API key is required. Install the extra: pip
    install 'bytewright[serve]'.

    For example:
      bytewright studio
      bytewright studio demo --port 9000
      BYTEWRIGHT_API_KEY=... bytewright studio runs --host 0.0.0.0
    """

    folder: StudioFolder = None
    """The folder whose runs and tokenizers the page shows."""

    host: str = "127.0.0.1"
    """The address to listen on; the default accepts connections from this machine only."""

    port: int = 8100
    """The port to listen on; 0 chooses a free one."""

    api_key: Annotated[str | None, tyro.conf.arg(metavar="KEY", help_behavior_hint="(optional)")] = None
    """The page asks for this key. The variable BYTEWRIGHT_API_KEY sets it without showing it in `ps`."""

    allowed_host: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]],
        tyro.conf.arg(metavar="NAME", help_behavior_hint="(optional, repeatable)"),
    ] = ()
    """A further name of this server that the Host header of requests may have."""

    plugin: options.Plugins = ()

    def run(self) -> None:
        """Serve the page until a signal arrives."""
        folder = self.folder or (Path("runs") if Path("runs").is_dir() else Path())
        options.require_exists(folder)
        try:
            from bytewright.serve.guard import GuardOptions
            from bytewright.serve.server import ServerOptions
            from bytewright.studio.server import run_studio
        except ModuleNotFoundError as error:
            if str(error.name).startswith("bytewright"):
                raise
            message = (
                f"the studio needs packages that are not installed ({error}); pip install 'bytewright[serve]'"
            )
            raise UsageError(message) from None
        guard = GuardOptions(
            host=self.host,
            allowed_hosts=self.allowed_host,
            api_key=self.api_key or os.environ.get(KEY_VARIABLE) or None,
        )
        run_studio(
            folder,
            ServerOptions(port=self.port, guard=guard),
            announce=lambda line: console.stderr().print(
                f"{line}, Ctrl-C ends it", soft_wrap=True, highlight=False
            ),
        )

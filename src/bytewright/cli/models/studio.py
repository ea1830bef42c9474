"""`bytewright studio`: a page with views of runs, tokenizers and models, served on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from bytewright.cli import options
from bytewright.cli.models.serve import ServerCommand, announce, needs_extra

StudioFolder = Annotated[
    Path | None,
    tyro.conf.Positional,
    tyro.conf.arg(metavar="[FOLDER]", help_behavior_hint="(default: runs, or else this folder)"),
]


@dataclass(frozen=True, kw_only=True)
class OpenStudio(ServerCommand):
    """Show the runs, tokenizers and models below a folder on a page, until Ctrl-C or SIGTERM.

    The views: curves of runs while they train, tokens of a text, writing with a model, attention and
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

    port: int = 8100
    """The port to listen on; 0 chooses a free one."""

    plugin: options.Plugins = ()

    def run(self) -> None:
        """Serve the page until a signal arrives."""
        folder = self.folder or (Path("runs") if Path("runs").is_dir() else Path())
        options.require_exists(folder)
        with needs_extra("the studio"):
            from bytewright.serve.server import ServerOptions
            from bytewright.studio.app import run_studio
        run_studio(
            folder,
            ServerOptions(port=self.port, guard=self.guard_options()),
            announce=lambda line: announce(f"{line}, Ctrl-C ends it"),
        )

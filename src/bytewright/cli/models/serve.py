"""`bytewright serve` and `studio`: serve the model of a run over HTTP, and a page with views of runs."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from bytewright.cli import Terminated, console, options
from bytewright.errors import UsageError, wrong_value
from bytewright.system import usable_cores

if TYPE_CHECKING:
    from bytewright.serve.guard import GuardOptions
    from bytewright.serve.service import ServedModel

KEY_VARIABLE = "BYTEWRIGHT_API_KEY"
SLOTS = 32


@dataclass(frozen=True, kw_only=True)
class ServerCommand:
    """The options of a command that listens for connections."""

    host: str = "127.0.0.1"
    """The address to listen on; the default accepts connections from this machine only."""
    port: int = 8000
    """The port to listen on; 0 chooses a free one."""
    api_key: Annotated[str | None, options.arg("KEY")] = None
    """Requests must have this key. The variable BYTEWRIGHT_API_KEY sets it without showing it in `ps`."""
    allowed_host: Annotated[options.Repeated, options.arg("NAME", "(optional, repeatable)")] = ()
    """A name that the Host header of requests may have, besides `localhost` and the address. If --host is not
    a loopback address, any name is accepted unless this option is given."""

    def guard_options(self, **limits: Any) -> GuardOptions:
        """Return who may send requests; `limits` are further fields."""
        from bytewright.serve.guard import GuardOptions

        api_key = self.api_key or os.environ.get(KEY_VARIABLE) or None
        return GuardOptions(host=self.host, allowed_hosts=self.allowed_host, api_key=api_key, **limits)


@contextlib.contextmanager
def needs_extra(command: str) -> Iterator[None]:
    """Raise `UsageError` if the block imports a package of the extra `serve` that is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if str(error.name).startswith("bytewright"):
            raise
        message = (
            f"{command} needs packages that are not installed ({error}); install them in the clone of"
            " Bytewright with: pip install '.[serve]'"
        )
        raise UsageError(message) from None


@contextlib.contextmanager
def exits_while_loading() -> Iterator[None]:
    """End the process if a signal ends the block while its model is still being loaded."""
    from bytewright.serve.server import is_loading

    number, word = signal.SIGINT, "interrupted"
    try:
        yield
    except (KeyboardInterrupt, Terminated) as error:
        if not is_loading():
            raise
        if isinstance(error, Terminated):
            number, word = signal.SIGTERM, "terminated"
    # Without an error, the block was ended by a SIGINT that this process ignores, as background jobs do.
    if is_loading():
        print(f"bytewright: {word} while the model was being loaded", file=sys.stderr, flush=True)
        os._exit(128 + number)


@dataclass(frozen=True, kw_only=True)
class Serve(ServerCommand):
    """Serve the model of a run with the completions API of OpenAI, until Ctrl-C or SIGTERM.

    Many requests are generated at the same time. A request with a seed gets the same text whatever else is
    served. Other machines can connect only if --host allows it; then an API key is required. The paths are
    /v1/completions, /v1/models, /tokenize, /detokenize, /health and /metrics. `make setup` installs what the
    server needs; without it, run pip install '.[serve]' in the clone of Bytewright.

    For example:
      bytewright serve runs/tiny
      curl http://127.0.0.1:8000/v1/completions -d '{"prompt": "Once upon a time", "max_tokens": 40}'
      BYTEWRIGHT_API_KEY=... bytewright serve runs/tiny --host 0.0.0.0
    """

    path: options.RunPath
    name: Annotated[str | None, options.arg("NAME")] = None
    """The name of the model in the API; by default the name of the run's folder."""
    slots: Annotated[int | None, options.arg("INT", "(default: 32 or more)")] = None
    """How many texts are generated at the same time; each slot needs memory for a whole context. The default
    is the smallest multiple of --threads from 32 on."""
    threads: Annotated[int | None, options.arg("INT", "(default: all cores but one)")] = None
    """How many threads compute on a CPU; the default leaves a core to the connections."""
    max_waiting: int = 256
    """How many texts may wait for a slot; further requests are answered with 429."""
    max_waiting_tokens: int = 2**18
    """How many tokens, of prompts and new ones, may wait."""
    max_body_kb: int = 1024
    """The largest body of a request, in units of 1,024 bytes."""
    read_seconds: float = 20.0
    """The longest time in which headers (half of it) and body of a request must arrive."""
    write_seconds: float = 30.0
    """The longest time that a client may stop reading its response."""
    drain_seconds: float = 30.0
    """After SIGTERM, the longest time to finish the requests that were accepted."""
    which: options.Which = "best"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """The device; auto: CUDA if available, else the CPU."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """The precision of the computation; auto is that of the run on a GPU, and fp32 elsewhere."""
    plugin: options.Plugins = ()

    def run(self) -> None:
        """Serve until a signal arrives."""
        options.require_exists(self.path)
        for name in ("slots", "threads", "max_waiting", "max_waiting_tokens", "max_body_kb"):
            options.require_at_least(1, getattr(self, name), options.flag_of(name))
        for name in ("read_seconds", "write_seconds"):
            if not getattr(self, name) > 0:
                raise wrong_value(options.flag_of(name), "a number above 0", getattr(self, name))
        if not self.drain_seconds >= 0:
            raise wrong_value("--drain-seconds", "at least 0", self.drain_seconds)
        with needs_extra("serve"):
            from bytewright.serve.server import ServerOptions, serve
            from bytewright.serve.service import EngineOptions
        guard = self.guard_options(max_body_bytes=self.max_body_kb * 1024, read_seconds=self.read_seconds)
        num_threads = self.threads or default_threads(usable_cores())
        if num_threads > usable_cores():
            console.print_remark(
                f"warning: {num_threads} threads compute on {usable_cores()} cores, which is slower than one"
                " thread per core; reduce --threads"
            )
        engine = EngineOptions(
            num_slots=self.slots or default_slots(num_threads),
            max_waiting=self.max_waiting,
            max_waiting_tokens=self.max_waiting_tokens,
        )
        with exits_while_loading():
            serve(
                self._open(num_threads),
                ServerOptions(
                    port=self.port,
                    guard=guard,
                    engine=engine,
                    header_seconds=self.read_seconds / 2,
                    write_seconds=self.write_seconds,
                    drain_seconds=self.drain_seconds,
                ),
                announce=console.print_remark,
            )

    def _open(self, num_threads: int) -> Callable[[], ServedModel]:
        """Check the run, and return a function that loads its model and sets the number of threads."""
        import torch

        from bytewright.train.run_model import open_model

        saved = open_model(self.path, which=self.which)
        tokenizer = saved.run.tokenizer

        def load() -> ServedModel:
            from bytewright.serve.service import ServedModel
            from bytewright.train.setup import select_device

            torch.set_num_threads(num_threads)
            device = select_device(self.device)
            precision = saved.generation_precision(device) if self.precision == "auto" else self.precision
            model = saved.load(device=device, precision=precision).eval()
            return ServedModel(model, tokenizer, self.name or self.path.resolve().name)

        return load


@dataclass(frozen=True, kw_only=True)
class OpenStudio(ServerCommand):
    """Show the runs, tokenizers and models below a folder on a page, until Ctrl-C or SIGTERM.

    The views: curves of runs while they train, tokens of a text, writing with a model, attention and
    predictions inside a model, and a calculator of costs. The page needs no network. Nothing is written.
    Other machines can connect only if --host allows it; then an API key is required. `make setup` installs
    what the page needs; without it, run pip install '.[serve]' in the clone of Bytewright.

    For example:
      bytewright studio
      bytewright studio demo --port 9000
      BYTEWRIGHT_API_KEY=... bytewright studio runs --host 0.0.0.0
    """

    folder: Annotated[
        Path | None, tyro.conf.Positional, options.arg("[FOLDER]", "(default: runs, or else this folder)")
    ] = None
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
            announce=console.print_remark,
        )


def default_threads(num_cores: int) -> int:
    """Return OMP_NUM_THREADS if it is set, else all cores but one.

    Requests and responses are handled on the remaining core. Without it, every operation of the model waits
    for a thread that is not running.
    """
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdigit() and int(given) else max(1, num_cores - 1)


def default_slots(num_threads: int) -> int:
    """Return the smallest multiple of the number of threads that is at least 32.

    Threads then process whole rows, which have the same bits in every slot.

    >>> [default_slots(num_threads) for num_threads in (1, 2, 12, 48)]
    [32, 32, 36, 48]
    """
    return num_threads * -(-SLOTS // num_threads)

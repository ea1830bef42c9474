"""`bytewright serve`: answer requests for completions with the model of a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from bytewright.cli import console, options
from bytewright.errors import UsageError
from bytewright.system import usable_cores

if TYPE_CHECKING:
    from bytewright.serve.service import LoadedModel

KEY_VARIABLE = "BYTEWRIGHT_API_KEY"
SLOTS = 32


@dataclass(frozen=True, kw_only=True)
class Serve:
    """Serve the model of a run with the completions API of OpenAI, until Ctrl-C or SIGTERM.

    Many requests are generated at the same time. A request with a seed gets the same text whatever else is
    served. Other machines can connect only if --host allows it; then an API key is required. The paths are
    /v1/completions, /v1/models, /tokenize, /detokenize, /health and /metrics. Install the extra: pip install
    'bytewright[serve]'.

    For example:
      bytewright serve runs/tiny
      curl http://127.0.0.1:8000/v1/completions -d '{"prompt": "Once upon a time", "max_tokens": 40}'
      BYTEWRIGHT_API_KEY=... bytewright serve runs/tiny --host 0.0.0.0
    """

    path: options.RunPath

    host: str = "127.0.0.1"
    """The address to listen on; the default accepts connections from this machine only."""

    port: int = 8000
    """The port to listen on; 0 chooses a free one."""

    api_key: Annotated[str | None, tyro.conf.arg(metavar="KEY", help_behavior_hint="(optional)")] = None
    """Clients must send this key. The variable BYTEWRIGHT_API_KEY sets it without showing it in `ps`."""

    allowed_host: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]],
        tyro.conf.arg(metavar="NAME", help_behavior_hint="(optional, repeatable)"),
    ] = ()
    """A further name of this server that the Host header of requests may have."""

    name: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="(optional)")] = None
    """The name of the model in the API; by default the name of the run's folder."""

    slots: Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="(default: about 32)")] = (
        None
    )
    """How many texts are generated at the same time; each slot needs memory for a whole context."""

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

    which: Literal["best", "last"] = "best"
    """The checkpoint of the run."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """The device; auto: CUDA if available, else the CPU."""

    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """The precision of the computation; auto is that of the run on a GPU, and fp32 elsewhere."""

    plugin: options.Plugins = ()

    def run(self) -> None:
        """Serve until a signal arrives."""
        options.require_exists(self.path)
        for value, option in (
            (self.slots, "--slots"),
            (self.max_waiting, "--max-waiting"),
            (self.max_body_kb, "--max-body-kb"),
        ):
            options.require_at_least(1, value, option)
        try:
            from bytewright.serve.guard import GuardOptions
            from bytewright.serve.server import ServerOptions, serve
            from bytewright.serve.service import EngineOptions
        except ModuleNotFoundError as error:
            if str(error.name).startswith("bytewright"):
                raise
            message = (
                f"serve needs packages that are not installed ({error}); pip install 'bytewright[serve]'"
            )
            raise UsageError(message) from None
        guard = GuardOptions(
            host=self.host,
            allowed_hosts=self.allowed_host,
            api_key=self.api_key or os.environ.get(KEY_VARIABLE) or None,
            max_body_bytes=self.max_body_kb * 1024,
            read_seconds=self.read_seconds,
        )
        engine = EngineOptions(
            num_slots=self.slots or default_slots(usable_cores()),
            max_waiting=self.max_waiting,
            max_waiting_tokens=self.max_waiting_tokens,
        )
        serve(
            self._open(),
            ServerOptions(
                port=self.port,
                guard=guard,
                engine=engine,
                header_seconds=self.read_seconds / 2,
                write_seconds=self.write_seconds,
                drain_seconds=self.drain_seconds,
            ),
            announce=lambda line: console.stderr().print(line, soft_wrap=True, highlight=False),
        )

    def _open(self) -> Callable[[], LoadedModel]:
        """Check the run, and return a function that loads its model."""
        from bytewright.train.run import open_model

        saved = open_model(self.path, which=self.which)
        tokenizer = saved.run.tokenizer

        def load() -> LoadedModel:
            from bytewright.serve.service import LoadedModel
            from bytewright.train.setup import select_device

            device = select_device(self.device)
            precision = saved.generation_precision(device) if self.precision == "auto" else self.precision
            model = saved.load(device=device, precision=precision).eval()
            return LoadedModel(model, tokenizer, self.name or self.path.resolve().name)

        return load


def default_slots(num_cores: int) -> int:
    """Return a number of slots that is a multiple of the number of cores, about 32.

    Threads then process whole rows, which have the same bits in every slot.

    >>> [default_slots(num_cores) for num_cores in (1, 2, 12, 48)]
    [32, 32, 36, 48]
    """
    return num_cores * -(-SLOTS // num_cores)

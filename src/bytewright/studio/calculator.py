"""The endpoints of the view Calculator: the choices of its controls, and the predicted costs.

The page sends the shape of a model, the batch, the optimizer and the device. All figures are computed by
`bytewright.account`; the page computes none.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from bytewright.account import (
    DEVICES,
    PRESETS,
    Device,
    TrainingSetup,
    count_flops,
    count_parameters,
    find_device,
    propose_shape,
    training_costs,
    training_memory,
)
from bytewright.account.shapes import FEWEST, MOST, format_table
from bytewright.errors import UsageError
from bytewright.model import ModelConfig
from bytewright.registry import optimizers
from bytewright.serve.protocol import check_keys, json_response, read_body, read_integer, read_number
from bytewright.storage.json_reader import Json
from bytewright.studio.context import Studio
from bytewright.train.metrics import finite

SIZES = {
    "vocab_size": (16, 2**20),
    "context_length": (1, 2**20),
    "d_model": (2, 2**17),
    "num_layers": (1, 1024),
    "num_heads": (1, 2**12),
    "d_ff": (1, 2**20),
    "num_kv_heads": (1, 2**12),
}
"""The limits of the sizes that a page can send."""
OPTIONAL = ("d_ff", "num_kv_heads")
PREDICTION_KEYS = ("model", "batch_size", "accumulate", "optimizer", "precision", "device", "num_tokens")
MAX_BATCH, MAX_TOKENS = 2**20, 10**18
PRECISIONS = ("bf16", "fp32")
THIS_CPU = "cpu"


def make_routes(studio: Studio) -> list[BaseRoute]:
    """Return the endpoints."""

    async def list_choices(request: Request) -> Response:
        return json_response(
            {
                "presets": {name: describe_shape(preset) for name, preset in PRESETS.items()},
                "devices": [[name, device.name] for name, device in DEVICES.items()]
                + [[THIS_CPU, "this CPU (measured)"]],
                "optimizers": list(optimizers.names()),
                "parameters": [FEWEST, MOST],
            }
        )

    async def predict(request: Request) -> Response:
        body = await read_body(request, PREDICTION_KEYS)
        return json_response(await studio.compute(predict_costs, body))

    async def propose(request: Request) -> Response:
        body = await read_body(request, ["parameters", "context_length"])
        wanted = read_number(body["parameters"], 0.0)
        length = read_integer(body.get("context_length"), 1024, least=1, most=SIZES["context_length"][1])
        shape = await studio.compute(propose_shape, wanted, context_length=length)
        return json_response(describe_shape(shape))

    return [
        Route("/api/calculator", list_choices),
        Route("/api/calculator/predict", predict, methods=["POST"]),
        Route("/api/calculator/propose", propose, methods=["POST"]),
    ]


def describe_shape(config: ModelConfig) -> dict[str, Any]:
    """Return the sizes of a model that the page has controls for."""
    sizes = {name: getattr(config, name) for name in SIZES}
    return sizes | {
        "d_ff": config.ffn_width,
        "num_kv_heads": config.kv_heads,
        "tie_embeddings": config.tie_embeddings,
    }


def predict_costs(body: Json) -> dict[str, Any]:
    """Return the predicted costs of the model and the training that a request describes."""
    config = read_model(body["model"])
    device = read_device(body["device"])
    batch_size = read_integer(body.get("batch_size"), 1, least=1, most=MAX_BATCH)
    accumulate = read_integer(body.get("accumulate"), 1, least=1, most=batch_size)
    if batch_size % accumulate:
        message = (
            f"accumulate must divide batch_size {batch_size}, but is {accumulate}; choose one of its divisors"
        )
        raise UsageError(message, key="accumulate", found=accumulate)
    optimizer, precision = body["optimizer"].as_text(), body["precision"].as_text()
    optimizers.check(optimizer, "optimizer")
    if precision not in PRECISIONS:
        raise body["precision"].error(f"one of {', '.join(PRECISIONS)}")
    setup = TrainingSetup(
        batch_size=batch_size // accumulate,
        accumulate=accumulate,
        num_tokens=int(read_number(body.get("num_tokens"), 0.0)),
        precision="bf16" if precision == "bf16" else "fp32",
        compiled=device.kind == "cuda",
        optimizer=optimizer,
        device_kind=device.kind,
        device=device,
    )
    if not 0 <= setup.num_tokens <= MAX_TOKENS:
        raise body["num_tokens"].error(f"a number from 0 to {MAX_TOKENS:,}")
    return describe_prediction(config, setup)


def describe_prediction(config: ModelConfig, setup: TrainingSetup) -> dict[str, Any]:
    """Return all figures of the page."""
    costs, parameters, flops = training_costs(config, setup), count_parameters(config), count_flops(config)
    memory = training_memory(
        config,
        batch_size=setup.batch_size,
        precision=setup.precision,
        optimizer=setup.optimizer,
        compiled=setup.compiled,
        device=setup.device_kind,
    )
    figures: dict[str, Any] = finite(
        {
            "costs": costs.to_dict(),
            "parameters": {
                "embeddings": parameters.embeddings,
                "attention": parameters.attention,
                "feed_forward": parameters.feed_forward,
                "norms": parameters.norms_in_blocks + parameters.final_norm,
                "head": parameters.head,
            },
            "flops_per_token": {
                name: count / config.context_length for name, count in flops.by_component().items()
            },
            "training_flops_per_token": flops.training / config.context_length,
            "memory": memory.peak_moment.parts,
            "memory_moment": memory.peak_moment.name,
            "device": setup.device.name if setup.device else "",
            "tokens_per_step": setup.accumulate * setup.batch_size * config.context_length,
            "recipe": format_table(config),
        }
    )
    return figures


def read_model(body: Json) -> ModelConfig:
    """Return the model of a request."""
    check_keys(body, [*SIZES, "tie_embeddings"])
    sizes: dict[str, Any] = {}
    for name, (least, most) in SIZES.items():
        if name not in OPTIONAL or body.get(name).value is not None:
            sizes[name] = read_integer(body[name], 0, least=least, most=most)
    return ModelConfig(**sizes, tie_embeddings=body.get("tie_embeddings").as_boolean(False))


def read_device(name: Json) -> Device:
    """Return the device of a request; only this CPU is measured, once."""
    key = name.as_text()
    if key == THIS_CPU:
        return _measure_cpu()
    if key not in DEVICES:
        raise name.error(f"one of {', '.join([*DEVICES, THIS_CPU])}")
    return DEVICES[key]


@cache
def _measure_cpu() -> Device:
    return find_device(THIS_CPU)

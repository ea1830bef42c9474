"""The endpoints of the view tokenizer."""

from __future__ import annotations

from starlette.routing import BaseRoute

from bytewright.studio.context import Studio


def make_routes(studio: Studio) -> list[BaseRoute]:
    """Return the endpoints."""
    return []

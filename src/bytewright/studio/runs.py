"""The endpoints of the view Runs."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from bytewright.serve.completions import json_response
from bytewright.studio.context import Studio


def make_routes(studio: Studio) -> list[BaseRoute]:
    """Return the endpoints."""

    async def list_runs(request: Request) -> Response:
        scan = await studio.compute(studio.folder.scan)
        return json_response({"runs": [{"id": run.id, "name": run.name} for run in scan.runs.values()]})

    return [Route("/api/runs", list_runs)]

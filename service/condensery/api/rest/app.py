"""The REST door as an ASGI app: FastAPI with every route, behind the front."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI

import condensery
from condensery.api.rest.describing import describe
from condensery.api.rest.doors import Guarded, guard
from condensery.api.rest.front import Front
from condensery.api.rest.routes import sections
from condensery.api.rest.routing import Route, Table
from condensery.jobs.services import Limits, Services
from condensery.origins import Origins


class App(FastAPI):
    """FastAPI, described by our table: it doesn't know what bodies hold, nor which errors come.

    Args:
        table: The routes, in sections.
        limits: What one request may ask for.
    """

    def __init__(self, table: Mapping[str, tuple[Route, ...]], limits: Limits) -> None:
        super().__init__(
            version=condensery.__version__, openapi_url=None, docs_url=None, redirect_slashes=False
        )
        self._table = table
        self._limits = limits

    def openapi(self) -> dict[str, Any]:
        """Describe the routes; made when first asked for."""
        if self.openapi_schema is None:
            self.openapi_schema = describe(self._table, self._limits)
        return self.openapi_schema


def build(services: Services, origins: Origins | None = None) -> Front:
    """Return the REST door as an ASGI app.

    Args:
        services: The running parts.
        origins: Whose web pages may ask, and by which names; by default its own, by any.
    """
    table = sections(open_metrics=services.limits.open_metrics)
    routes = [route for section in table.values() for route in section]
    app = App(table, services.limits)
    hot: dict[tuple[str, str], Guarded] = {}
    for route in routes:
        guarded = guard(route.endpoint, services, route.family)
        if route.hot:
            hot[route.method, route.path] = guarded
        app.add_api_route(route.path, guarded, methods=[route.method], response_model=None)
    return Front(app, Table(routes), hot, services, origins or Origins())

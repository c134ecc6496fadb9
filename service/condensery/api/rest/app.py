"""The app: FastAPI with every route of the table, behind the middleware."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI

import condensery
from condensery.api.rest.endpoint import GuardedEndpoint, Route, RouteTable, guard_endpoint
from condensery.api.rest.middleware import Middleware
from condensery.api.rest.openapi import describe_routes
from condensery.api.rest.routes import route_sections
from condensery.jobs.services import RequestLimits, Services
from condensery.origins import Origins


class App(FastAPI):
    """FastAPI, described by our table, since it knows neither the routes' bodies nor their errors.

    Args:
        table: The routes, in sections.
        limits: Of requests, for the description.
    """

    def __init__(self, table: Mapping[str, tuple[Route, ...]], limits: RequestLimits) -> None:
        super().__init__(
            version=condensery.__version__, openapi_url=None, docs_url=None, redirect_slashes=False
        )
        self._table = table
        self._limits = limits

    def openapi(self) -> dict[str, Any]:
        """Return the description, which is made at the first call."""
        if self.openapi_schema is None:
            self.openapi_schema = describe_routes(self._table, self._limits)
        return self.openapi_schema


def build_app(services: Services, origins: Origins | None = None) -> Middleware:
    """Return the REST API as an ASGI app.

    Args:
        services: The running parts.
        origins: Which web pages and host names are allowed; by default its own pages, any name.
    """
    table = route_sections(open_metrics=services.limits.open_metrics)
    routes = [route for section in table.values() for route in section]
    app = App(table, services.limits)
    hot: dict[tuple[str, str], GuardedEndpoint] = {}
    for route in routes:
        guarded = guard_endpoint(route.endpoint, services, route.family)
        if route.hot:
            hot[route.method, route.path] = guarded
        app.add_api_route(route.path, guarded, methods=[route.method], response_model=None)
    return Middleware(app, RouteTable(routes), hot, services, origins or Origins())

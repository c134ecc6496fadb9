"""The REST API as an ASGI app: the table of routes, each endpoint guarded, and the middleware."""

from functools import cache, partial

from condensery.api.rest.endpoint import RouteTable, guard_endpoint
from condensery.api.rest.middleware import Middleware
from condensery.api.rest.openapi import describe_routes
from condensery.api.rest.routes import route_sections
from condensery.jobs.services import Services
from condensery.origins import Origins


def build_app(services: Services, origins: Origins | None = None) -> Middleware:
    """Return the REST API as an ASGI app.

    Args:
        origins: Which web pages and host names are allowed; by default its own pages, any name.
    """
    sections = route_sections(open_metrics=services.limits.open_metrics)
    routes = [route for section in sections.values() for route in section]
    endpoints = {
        (route.method, route.path): guard_endpoint(route.endpoint, services, route.family)
        for route in routes
    }
    describe = cache(partial(describe_routes, sections, services.limits))
    return Middleware(RouteTable(routes), endpoints, describe, services, origins or Origins())

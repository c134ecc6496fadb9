"""How good a model was measured to be: its report, its card, its plots."""

from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import Response

from condensery.api.rest.doors import reply
from condensery.errors import InputError, shorten
from condensery.jobs.reports import model_card, model_plot, model_report
from condensery.jobs.services import Services

FORMATS = ("json", "markdown")
MARKDOWN = "text/markdown"
# What a model's publisher wrote is handed out as it is: no browser may take it for a page of ours.
AS_IT_IS = {"x-content-type-options": "nosniff"}


async def show_report(request: Request, services: Services) -> Response:
    """Return what a model was measured at, or its card, where Markdown is asked for."""
    name = request.path_params["name"]
    headers = {**AS_IT_IS, "vary": "accept"}
    if _format(request) == "json":
        return reply(asdict(await model_report(services, name)), headers=headers)
    card = await model_card(services, name)
    return Response(card, headers=headers, media_type=MARKDOWN)


async def show_plot(request: Request, services: Services) -> Response:
    """Return a plot of a model's report; the report lists their names."""
    name, plot = request.path_params["name"], request.path_params["plot"]
    content = await model_plot(services, name, plot)
    return Response(content, headers=AS_IT_IS, media_type="image/png")


def _format(request: Request) -> str:
    """Return which form is asked for: by the query, else by the header.

    Raises:
        InputError: The query names another.
    """
    wanted = request.query_params.get("format")
    if wanted is None:
        return "markdown" if _prefers_markdown(request.headers.get("accept", "")) else "json"
    if wanted not in FORMATS:
        raise InputError(
            f"format: {shorten(wanted)} is not one of {', '.join(FORMATS)}.",
            field="format",
            value=wanted,
        )
    return wanted


def _prefers_markdown(accept: str) -> bool:
    """Tell whether Markdown is named, and not after JSON; ``*/*`` takes what comes."""
    weights = {MARKDOWN: 0.0, "application/json": 0.0}
    for part in accept.split(","):
        media, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if media in weights:
            weights[media] = _weight(parameters)
    return weights[MARKDOWN] > weights["application/json"]


def _weight(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0

"""Texts to labels, as TEI's clients ask for them."""

from starlette.requests import Request
from starlette.responses import Response

from condensery.api.rest.bodies import read_body
from condensery.api.rest.doors import about
from condensery.api.rest.writing import TEXTS, reply_list
from condensery.jobs.accounting import account
from condensery.jobs.classify import classify
from condensery.jobs.services import Services
from condensery.schemas import TeiPredictRequest


async def tei_predict(request: Request, services: Services) -> Response:
    """Classify texts or pairs: a list of labels, or of a list of inputs a list of those."""
    return await predict_as_tei(await read_body(request, services, TeiPredictRequest), services)


async def predict_as_tei(body: TeiPredictRequest, services: Services) -> Response:
    """Answer a request that was read."""
    with account(services, body.model, "classify", "rest"):
        inputs = body.inputs if isinstance(body.inputs, list) else [body.inputs]
        result = await classify(
            services,
            inputs,
            model=body.model,
            truncate=body.truncate is not False,
            side=body.truncation_direction,
            raw_scores=body.raw_scores,
        )
        with services.metrics.stage(result.model, "serialize"):
            rows = [
                [{"score": one.score, "label": one.label} for one in item] for item in result.items
            ]
            found = rows if isinstance(body.inputs, list) else rows[0]
            return await reply_list(found, TEXTS, headers=about(result))

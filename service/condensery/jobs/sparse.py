"""Texts to weights by token: no kind of model here has them, and that is said as a job would."""

from typing import NoReturn

from condensery.errors import ModelCannot
from condensery.jobs.services import Services


async def embed_sparse(services: Services, text: str, *, model: str | None = None) -> NoReturn:
    """Refuse a text's sparse vector, by the model that it was asked of.

    Raises:
        ModelNotFound: No such model.
        ModelCannot: It gives none.
    """
    del text
    name = services.pool.encoder(model).info.name
    raise ModelCannot(
        f"model {name!r} gives dense vectors only; no model here gives sparse ones.",
        field="model",
        value=name,
    )

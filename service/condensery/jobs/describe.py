"""What serves here, as TEI's clients ask for it: one model and the limits of a request."""

from dataclasses import dataclass

from condensery.errors import ModelNotFound, Unavailable
from condensery.jobs.services import Services
from condensery.values import Kind, ModelInfo

KINDS: dict[str, tuple[Kind, ...]] = {
    "embed": ("encoder",),
    "rerank": ("oscar-pair", "reranker"),
    "predict": ("classifier", "reranker"),
    "answer": ("oscar-pair",),
}
TOKENIZATION_WORKERS = 2


@dataclass(frozen=True, slots=True)
class Described:
    """A model and what one request to it may ask for.

    Attributes:
        model: What runs.
        max_concurrent_requests: In the house at once.
        max_batch_tokens: Of one request's texts together.
        max_client_batch_size: Texts of one request.
        tokenization_workers: Threads that tokenise.
    """

    model: ModelInfo
    max_concurrent_requests: int
    max_batch_tokens: int
    max_client_batch_size: int
    tokenization_workers: int = TOKENIZATION_WORKERS


def capabilities(services: Services) -> dict[str, list[ModelInfo]]:
    """Return which models can do what, by the task's name in TEI's ``/info``."""
    models = services.pool.models()
    return {task: [one for one in models if one.kind in kinds] for task, kinds in KINDS.items()}


def describe(services: Services, name: str | None = None) -> Described:
    """Describe a model; None is the default one: an encoder, else a pair, else what there is.

    Raises:
        ModelNotFound: No such model serves.
        Unavailable: None does.
    """
    model = _default(services) if name is None else _named(services, name)
    most = services.limits.max_items
    return Described(
        model=model,
        max_concurrent_requests=services.admission.max_requests,
        max_batch_tokens=model.max_tokens * most,
        max_client_batch_size=most,
    )


def classifies(services: Services, name: object) -> bool:
    """Tell whether a model, or (None) the default one, is there for classes rather than vectors."""
    try:
        return (name is None or isinstance(name, str)) and (
            describe(services, name).model.kind in KINDS["predict"]
        )
    except (ModelNotFound, Unavailable):
        return False


def _default(services: Services) -> ModelInfo:
    able = capabilities(services)
    found = next(iter([*able["embed"], *able["answer"], *able["predict"]]), None)
    if found is None:
        raise Unavailable("No model serves; /v1/models would be empty.")
    return found


def _named(services: Services, name: str) -> ModelInfo:
    pool = services.pool
    faults: list[ModelNotFound] = []
    for find in (pool.encoder, pool.reader, pool.classifier):
        try:
            return find(name).info
        except ModelNotFound as error:
            faults.append(error)
    raise faults[0]

"""What a running pair says of itself."""

from typing import TYPE_CHECKING

from condensery.runtime.pair import Pair
from condensery.values import ModelInfo, PairTraits

if TYPE_CHECKING:
    from condensery.store.manifest import Defaults


def info_of(
    pair: Pair, *, name: str, fingerprint: str = "", licence: str = "", created: int = 0
) -> ModelInfo:
    """Return what ``/v1/models`` shows of a pair."""
    return ModelInfo(
        name=name,
        kind="oscar-pair",
        method="oscar",
        fingerprint=fingerprint,
        dims=None,
        max_tokens=pair.texts.text_tokens,
        dtype=str(pair.generator.dtype).removeprefix("torch."),
        device=", ".join(dict.fromkeys(map(str, pair.devices))),
        licence=licence,
        created=created,
    )


def traits_of(pair: Pair, defaults: "Defaults | None" = None) -> PairTraits:
    """Return what a pair can do, and does where nothing is asked for."""
    texts = pair.texts
    own = {} if defaults is None else defaults.model_dump(exclude_none=True)
    return PairTraits(texts.vectors, texts.rates, texts.scores, **own)

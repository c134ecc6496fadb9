"""What a model must pass before its first request: warm, finite, and the same each time."""

import numpy as np

from condensery.answers import CompressedPassage
from condensery.errors import CondenseryError, ModelFault
from condensery.runtime.classifier import Classifier
from condensery.runtime.encoder import Encoder
from condensery.runtime.reader import Reader
from condensery.values import Floats

Running = Encoder | Reader | Classifier

# Twice the same input, alone each time. Kernels that add in no fixed order differ in the last
# digits of bf16; weights that are still being written, or a race, differ in the first.
RELATIVE, ABSOLUTE = 2e-2, 2e-3
PROBES = ("a river", "The river is 1,200 kilometres long, and ends in a delta of many arms.")


async def prove(model: Running) -> None:
    """Warm a model up, and see whether it says something finite, and the same twice.

    Raises:
        ModelFault: It does not.
        CondenseryError: It fails on plain text.
    """
    await model.warm_up()
    first, second = await _outputs(model), await _outputs(model)
    for one, other in zip(first, second, strict=True):
        if not np.isfinite(one).all():
            raise ModelFault(f"{model.info.name}: NaN or infinity came out of plain text")
        if not np.allclose(one, other, rtol=RELATIVE, atol=ABSOLUTE):
            most = float(np.abs(one - other).max())
            raise ModelFault(
                f"{model.info.name}: the same text gave other numbers the second time, "
                f"by up to {most:.3g}"
            )


async def _outputs(model: Running) -> list[Floats]:
    if isinstance(model, Encoder):
        return [(await model.embed([text])).vectors for text in PROBES]
    if isinstance(model, Classifier):
        return [(await model.classify([text])).logits for text in PROBES]
    found = [(await model.compress(PROBES[0], [text]))[0] for text in PROBES]
    return [_numbers(one) for one in found]


def _numbers(found: CompressedPassage | CondenseryError) -> Floats:
    if isinstance(found, CondenseryError):
        raise found
    relevance = 0.0 if found.relevance is None else found.relevance
    return np.append(found.memory.ravel(), np.float32(relevance))

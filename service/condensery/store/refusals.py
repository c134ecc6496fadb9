"""Why a published checkpoint is refused, each by its own name.

They never leave by a transport (an import is a command), so the tree in ``condensery.errors``
need not have them; REST and gRPC would answer as for their parents there.
"""

from collections.abc import Sequence

from condensery.errors import CorruptModel, StoreError

SHOWN = 5


class MissingTensors(CorruptModel):
    """Weights that the network needs are not in the checkpoint."""


class UnknownTensors(CorruptModel):
    """The checkpoint holds weights that the network has no place for."""


class MisshapenTensors(CorruptModel):
    """A weight is of another shape than the network's."""


class HalvesMismatch(StoreError):
    """The compressor's vectors are not what the generator reads."""


class PickledCode(StoreError):
    """A pickle names code to be run, and is therefore not read."""


def listed(names: Sequence[str]) -> str:
    """Return the first few of these names, and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{more}"

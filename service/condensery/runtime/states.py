"""What each stored model does: for the list of versions, and the metrics."""

import asyncio
from typing import TYPE_CHECKING

from condensery.runtime.opening import Opener
from condensery.store.manifest import BrokenModel, StoredModel
from condensery.values import ModelState, ModelVersion

if TYPE_CHECKING:
    from condensery.runtime.pool import RunningModels

STATES: tuple[ModelState, ...] = ("READY", "LOADING", "UNLOADING", "UNAVAILABLE")


class States:
    """Tells what models do; who changes that writes it here.

    Args:
        pool: Whose models.
        opener: Where they are stored, and where they count.

    Attributes:
        loading: The version that is being loaded, by name.
        leaving: Name and version of those that finish their last requests.
        failures: Why a version could not be loaded, by name and version.
    """

    def __init__(self, pool: "RunningModels", opener: Opener) -> None:
        self.loading: dict[str, str] = {}
        self.leaving: list[tuple[str, str]] = []
        self.failures: dict[tuple[str, str], str] = {}
        self._pool = pool
        self._opener = opener

    async def versions(self) -> list[ModelVersion]:
        """List every stored version of every model that could serve, and what serves unstored."""
        listing = await asyncio.to_thread(self._opener.store.list, check=False)
        found: dict[tuple[str, str], ModelVersion] = {}
        for entry in listing:
            if isinstance(entry, BrokenModel):
                key = entry.name, entry.path.name
                found[key] = ModelVersion(*key, "UNAVAILABLE", entry.reason)
            elif entry.manifest.kind != "language-model":
                found.setdefault((entry.name, entry.version), self._state(entry))
        for info in self._pool.models():  # its files may have gone since
            key = info.name, info.version
            found[key] = ModelVersion(*key, "READY")
        return [found[key] for key in sorted(found, key=lambda key: (key[0], key[1].zfill(20)))]

    def tell(self, name: str) -> None:
        """Show in the metrics what a model does."""
        metrics = self._opener.metrics
        if metrics is None:
            return
        serving = self._pool.serving(name)
        counts = {
            "READY": serving is not None,
            "LOADING": name in self.loading,
            "UNLOADING": any(own == name for own, _ in self.leaving),
        }
        counts["UNAVAILABLE"] = not any(counts.values())
        for state in STATES:
            metrics.model_state.labels(name, state.lower()).set(counts[state])
        metrics.model_loaded.labels(name).set(serving is not None)
        if serving is not None:
            metrics.model_load_seconds.labels(name).set(serving.seconds)
        memory = {} if serving is None else serving.memory
        for device in {str(team.device) for team in self._pool.teams} | set(memory):
            metrics.model_memory_bytes.labels(name, device).set(memory.get(device, 0))

    def _state(self, stored: StoredModel) -> ModelVersion:
        key = name, version = stored.name, stored.version
        serving = self._pool.serving(name)
        if self.loading.get(name) == version:
            return ModelVersion(*key, "LOADING")
        if serving is not None and serving.stored.version == version:
            return ModelVersion(*key, "READY")
        if key in self.leaving:
            return ModelVersion(*key, "UNLOADING")
        # What was refused at the start names its version itself.
        refused = "" if serving is not None else self._pool.refused().get(name, "")
        return ModelVersion(*key, "UNAVAILABLE", self.failures.get(key, refused))

"""The workers of each device."""

import torch

from condensery.runtime.workers import Workers


class Teams:
    """Workers by device, each team started when it is first asked for.

    Args:
        count: Threads of a team; None is what suits the device.
    """

    def __init__(self, count: int | None) -> None:
        self._count = count
        self._teams: dict[torch.device, Workers] = {}

    def on(self, device: torch.device) -> Workers:
        """Return the team of a device."""
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        if device not in self._teams:
            self._teams[device] = Workers(self._count, device)
        return self._teams[device]

    def all(self) -> tuple[Workers, ...]:
        """Return every team there is."""
        return tuple(self._teams.values())

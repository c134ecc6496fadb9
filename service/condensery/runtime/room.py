"""What may run in an engine at the same time."""

from dataclasses import dataclass

import torch

from condensery.networks.stepping import Stepper

CACHE_BYTES = 1 << 30  # on a CPU, where memory that was never written takes no room
SPARE = 1024
CACHE_SHARE = 0.5  # on CUDA, of what is free once the models are loaded


@dataclass(frozen=True, slots=True)
class Room:
    """What an engine may hold.

    Attributes:
        sequences: That run at the same time.
        positions: Of the cache, all sequences together.
        step_tokens: Of a step in which somebody waits for the next token: the longer the piece
            of a new prompt, the later that comes. Other steps have ``Limits.batch_tokens``.
    """

    sequences: int
    positions: int
    step_tokens: int


def default_room(stepper: Stepper) -> Room:
    """Return what suits the device and the model."""
    if stepper.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(stepper.device)
        positions = int(free * CACHE_SHARE) // stepper.bytes_per_position
        return Room(256, positions, 2048)
    # One sequence of the longest kind fits, separators reserved and all.
    positions = max(CACHE_BYTES // stepper.bytes_per_position, stepper.longest + SPARE)
    return Room(64, positions, 256)

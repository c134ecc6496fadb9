"""What may run in an engine at the same time."""

from dataclasses import dataclass, replace

import torch

from condensery.errors import SettingError
from condensery.networks.stepping import Stepper

CACHE_BYTES = 1 << 30  # on a CPU, where memory that was never written takes no room
SPARE = 1024
CACHE_SHARE = 0.5  # on CUDA, of what is free once the models are loaded
# A cache for fewer positions holds no answer worth the name.
LEAST_POSITIONS = 256


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


@dataclass(frozen=True, slots=True)
class Bounds:
    """What an operator allows; 0 is what suits the device and the model.

    Attributes:
        sequences: That run at the same time.
        cache_mib: Size of the key/value cache, MiB.
    """

    sequences: int = 0
    cache_mib: int = 0


def room_within(stepper: Stepper, bounds: Bounds) -> Room:
    """Return what may run.

    Raises:
        SettingError: The cache would hold less than one short answer.
    """
    if not bounds.cache_mib:
        room = default_room(stepper)
    else:
        positions = bounds.cache_mib * 2**20 // stepper.bytes_per_position
        if positions < LEAST_POSITIONS:
            raise SettingError(
                f"generator_cache_mib={bounds.cache_mib} holds {positions} positions of "
                f"{stepper.bytes_per_position} bytes, and {LEAST_POSITIONS} are the least",
                field="generator_cache_mib",
                value=bounds.cache_mib,
            )
        sequences, step_tokens = suited(stepper.device)
        room = Room(sequences, positions, step_tokens)
    return replace(room, sequences=bounds.sequences) if bounds.sequences else room


def suited(device: torch.device) -> tuple[int, int]:
    """Return the sequences, and the tokens of a step, that suit a device."""
    return (256, 2048) if device.type == "cuda" else (64, 256)


def default_room(stepper: Stepper) -> Room:
    """Return what suits the device and the model."""
    sequences, step_tokens = suited(stepper.device)
    if stepper.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(stepper.device)
        positions = int(free * CACHE_SHARE) // stepper.bytes_per_position
        return Room(sequences, positions, step_tokens)
    # One sequence of the longest kind fits, separators reserved and all.
    positions = max(CACHE_BYTES // stepper.bytes_per_position, stepper.longest + SPARE)
    return Room(sequences, positions, step_tokens)

"""Why a training run stops before its end."""

from condensery.errors import CondenseryError


class TrainingStopped(CondenseryError):
    """A run can't go on; its last checkpoint is whole."""

"""Fields that a door's callers know by another name than the jobs."""

from collections.abc import Iterator
from contextlib import contextmanager

from condensery.errors import InputError


@contextmanager
def renamed(field: str, here: str) -> Iterator[None]:
    """Name what the jobs call ``field`` as the request does, in what is wrong with it."""
    try:
        yield
    except InputError as error:
        if error.field != field:
            raise
        message = error.message.replace(field, here, 1)
        raise type(error)(message, field=here, value=error.value) from error

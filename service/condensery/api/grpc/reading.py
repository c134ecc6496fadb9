"""How many messages are read at once: each may be as large as the transport lets in.

Admission counts a message once it is here. Before, nobody knows its size, and as many as there may
be calls would be 70 GB.
"""

import asyncio

from condensery.api.grpc.errors import Context
from condensery.errors import DeadlineExceeded, InputError

# Messages that are being read, if each were as large as the transport lets in, may have so many
# times the bytes that admission lets in: most are a thousandth of that. But as many as this may
# always come.
READ_FACTOR = 32
LEAST_READERS = 16
# For one message, from its turn to its end; and for one to health, which needs no key and is small.
READ_SECONDS = 30.0
HEALTH_READ_SECONDS = 5.0


class Readers:
    """Lets so many calls read their message at once; the others wait for their turn.

    A small message is read in its turn of less than a millisecond.

    Args:
        inside_bytes: The most that admission lets in, of all messages.
        message_bytes: The most that the transport lets in, of each.
        seconds: For one message, from its turn to its end.
    """

    def __init__(self, inside_bytes: int, message_bytes: int, seconds: float) -> None:
        self._seconds = seconds
        self.most = max(LEAST_READERS, READ_FACTOR * inside_bytes // message_bytes)
        self._turns = asyncio.Semaphore(self.most)

    async def read(self, context: Context) -> bytes:
        """Return a call's message.

        Raises:
            DeadlineExceeded: It does not come.
            InputError: There is none.
        """
        async with self._turns:
            try:
                async with asyncio.timeout(self._seconds):
                    data: bytes | object = await context.read()
            except TimeoutError as late:
                raise DeadlineExceeded(
                    f"The message did not come within {self._seconds:g} s."
                ) from late
        if not isinstance(data, bytes):
            raise InputError("The call ended without a message.")
        return data

"""Messages as no honest client writes them: bytes made wrong on purpose, the same each time."""

import random
import struct
from collections.abc import Callable, Sequence

Mangler = Callable[[random.Random, Sequence[bytes]], bytes]

LENGTHS = (0x7F, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)
NOT_UTF8 = (b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\x80", b"\xf8\x88\x80\x80\x80", b"a\xe2\x82")
NO_NUMBERS = (float("nan"), float("inf"), float("-inf"))


def varint(number: int) -> bytes:
    """Write a number as protobuf does."""
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def field(number: int, payload: bytes, length: int | None = None) -> bytes:
    """Write a length-delimited field; ``length`` is what it says of itself, if that is a lie."""
    size = len(payload) if length is None else length
    return varint(number << 3 | 2) + varint(size) + payload


def noise(chance: random.Random, messages: Sequence[bytes]) -> bytes:
    """Anything at all."""
    return chance.randbytes(chance.randrange(300))


def cut(chance: random.Random, messages: Sequence[bytes]) -> bytes:
    """A message that stops early."""
    data = chance.choice(messages)
    return data[: chance.randrange(len(data) + 1)]


def flipped(chance: random.Random, messages: Sequence[bytes]) -> bytes:
    """A message with a few wrong bits."""
    data = bytearray(chance.choice(messages) or b"\0")
    for _ in range(chance.randint(1, 8)):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(data)


def shuffled(chance: random.Random, messages: Sequence[bytes]) -> bytes:
    """Pieces of messages, in any order."""
    return b"".join(
        cut(chance, messages)[chance.randrange(4) :] for _ in range(chance.randint(2, 5))
    )


def lying(chance: random.Random, messages: Sequence[bytes]) -> bytes:
    """A field that says it is longer, much longer, than what comes."""
    lie = field(chance.randint(1, 9), b"x" * chance.randrange(20), chance.choice(LENGTHS))
    return chance.choice(messages) + lie if chance.random() < 0.5 else lie


def no_text(chance: random.Random, messages: Sequence[bytes]) -> bytes:
    """Text that is not UTF-8, in any field, and one level down."""
    text = field(chance.randint(1, 9), chance.choice(NOT_UTF8))
    return text if chance.random() < 0.5 else field(chance.randint(1, 9), text)


def deep(chance: random.Random, messages: Sequence[bytes]) -> bytes:
    """Groups, messages or metadata within each other, ten to ten thousand levels."""
    levels = chance.choice((10, 33, 60, 99, 101, 1_000, 10_000))
    kind = chance.randrange(3)
    if kind == 0:
        number = chance.randint(1, 9)
        return varint(number << 3 | 3) * levels + varint(number << 3 | 4) * chance.choice(
            (levels, levels - 1, 0)
        )
    data = b""
    for _ in range(min(levels, 1_000)):
        # Any message, or a metadata value that is a list of one.
        data = field(chance.randint(1, 6), data) if kind == 1 else field(6, field(1, data))
    entry = field(1, field(1, b"k") + field(2, data))
    return data if kind == 1 else field(chance.choice((2, 3)), field(1, b"a") + field(3, entry))


def no_number(chance: random.Random, messages: Sequence[bytes]) -> bytes:
    """NaN and infinity, as vectors and in metadata."""
    number = chance.choice(NO_NUMBERS)
    if chance.random() < 0.5:
        value = field(1, field(1, b"k") + field(2, b"\x11" + struct.pack("<d", number)))
        document = field(1, b"a") + field(2, b"a") + field(3, value)
        return chance.choice((field(1, b"fuzz") + field(2, document), field(3, document)))
    vector = struct.pack("<f", number) * chance.choice((1, 383, 384))
    return field(1, b"fuzz") + field(3, vector) + field(4, b"sha256:none")


def packed(chance: random.Random, messages: Sequence[bytes]) -> bytes:
    """Vectors whose bytes don't divide, or are another encoder's."""
    vector = chance.randbytes(chance.choice((1, 3, 4, 383, 1535, 1536, 1537, 4 * 1024)))
    return (
        chance.choice(messages) + field(3, vector) + field(4, chance.choice((b"", b"sha256:none")))
    )


def crowded(chance: random.Random, messages: Sequence[bytes]) -> bytes:
    """More items than anybody has."""
    count = chance.choice((51, 2_049, 5_000, 20_000, 80_000))
    return field(1, b"fuzz") + field(chance.randint(2, 3), b"") * count


def mistyped(chance: random.Random, messages: Sequence[bytes]) -> bytes:
    """Fields of other types than theirs, of no number, of no type, and unknown ones."""
    out = b""
    for _ in range(chance.randint(1, 6)):
        number = chance.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 19_000, 2**29 - 1))
        kind = chance.choice((0, 1, 2, 5, 6, 7))
        body = {0: varint(chance.getrandbits(64)), 1: chance.randbytes(8), 5: chance.randbytes(4)}
        out += varint(number << 3 | kind) + body.get(kind, field(1, b"x"))
    return out


def endless(chance: random.Random, messages: Sequence[bytes]) -> bytes:
    """Numbers that never end, or are over 64 bits."""
    tag = varint(chance.randint(1, 9) << 3)
    return tag + b"\xff" * chance.choice((9, 10, 11, 200)) + chance.choice((b"", b"\x01", b"\x7f"))


def empty(chance: random.Random, messages: Sequence[bytes]) -> bytes:
    """Nothing."""
    return b""


# Malformed in one way or another, most of them; those that are read anyway are refused, or served.
MANGLERS: tuple[Mangler, ...] = (
    *(noise, cut, flipped, shuffled, lying, no_text, deep),
    *(no_number, packed, crowded, mistyped, endless, empty),
)

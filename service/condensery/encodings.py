"""Vectors in fewer bytes, and back: what the server sends, and clients read.

| encoding | of a number | bytes for ``dims`` numbers |
|---|---|---|
| ``float32`` | itself | 4 dims |
| ``float16`` | the nearest half-precision number | 2 dims |
| ``int8`` | ``round(127 x / range)``, cut to -127 to 127 | dims |
| ``uint8`` | the int8 and 128: 1 to 255, zero is 128 | dims |
| ``ubinary`` | its sign, 1 where positive; eight a byte, the first the highest bit | dims / 8, up |
| ``binary`` | the same bytes less 128, as a signed one | dims / 8, up |

Binary forms are packed as sentence-transformers and Cohere pack them. Numbers of several bytes are
little-endian, vectors lie row by row.

The range of int8 hangs on the dimensions alone (``int8_range``), so that a model's integers can be
compared with each other, and read back, with no calibration to keep: inner products of int8
vectors are those of the vectors, times ``(127 / range) ** 2``. So only vectors of length 1 have
them. The forms are those of sentence-transformers' ``quantize_embeddings``, but for int8's range,
which there is one a dimension, from a sample; those keep no inner products.
"""

import math
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from condensery.errors import InputError
from condensery.values import Floats

Encoding = Literal["float32", "float16", "int8", "uint8", "binary", "ubinary"]
ENCODINGS: tuple[Encoding, ...] = get_args(Encoding)
Encoded = NDArray[Any]

# Of a unit vector's numbers, whose root mean square is 1 / sqrt(dims): so many times that.
RANGE_DEVIATIONS = 6.0
INT8_MAX = 127  # -128 has no counterpart
UINT8_OFFSET = 128
# How far from 1 a length may be: what bfloat16 makes of one that was scaled in it.
LENGTH_TOLERANCE = 0.02

NUMPY_TYPES: dict[Encoding, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "int8": np.dtype("i1"),
    "uint8": np.dtype("u1"),
    "binary": np.dtype("i1"),
    "ubinary": np.dtype("u1"),
}
BINARY_ENCODINGS: tuple[Encoding, ...] = ("binary", "ubinary")
INT8_ENCODINGS: tuple[Encoding, ...] = ("int8", "uint8")


def int8_range(dims: int) -> float:
    """Return the number that int8's 127 stands for; what is over it is cut."""
    return min(1.0, RANGE_DEVIATIONS / math.sqrt(dims))


def encoded_width(encoding: Encoding, dims: int) -> int:
    """Return how many numbers a vector of ``dims`` dimensions has in an encoding."""
    return -(-dims // 8) if encoding in BINARY_ENCODINGS else dims


def encode(vectors: Floats, encoding: Encoding, *, field: str = "embed_dtype") -> Encoded:
    """Return vectors (rows, dims) in an encoding, (rows, ``encoded_width``), contiguous.

    Args:
        vectors: Finite; of length 1 for int8 and uint8.

    Raises:
        InputError: int8 or uint8 of vectors of another length.
    """
    if encoding == "float32":
        return np.ascontiguousarray(vectors, NUMPY_TYPES[encoding])
    if encoding == "float16":
        # What is over 65,504, which no vector of length 1 is, would be infinite.
        most = float(np.finfo(np.float16).max)
        return np.clip(vectors, -most, most).astype(NUMPY_TYPES[encoding])
    if encoding in BINARY_ENCODINGS:
        packed = np.packbits(vectors > 0, axis=1)
        return packed if encoding == "ubinary" else _flip_high_bit(packed).view(np.int8)
    _check_lengths(vectors, encoding, field)
    scaled = np.rint(vectors * (INT8_MAX / int8_range(vectors.shape[1])))
    signed = np.clip(scaled, -INT8_MAX, INT8_MAX).astype(np.int8)
    return signed if encoding == "int8" else _flip_high_bit(signed.view(np.uint8))


def decode(encoded: Encoded, encoding: Encoding, dims: int) -> Floats:
    """Return vectors (rows, dims) of what ``encode`` gave; of bits, all of length 1.

    Args:
        encoded: (rows, ``encoded_width``).
    """
    if encoding in BINARY_ENCODINGS:
        packed = _flip_high_bit(encoded.view(np.uint8)) if encoding == "binary" else encoded
        signs = np.unpackbits(packed, axis=1, count=dims)
        unit: Floats = (2 * signs.astype(np.float32) - 1) / np.float32(math.sqrt(dims))
        return unit
    wide: Floats = encoded.astype(np.float32)
    if encoding == "uint8":
        wide -= UINT8_OFFSET
    return wide * np.float32(int8_range(dims) / INT8_MAX) if encoding in INT8_ENCODINGS else wide


def unpack(data: bytes, encoding: Encoding, dims: int) -> Floats:
    """Return vectors (rows, dims) of their bytes.

    Raises:
        InputError: The bytes don't divide into whole vectors.
    """
    each = encoded_width(encoding, dims) * NUMPY_TYPES[encoding].itemsize
    if not each or len(data) % each:
        raise InputError(f"{len(data)} bytes are no {encoding} vectors of {dims} dimensions.")
    flat = np.frombuffer(data, NUMPY_TYPES[encoding])
    return decode(flat.reshape(-1, encoded_width(encoding, dims)), encoding, dims)


def _flip_high_bit(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Add 128 to bytes, or take it away, which is the same: the highest bit is turned round."""
    return np.bitwise_xor(packed, np.uint8(UINT8_OFFSET))


def _check_lengths(vectors: Floats, encoding: Encoding, field: str) -> None:
    off = np.abs(np.linalg.norm(vectors, axis=1) - 1)
    if off.size and not float(off.max()) <= LENGTH_TOLERANCE:
        length = float(np.linalg.norm(vectors[int(off.argmax())]))
        raise InputError.at(
            field,
            f"{encoding} is for vectors of length 1, and one has length {length:.4g}; "
            "ask for normalised ones.",
            encoding,
        )

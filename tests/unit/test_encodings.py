"""Vectors in fewer bytes, against their definitions worked out number by number, and back."""

import math
import struct

import numpy as np
import pytest

from condensery.encodings import (
    ENCODINGS,
    NUMPY_TYPES,
    Encoding,
    decode,
    encode,
    encoded_width,
    int8_range,
    unpack,
)
from condensery.errors import InputError
from condensery.values import Floats


def units(rows: int, dims: int, seed: int = 1) -> Floats:
    drawn = np.random.default_rng(seed).normal(size=(rows, dims))
    scaled: Floats = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)
    return scaled


def test_halves_are_ieees() -> None:
    vectors = units(3, 20)
    wanted = b"".join(struct.pack("<e", float(x)) for x in vectors.ravel())
    assert encode(vectors, "float16").tobytes() == wanted
    huge = np.array([[1e9, -1e9]], np.float32)
    assert np.isfinite(encode(huge, "float16")).all()


def test_bits_are_signs_eight_in_a_byte_the_first_highest() -> None:
    vectors = units(5, 20)
    for row, packed, signed in zip(
        vectors, encode(vectors, "ubinary"), encode(vectors, "binary"), strict=True
    ):
        bits = "".join("1" if x > 0 else "0" for x in row).ljust(24, "0")
        wanted = [int(bits[at : at + 8], 2) for at in range(0, 24, 8)]
        assert packed.tolist() == wanted
        assert signed.tolist() == [byte - 128 for byte in wanted]
    zeros = np.zeros((1, 8), np.float32)
    assert encode(zeros, "ubinary").tolist() == [[0]], "zero is not positive"


def test_integers_are_the_nearest_of_a_symmetric_range() -> None:
    vectors = units(5, 96)
    most = 6 / math.sqrt(96)
    wanted = [[round(max(-1, min(1, x / most)) * 127) for x in row] for row in vectors.tolist()]
    signed = encode(vectors, "int8")
    assert signed.tolist() == wanted
    assert encode(vectors, "uint8").tolist() == [[x + 128 for x in row] for row in wanted]


def test_what_is_over_the_range_is_cut_and_never_wraps() -> None:
    vectors = np.zeros((2, 400), np.float32)
    vectors[0, 0], vectors[1, 0] = 1, -1
    assert encode(vectors, "int8")[:, 0].tolist() == [127, -127]
    assert encode(vectors, "uint8")[:, :2].tolist() == [[255, 128], [1, 128]]


@pytest.mark.parametrize("dims", [1, 7, 8, 384, 1001])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_bytes_come_back_as_near_as_their_encoding_allows(encoding: Encoding, dims: int) -> None:
    vectors = units(9, dims)
    encoded = encode(vectors, encoding)
    assert encoded.shape == (9, encoded_width(encoding, dims))
    assert encoded.dtype == NUMPY_TYPES[encoding]
    assert encoded.flags.c_contiguous
    data = encoded.tobytes()
    back = unpack(data, encoding, dims)
    assert np.array_equal(back, decode(encoded, encoding, dims))
    assert (back.shape, back.dtype) == ((9, dims), np.float32)
    if encoding == "float32":
        assert np.array_equal(back, vectors)
    elif encoding == "float16":
        assert np.allclose(back, vectors, rtol=2**-11, atol=2**-24)
    elif encoded_width(encoding, dims) == dims:
        inside = np.abs(vectors) <= int8_range(dims)
        step = int8_range(dims) / 127
        assert np.abs(back - vectors)[inside].max() <= step / 2 + 1e-6
        assert np.array_equal(np.sign(back)[~inside], np.sign(vectors)[~inside])
    else:
        assert np.array_equal(back > 0, vectors > 0)
        assert np.allclose(np.linalg.norm(back, axis=1), 1)


def test_inner_products_of_integers_are_those_of_the_vectors_scaled() -> None:
    vectors = units(50, 384)
    signed = encode(vectors, "int8").astype(np.int32)
    products = (signed @ signed.T) * (int8_range(384) / 127) ** 2
    assert np.abs(products - vectors @ vectors.T).max() < 0.01


@pytest.mark.parametrize("encoding", ["int8", "uint8"])
def test_integers_are_for_vectors_of_length_one(encoding: Encoding) -> None:
    vectors = units(3, 16)
    vectors[1] *= 3
    with pytest.raises(InputError, match=rf"dtype: {encoding} is .* has length 3;") as caught:
        encode(vectors, encoding, field="dtype")
    assert caught.value.field == "dtype"


def test_bytes_that_are_no_whole_vectors_are_refused() -> None:
    for data, dims in ((b"abc", 1), (b"abcd", 0)):
        with pytest.raises(InputError, match="are no float32 vectors"):
            unpack(data, "float32", dims)
    assert unpack(b"", "int8", 5).shape == (0, 5)

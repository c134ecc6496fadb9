"""Answers as JSON holds them."""

import math

import orjson

from condensery.api.rest.answers import finite
from condensery.question import Compression, Delta, Likely, TokenLogprob


def test_what_cannot_be_is_a_number_too():
    delta = Delta("a", (TokenLogprob("a", -0.5, (Likely("a", -0.5), Likely("b", -math.inf))),))
    (token,) = finite(delta).logprobs or ()
    assert orjson.loads(orjson.dumps(token))["top"][1] == {"text": "b", "logprob": -9999.0}


def test_a_block_says_all_that_is_known_and_what_follows_from_it():
    block = Compression(
        mode="auto",
        status="partial",
        docs=2,
        tokens_in=64,
        vectors_out=8,
        flops_plain=100,
        flops_used=130,
        compress_ms=1.5,
        reason="why",
        fallback_docs=(3,),
        left_out=(4, 5),
    )
    assert orjson.loads(orjson.dumps(block)) == {
        "mode": "auto",
        "status": "partial",
        "reason": "why",
        "docs": 2,
        "tokens_in": 64,
        "vectors_out": 8,
        "ratio": 8.0,
        "flops_plain": 100,
        "flops_used": 130,
        "flops_saved": -30,
        "compress_ms": 1.5,
        "fallback_docs": [3],
        "left_out": [4, 5],
    }

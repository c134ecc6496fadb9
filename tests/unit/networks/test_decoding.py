import numpy as np
import pytest
import torch
from tiny_generators import KINDS, Reference, tiny_causal
from torch import Tensor

from condensery.networks.caching import BLOCK, Cache, Span, Step
from condensery.networks.decoding import Decoder
from condensery.networks.oscar_causal import CausalGenerator
from condensery.networks.stepping import Stepper

LENGTHS = (3, 40, 17, 1, 25)


def begun(stepper: Stepper, cache: Cache) -> tuple[list[Span], Tensor]:
    """Read a prompt of each length; returns where their next tokens belong, and those tokens."""
    owned, first = [], 0
    for length in LENGTHS:
        blocks = length // BLOCK + 1
        owned.append(np.arange(first * BLOCK, (first + blocks) * BLOCK))
        first += blocks
    source = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        for length, places in zip(LENGTHS, owned, strict=True):
            ids = torch.randint(97, (length,), generator=source).tolist()
            stepper.run(stepper.embed([ids]), Step(cache, [Span(places, 0, length)]))
        tokens = stepper.embed([torch.randint(97, (len(LENGTHS),), generator=source).tolist()])
    return [Span(p, length, 1) for length, p in zip(LENGTHS, owned, strict=True)], tokens


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 3, 5])
def test_scores_are_those_of_steps_as_they_are(kind: str, count: int) -> None:
    stepper = Stepper(Reference(kind).network)
    cache = stepper.cache(160)
    spans, tokens = begun(stepper, cache)
    decoder = stepper.decoder(cache, 5)
    decoder.prepare()
    assert decoder.sizes == [1, 2, 4, 8]
    with torch.inference_mode():
        wanted = stepper.logits(stepper.run(tokens[:count], Step(cache, spans[:count])))
    # Twice: what a step writes, it can write again.
    for _ in range(2):
        result = decoder.run(tokens[:count], spans[:count])
        torch.testing.assert_close(result, wanted, atol=2e-4, rtol=2e-4)


def test_preparing_touches_no_sequence() -> None:
    stepper = Stepper(CausalGenerator(tiny_causal()))
    cache = stepper.cache(160)
    spans, tokens = begun(stepper, cache)
    before = [cache.layer(layer)[0][: cache.positions].clone() for layer in range(cache.layers)]
    decoder = stepper.decoder(cache, 4)
    decoder.prepare()
    assert decoder.run(tokens[:2], spans[:2]) is not None
    after = [cache.layer(layer)[0][: cache.positions] for layer in range(cache.layers)]
    written = torch.tensor([span.places[span.start] for span in spans[:2]])
    for old, new in zip(before, after, strict=True):
        old[written] = new[written]
        torch.testing.assert_close(old, new, equal_nan=True)


def test_what_it_has_no_room_for_is_left_to_others() -> None:
    stepper = Stepper(CausalGenerator(tiny_causal()))
    cache = stepper.cache(160)
    spans, tokens = begun(stepper, cache)
    decoder = stepper.decoder(cache, 2)
    assert decoder.run(tokens[:3], spans[:3]) is None
    with decoder._lock:  # a thread that hangs in a step
        assert decoder.run(tokens[:1], spans[:1]) is None
    assert decoder.run(tokens[:1], spans[:1]) is not None
    assert decoder.runs == 1


def test_one_that_gives_other_scores_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stepper = Stepper(CausalGenerator(tiny_causal()))
    decoder = stepper.decoder(stepper.cache(64), 2)
    tokens = decoder._tokens
    monkeypatch.setattr(type(tokens), "fill", lambda *_: None)  # nobody says where anything is
    with pytest.raises(ValueError, match="other scores"):
        decoder.prepare()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_graph_gives_what_steps_as_they_are_give(kind: str, dtype: torch.dtype) -> None:
    stepper = Stepper(Reference(kind).network.to("cuda", dtype))
    cache = stepper.cache(160)
    spans, tokens = begun(stepper, cache)
    decoder = Decoder(stepper, cache, 5)
    decoder.prepare()
    with torch.inference_mode():
        wanted = stepper.logits(stepper.run(tokens, Step(cache, spans)))
    for count in (5, 1, 3, 5):  # another graph each time, in the same memory
        result = decoder.run(tokens[:count], spans[:count])
        assert result is not None
        if dtype == torch.float32:
            torch.testing.assert_close(result, wanted[:count], atol=2e-3, rtol=2e-3)
        else:
            agreement = torch.nn.functional.cosine_similarity(result, wanted[:count])
            assert agreement.min() > 0.99


@pytest.mark.gpu
def test_a_graph_reads_what_was_written_since_it_was_captured() -> None:
    """Its inputs are the buffers, not what they held."""
    stepper = Stepper(Reference().network.to("cuda"))
    cache = stepper.cache(160)
    decoder = Decoder(stepper, cache, 4)
    decoder.prepare()
    spans, tokens = begun(stepper, cache)
    replayed = [decoder.run(tokens[i : i + 1], spans[i : i + 1]) for i in range(3)]
    together = decoder.run(tokens[:3], spans[:3])
    torch.testing.assert_close(torch.cat(replayed), together, atol=2e-3, rtol=2e-3)
    assert not torch.allclose(replayed[0], replayed[1], atol=1e-2)

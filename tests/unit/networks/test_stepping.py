import numpy as np
import pytest
import torch
from tiny_generators import KINDS, Reference, tiny_causal

from condensery.errors import CorruptModel
from condensery.networks import native
from condensery.networks.caching import BLOCK, Span, Step
from condensery.networks.oscar_causal import CausalGenerator
from condensery.networks.stepping import Stepper


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_gives_in_steps_what_it_gives_at_once(kind: str, kernels: str) -> None:
    reference = Reference(kind)
    stepper = Stepper(reference.network)
    parts = {type(module).__name__ for module in reference.network.modules()}
    fused = {"StepNorm", "StepAttention"} & parts
    assert len(fused) == (2 if kernels == "native" else 0)
    ids = torch.randint(97, (40,), generator=torch.Generator().manual_seed(5))
    with torch.inference_mode():
        wanted = reference.copy(ids[None]).logits[0]
        cache, places, stepped = stepper.cache(64), np.arange(64)[::-1].copy(), []
        for first, last in ((0, 13), (13, 14), (14, 39), (39, 40)):
            step = Step(cache, [Span(places, first, last - first)])
            hidden = stepper.run(stepper.embed([ids[first:last].tolist()]), step)
            stepped.append(stepper.logits(hidden))
    torch.testing.assert_close(torch.cat(stepped), wanted, atol=2e-4, rtol=2e-4)


@pytest.mark.usefixtures("kernels")
def test_a_network_can_be_taken_again() -> None:
    network = CausalGenerator(tiny_causal())
    prompt = [5, 6, 7, 8]
    outs = []
    for _ in range(2):
        stepper = Stepper(network)
        step = Step(stepper.cache(16), [Span(np.arange(16), 0, 4)])
        with torch.inference_mode():
            outs.append(stepper.run(stepper.embed([prompt]), step))
    assert torch.equal(*outs)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("places", [np.arange(3), np.arange(60, 68), np.arange(-2, 6)])
def test_places_that_are_not_the_caches_are_refused(places: np.ndarray) -> None:
    stepper = Stepper(CausalGenerator(tiny_causal()))
    with pytest.raises(ValueError, match="places for 6 rows"):
        Step(stepper.cache(32), [Span(places, 0, 6)])


def test_what_a_position_takes_is_what_the_cache_takes() -> None:
    stepper = Stepper(CausalGenerator(tiny_causal()))
    cache = stepper.cache(32)
    keys, values = cache.layer(2)
    spare = BLOCK
    assert stepper.bytes_per_position == 3 * (keys.nbytes + values.nbytes) // (32 + spare)
    assert cache.positions == 32


def test_a_backbone_that_gives_other_numbers_in_steps_is_refused() -> None:
    model = tiny_causal()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3] = torch.nan
    with pytest.raises(CorruptModel, match=r"'llama' backbone gives other numbers in steps"):
        Stepper(CausalGenerator(model))
    model = tiny_causal()
    for layer in model.model.layers:
        layer.self_attn.layer_idx = 0  # each overwrites what the one before has cached
    with pytest.raises(CorruptModel, match="in steps"):
        Stepper(CausalGenerator(model))


def test_a_rope_that_hangs_on_the_batch_is_refused() -> None:
    model = tiny_causal()
    model.config.rope_parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    with pytest.raises(CorruptModel, match="dynamic"):
        Stepper(CausalGenerator(model))


def test_an_attention_that_was_put_back_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "kernels", lambda: None)  # with them it can't be put back
    network = CausalGenerator(tiny_causal())
    stepper = Stepper(network)
    network.backbone.set_attn_implementation("sdpa")
    step = Step(stepper.cache(16), [Span(np.arange(16), 0, 4)])
    with torch.inference_mode(), pytest.raises(ValueError, match="0 of 3 layers"):
        stepper.run(torch.zeros(4, 32), step)

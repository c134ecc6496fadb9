"""The loss against the paper's formula, worked out alone for each item."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_causal_training import disturb, some_rows, write_rows

from condensery.methods.oscar.causal.building import Bases, PairSources
from condensery.methods.oscar.causal.items import Chunks, Item, Questions
from condensery.methods.oscar.causal.losses import loss, run_forward
from condensery.methods.oscar.causal.network import new_pair
from condensery.methods.oscar.causal.recipe import CausalRecipe
from condensery.methods.trainer.method import learning_state
from condensery.methods.trainer.questions import Rules, read_questions
from condensery.networks.oscar_causal import CausalPair

RECIPE = CausalRecipe(lora_rank=4, passages=3)


@pytest.fixture
def made(kinds: dict[str, PairSources]) -> Bases:
    return Bases(kinds["first layers"])


@pytest.fixture
def pair(made: Bases) -> CausalPair:
    pair = new_pair(made, RECIPE)
    disturb(pair)
    return pair.eval()


@pytest.fixture
def items(made: Bases, tmp_path: Path) -> list[Item]:
    rows, _ = read_questions([write_rows(tmp_path / "rows.jsonl", some_rows(4))], Rules())
    asked = Questions(rows, made, RECIPE)
    return [asked.item(0), asked.item(1, plain=True), replace(asked.item(2), scores=None)]


def test_it_is_the_mean_over_items_of_both_terms(
    made: Bases, pair: CausalPair, items: list[Item]
) -> None:
    with torch.no_grad():
        result = loss(pair, items, made.texts, 0.05)
    label = rerank = 0.0
    for item in items:
        with torch.no_grad():
            alone = run_forward(pair, [item], made.texts)
        label -= float(alone.logprobs[0].mean()) / 3
        if item.scores is not None and alone.memories is not None:
            assert alone.memories.relevance is not None
            pairs = zip(alone.memories.relevance.tolist(), item.scores, strict=True)
            rerank += sum((a - b) ** 2 for a, b in pairs) / 3 / 3
    assert float(result.terms["label"]) == pytest.approx(label, abs=1e-5)
    assert float(result.terms["rerank"]) == pytest.approx(rerank, rel=1e-5)
    assert float(result.total) == pytest.approx(label + 0.05 * rerank, abs=1e-4)
    assert rerank > 1
    assert (result.weight, result.items) == (3, 3)
    with torch.no_grad():
        assert float(loss(pair, items, made.texts, 0.0).terms["rerank"]) == 0


def test_a_batch_in_parts_has_the_same_gradient(
    made: Bases, pair: CausalPair, items: list[Item]
) -> None:
    def gradient(*parts: list[Item]) -> dict[str, torch.Tensor]:
        pair.zero_grad()
        for part in parts:
            result = loss(pair, part, made.texts, 0.05)
            (result.total * result.weight / 3).backward()
        named = dict(pair.named_parameters())
        return {n: g.clone() for n in learning_state(pair) if (g := named[n].grad) is not None}

    whole, parts = gradient(items), gradient(items[:1], items[1:])
    assert whole.keys() == parts.keys() == learning_state(pair).keys()
    for name, wanted in whole.items():
        scale = max(1e-3, float(wanted.abs().max()))
        torch.testing.assert_close(parts[name], wanted, rtol=0, atol=2e-5 * scale)
        assert float(wanted.abs().max()) > 0, name


def test_each_term_teaches_what_it_is_of(made: Bases, pair: CausalPair, items: list[Item]) -> None:
    def moved(part: list[Item], weight: float) -> set[str]:
        pair.zero_grad()
        loss(pair, part, made.texts, weight).total.backward()
        return {n for n, p in pair.named_parameters() if p.grad is not None and bool(p.grad.any())}

    plain = moved(items[1:2], 0.05)
    assert plain
    assert not [name for name in plain if name.startswith("compressor.")]
    unscored = moved(items[2:], 0.05)
    assert "compressor.slots.weight" in unscored
    assert "compressor.rerank.weight" not in unscored
    assert "compressor.rerank.weight" in moved(items[:1], 0.05)


def test_pretraining_reads_vectors_alone(made: Bases, pair: CausalPair) -> None:
    text = "The mill stands by the river, where the old bread market was. " * 6
    chunks = Chunks([text], made, CausalRecipe(stage="pretrain", label_tokens=8))
    items = [chunks.item(0, part=0.9), chunks.item(1, part=0.1)]
    result = run_forward(pair, items, made.texts)
    assert [len(logprobs) for logprobs in result.logprobs] == [len(item.label) for item in items]
    assert result.memories is not None
    assert result.memories.counts == (4, 4)
    prompt = items[0].prompt(made.texts, list(result.memories.split()[:1]))
    assert pair.generator.embed(prompt).shape == (1, 1 + 4 + 2, 32)
    loss(pair, items, made.texts, 0.0).total.backward()
    gradient = pair.compressor.slots.weight.grad
    assert gradient is not None
    assert bool(gradient[:4].any())
    assert not bool(gradient[4].any())  # the rerank token's


def test_layers_computed_again_give_the_same_gradient(made: Bases, items: list[Item]) -> None:
    gradients = []
    for again in (False, True):
        recipe = replace(RECIPE, checkpoint_layers=again, lora_dropout=0.5)
        pair = new_pair(made, recipe)
        disturb(pair)
        pair.train()
        torch.manual_seed(3)  # adapters drop what they read: the same both times
        loss(pair, items, made.texts, 0.05).total.backward()
        gradients.append({n: p.grad for n, p in pair.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, wanted in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], wanted, rtol=1e-5, atol=1e-6)

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from condensery.methods.rerank.batches import Batches, RankLoss
from condensery.methods.rerank.model import PairTokenizer, open_base
from condensery.methods.rerank.recipe import RerankRecipe
from condensery.methods.rerank.sources import Query
from condensery.methods.trainer.method import Draw

RECIPE = RerankRecipe(queries=2, negatives=2)
PASSAGES = ["old mill", "new mill", "river", "stone", "town", "bread"]
QUERIES = [Query(f"who {i}", (i, i + 1), (), "", f"line {i}") for i in range(4)]
NEGATIVES = [[i for i in range(6) if i not in query.gold] for query in QUERIES]


class Fixed(nn.Module):
    """Gives the logits it was made with."""

    def __init__(self, logits: list[float]) -> None:
        super().__init__()
        self.logits_ = nn.Parameter(torch.tensor(logits))

    def forward(self, **inputs: Tensor) -> "Fixed":
        self.logits = self.logits_[:, None]
        return self


@pytest.fixture(scope="module")
def reader(base: Path) -> PairTokenizer:
    return open_base(base, 32, seed=1)[1]


def make(reader: PairTokenizer) -> Batches:
    return Batches(PASSAGES, QUERIES, NEGATIVES, reader, RECIPE)


def test_every_query_comes_once_an_epoch_in_another_order_each(reader: PairTokenizer) -> None:
    batches = make(reader)
    names = [name for step in range(8) for name in batches(Draw(seed=3, step=step, parts=1)).names]
    epochs = [[name[:6] for name in names[i : i + 4]] for i in range(0, 16, 4)]
    assert all(sorted(epoch) == [f"line {i}" for i in range(4)] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1
    assert names[0] in {f"line {i}: 'who {i}'" for i in range(4)}


def test_a_batch_depends_on_its_draw_alone_and_the_parts_of_a_step_differ(
    reader: PairTokenizer,
) -> None:
    batches = make(reader)
    for step in range(5):
        batches(Draw(3, step, 0, 2))
    draw = Draw(3, 5, 1, 2)
    assert batches(draw) == make(reader)(draw)
    assert batches(Draw(3, 5, 0, 2)).names != batches(draw).names


def test_the_passage_that_answers_comes_first_and_negatives_do_not_repeat(
    reader: PairTokenizer,
) -> None:
    batches = make(reader)
    gold_seen = set()
    for step in range(12):
        batch = batches(Draw(3, step))
        assert len(batch.pairs) == batch.queries * 3 == 6
        for row, name in enumerate(batch.names):
            query = int(name[5])
            wanted = {
                i: reader.read([QUERIES[query].text], [text])[0] for i, text in enumerate(PASSAGES)
            }
            numbers = [
                next(i for i, pair in wanted.items() if pair == pair_of)
                for pair_of in batch.pairs[3 * row : 3 * row + 3]
            ]
            assert numbers[0] in QUERIES[query].gold
            assert set(numbers[1:]) <= set(NEGATIVES[query])
            assert numbers[1] != numbers[2]
            gold_seen.add((query, numbers[0]))
    assert len(gold_seen) > 4  # any of several that answer it


def test_the_losses_are_softmax_over_a_querys_passages_or_a_sigmoid_each(
    reader: PairTokenizer,
) -> None:
    logits = [2.0, -1.0, 0.5, 0.0, 3.0, 1.0]
    batch = make(reader)(Draw(1, 0))
    x = torch.tensor(logits, dtype=torch.float64).view(2, 3)
    softmax = x.exp() / x.exp().sum(1, keepdim=True)
    listwise = RankLoss(reader, "listwise")(Fixed(logits), batch)
    assert float(listwise.total.detach()) == pytest.approx(float(-softmax[:, 0].log().mean()))
    assert float(listwise.terms["gold_first"]) == 0.5
    assert (listwise.weight, listwise.items) == (2, 2)
    sigmoid = 1 / (1 + (-x).exp())
    each = torch.cat([-sigmoid[:, :1].log(), -(1 - sigmoid[:, 1:]).log()], 1)
    pointwise = RankLoss(reader, "pointwise")(Fixed(logits), batch)
    assert float(pointwise.total.detach()) == pytest.approx(float(each.mean()))


@pytest.mark.parametrize("objective", ["listwise", "pointwise"])
def test_a_network_learns_a_batch(base: Path, reader: PairTokenizer, objective: str) -> None:
    model, _ = open_base(base, 32, seed=1)
    batch = make(reader)(Draw(1, 0))
    loss = RankLoss(reader, objective)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.eval()
    before = float(loss(model, batch).total.detach())
    for _ in range(40):
        optimizer.zero_grad()
        loss(model, batch).total.backward()
        optimizer.step()
    after = loss(model, batch)
    assert float(after.total.detach()) < 0.6 * before
    assert float(after.terms["gold_first"]) == 1

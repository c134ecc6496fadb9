import pytest
import torch
from torch import nn

from condensery.methods.oscar.causal.network import OwnRows, TiedHead

IDS = [2, 5, 6]


@pytest.mark.parametrize("tied", [True, False])
def test_own_rows_learn_as_the_whole_table_would_with_the_rest_held(tied: bool) -> None:
    torch.manual_seed(0)
    table, other = torch.randn(7, 4), torch.randn(7, 4)
    ids = torch.tensor([[0, 5, 2], [6, 6, 1]])
    # The reference: all of the table learns, and what is not to learn is put back.
    whole = nn.Parameter(table.clone())
    rows = OwnRows(nn.Parameter(table.clone(), requires_grad=False), IDS)
    head = TiedHead(rows)
    optimizers = [torch.optim.SGD([whole], 0.1), torch.optim.SGD([rows.own], 0.1)]
    for _ in range(3):
        wanted = nn.functional.embedding(ids, whole)
        looked_up = rows(ids)
        torch.testing.assert_close(looked_up, wanted, rtol=0, atol=1e-6)
        weight = whole if tied else other
        scores = (
            wanted.tanh() @ weight.T,
            head(looked_up.tanh()) if tied else looked_up.tanh() @ other.T,
        )
        torch.testing.assert_close(*scores, rtol=0, atol=1e-6)
        for optimizer, score in zip(optimizers, scores, strict=True):
            optimizer.zero_grad()
            score.log_softmax(-1)[..., 3].sum().backward()
            optimizer.step()
        with torch.no_grad():
            kept = [i for i in range(7) if i not in IDS]
            whole[kept] = table[kept]
    assert not torch.equal(rows.own, table[IDS])
    torch.testing.assert_close(rows.merged(), whole.detach(), rtol=0, atol=1e-6)
    assert torch.equal(head.weight, table)


def test_of_own_rows_only_they_are_parameters_that_learn() -> None:
    rows = OwnRows(nn.Parameter(torch.zeros(7, 4), requires_grad=False), IDS)
    assert [name for name, p in rows.named_parameters() if p.requires_grad] == ["own"]
    assert list(TiedHead(rows).parameters()) == []

import pytest
import torch
from torch.nn import functional as F

from condensery.methods.lm.model import CHUNK, linear_cross_entropy


@pytest.mark.parametrize("trained", [True, False])
def test_loss_and_gradients_are_those_of_the_logits(trained: bool) -> None:
    torch.manual_seed(0)
    positions = CHUNK + 7
    hidden = torch.randn(positions, 5, requires_grad=True)
    weight = torch.randn(11, 5, requires_grad=trained)
    labels = torch.randint(11, (positions,))
    loss = linear_cross_entropy(hidden, weight, labels)
    (3 * loss).backward()
    gradients = [hidden.grad, weight.grad]
    hidden.grad = weight.grad = None
    wanted = F.cross_entropy(hidden @ weight.T, labels)
    (3 * wanted).backward()
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-6)
    torch.testing.assert_close(gradients, [hidden.grad, weight.grad])
    with torch.no_grad():
        assert float(linear_cross_entropy(hidden, weight, labels)) == loss.item()


def test_a_word_that_is_out_of_reach_gives_an_infinite_loss_not_a_wrong_one() -> None:
    hidden = torch.full((2, 1), float("inf"), requires_grad=True)
    loss = linear_cross_entropy(hidden, torch.ones(3, 1), torch.tensor([0, 1]))
    assert not torch.isfinite(loss)

"""What a network that learns its parent's vectors is asked to lower, beside formulas."""

from pathlib import Path

import pytest
import torch
from tests.unit.methods.conftest import Stored
from torch import Tensor, nn
from torch.nn import functional as F

from condensery.methods.shrp.embedding import EmbeddingTask, TextBatch
from condensery.methods.shrp.networks import open_network
from condensery.methods.shrp.recipe import ShrpRecipe
from condensery.methods.trainer.method import Draw
from condensery.methods.trainer.texts import read_texts

CPU = torch.device("cpu")


@torch.no_grad()
def states_of(network: nn.Module, batch: TextBatch) -> list[Tensor]:
    """Read each text by itself, unpadded; returns (tokens, dims) of each."""
    mask = batch.inputs["attention_mask"].bool()
    rows = [ids[own][None] for ids, own in zip(batch.inputs["input_ids"], mask, strict=True)]
    return [network(input_ids=ids).last_hidden_state[0] for ids in rows]


def test_its_losses_are_distances_to_the_parents_vectors_and_hidden_states(
    stored: Stored, plain_text: Path, tmp_path: Path
) -> None:
    parent = stored("bert")
    recipe = ShrpRecipe(batch=8, distil=0.5, relation=0.25, hidden=2.0)
    texts = read_texts([plain_text])
    task = EmbeddingTask(parent, texts, recipe, work=tmp_path, device=CPU, dtype=torch.float32)
    drawn = (task.batch(Draw(1, step), CPU) for step in range(task.epoch_steps))
    batch = next(b for b in drawn if not b.inputs["attention_mask"].all())  # some are padded
    network = open_network(parent, labels=None, seed=1).eval()
    with torch.no_grad():
        terms = task.loss(network, batch)[1]
    assert max(float(term) for term in terms.values()) < 1e-4  # it is the parent itself

    goals = states_of(network, batch)
    with torch.no_grad():
        torch.manual_seed(2)
        for weight in network.encoder.parameters():
            weight.add_(0.05 * torch.randn(weight.shape))
        total, terms = task.loss(network, batch)
    states = states_of(network, batch)
    near = torch.cat([F.cosine_similarity(a, b, dim=1) for a, b in zip(states, goals, strict=True)])
    assert 0.01 < float(terms["hidden"]) == pytest.approx(float((1 - near).mean()), rel=1e-3)
    own, wanted = (
        F.normalize(torch.stack([text.mean(0) for text in side])) for side in (states, goals)
    )
    assert float(terms["vectors"]) == pytest.approx(
        float((1 - (own * wanted).sum(1)).mean()), rel=1e-2
    )
    parts = 0.5 * terms["vectors"] + 0.25 * terms["relation"] + 2 * terms["hidden"]
    assert float(total) == pytest.approx(float(parts), rel=1e-5)


def test_hidden_states_are_learnt_where_their_loss_has_a_weight_only(
    stored: Stored, plain_text: Path, tmp_path: Path
) -> None:
    texts = read_texts([plain_text])
    task = EmbeddingTask(
        stored("bert"), texts, ShrpRecipe(batch=8), work=tmp_path, device=CPU, dtype=torch.float32
    )
    assert task.batch(Draw(1, 3), CPU).hidden is None

"""Each objective beside a plain computation: one text at a time, unpadded, by transformers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_comp import (
    SPLITS,
    K,
    plain_encoder,
    plain_memory,
    plain_reader,
    tiny_network,
    token_rows,
)
from torch import Tensor
from torch.nn import functional as F

from condensery.methods.llm2comp.network import MemoryNetwork
from condensery.methods.llm2comp.objectives import (
    SplitTexts,
    contrast_loss,
    linear_divergence,
    pretext_loss,
)
from condensery.methods.lm.model import CHUNK

KINDS = [("llama", 0), ("mistral", 1), ("qwen2", None)]
Plain = Callable[[Any, Tensor, list[int], int, int | None], tuple[Tensor, int]]


def continued(reader: Any, memory: Tensor, ids: list[int], start: int | None) -> Tensor:
    """Return the frozen model's logits after [start] memory and ids, (places, words)."""
    words = reader.get_input_embeddings()
    begin = [] if start is None else [start]
    embedded = torch.cat([words(torch.tensor(begin, dtype=torch.long)), memory])
    embedded = torch.cat([embedded, words(torch.tensor(ids))])
    logits: Tensor = reader(inputs_embeds=embedded[None]).logits[0]
    return logits


def ctkd(
    reader: Any, memory: Tensor, row: list[int], split: int, start: int | None
) -> tuple[Tensor, int]:
    """Return KL(teacher || student) at C + 1 places, summed over words, and their mean's count."""
    count = len(row) - split
    begins = int(start is not None)
    student = continued(reader, memory, row[split:], start)[begins + K - 1 :]
    teacher = reader(input_ids=torch.tensor([row])).logits[0, split - 1 : split + count]
    assert len(student) == len(teacher) == count + 1
    divergence = F.kl_div(
        student.log_softmax(-1), teacher.softmax(-1), reduction="none", log_target=False
    )
    return divergence.sum(-1).mean(), 1


def nll(
    reader: Any, memory: Tensor, row: list[int], split: int, start: int | None
) -> tuple[Tensor, int]:
    begins = int(start is not None)
    logits = continued(reader, memory, row[split:], start)
    wanted = torch.tensor(row[split:])
    predicted = logits[begins + K - 1 : begins + K - 1 + len(wanted)]
    return F.cross_entropy(predicted, wanted, reduction="sum"), len(wanted)


def reconstruction(
    reader: Any, memory: Tensor, row: list[int], split: int, start: int | None
) -> tuple[Tensor, int]:
    begins = int(start is not None)
    logits = continued(reader, memory, row[begins:split], start)
    wanted = torch.tensor(row[begins:split])
    predicted = logits[begins + K - 1 : begins + K - 1 + len(wanted)]
    return F.cross_entropy(predicted, wanted, reduction="sum"), len(wanted)


@pytest.mark.parametrize(("kind", "start"), KINDS)
@pytest.mark.parametrize("plain", [ctkd, nll, reconstruction])
def test_the_pretext_losses_and_their_gradients_are_those_of_single_texts(
    plain: Plain, kind: str, start: int | None, tmp_path: Path
) -> None:
    network = tiny_network(tmp_path, kind, start=start, embeddings="all")
    rows = token_rows(start=start)
    weights = network.trained()
    weights.memory.requires_grad_(True)
    encoder, reader = plain_encoder(tmp_path, weights), plain_reader(tmp_path)
    encoder.get_input_embeddings().weight.requires_grad_(True)
    totals, counts = [], []
    for row, split in zip(rows, SPLITS, strict=True):
        memory = plain_memory(encoder, row[:split])
        total, count = plain(reader, memory, row, split, start)
        totals.append(total)
        counts.append(count)
    wanted = torch.stack(totals).sum() / sum(counts)
    wanted.backward()  # type: ignore[no-untyped-call]
    name = plain.__name__  # type: ignore[attr-defined]
    loss = pretext_loss(network, SplitTexts(rows, SPLITS, [""] * 3), name)
    assert loss.total.item() == pytest.approx(wanted.item(), abs=1e-5)
    assert loss.weight == sum(counts)
    loss.total.backward()  # type: ignore[no-untyped-call]
    table = encoder.get_input_embeddings().weight.grad
    assert network.words is not None
    torch.testing.assert_close(network.memory.grad, table[-K:], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(network.words.grad, table[:-K], rtol=1e-3, atol=1e-4)


def test_the_frozen_model_is_the_base_itself_whatever_was_trained(tmp_path: Path) -> None:
    network = tiny_network(tmp_path, embeddings="all")
    ids = torch.tensor(token_rows((20,)))
    own = network.read_on(network.base_embeddings(ids)) @ network.head.T
    torch.testing.assert_close(own, plain_reader(tmp_path)(input_ids=ids).logits)
    named = dict(network.named_parameters())
    assert not [n for n, p in named.items() if p.requires_grad and "base_layer" in n]
    # One set of layers, and beside it no more than adapters, memory and the words that learn.
    size = sum(p.numel() for p in plain_reader(tmp_path).model.parameters())
    more = [n for n in named if "lora_" in n or n in ("memory", "words")]
    assert sum(p.numel() for p in named.values()) == size + sum(named[n].numel() for n in more)


def test_recomputed_activations_give_the_same_loss_and_gradients(tmp_path: Path) -> None:
    batch = SplitTexts(token_rows(), SPLITS, [""] * 3)

    def gradients(network: MemoryNetwork) -> dict[str, Tensor]:
        network.train()
        pretext_loss(network, batch, "ctkd").total.backward()  # type: ignore[no-untyped-call]
        return {n: p.grad for n, p in network.named_parameters() if p.grad is not None}

    plain = gradients(tiny_network(tmp_path, embeddings="memory"))
    network = tiny_network(tmp_path, embeddings="memory")
    network.recompute()
    again = gradients(network)
    assert plain.keys() == again.keys()
    assert {"memory"} < plain.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(again[name], gradient, msg=name)


def test_the_divergence_and_its_gradient_are_those_of_the_logits() -> None:
    torch.manual_seed(0)
    places = CHUNK + 7
    student = torch.randn(places, 5, requires_grad=True)
    teacher, head, weights = torch.randn(places, 5), torch.randn(11, 5), torch.rand(places)
    loss = linear_divergence(student, teacher, head, weights)
    (3 * loss).backward()
    gradient, student.grad = student.grad, None
    logs = (student @ head.T).log_softmax(1)
    each = F.kl_div(logs, (teacher @ head.T).softmax(1), reduction="none").sum(1)
    wanted = (weights * each).sum()
    (3 * wanted).backward()
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    torch.testing.assert_close(gradient, student.grad, rtol=1e-4, atol=1e-5)


def test_words_out_of_the_teachers_reach_give_no_nan_in_bf16() -> None:
    teacher = torch.tensor([[60.0, 0.0]]).bfloat16()
    student = torch.tensor([[0.0, 60.0]]).bfloat16().requires_grad_()
    head = torch.tensor([[30.0, 0.0], [0.0, 30.0]]).bfloat16()
    loss = linear_divergence(student, teacher, head, torch.ones(1))
    assert loss.item() == pytest.approx(1800)


def vectors(count: int, seed: int) -> Tensor:
    return 3 * torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))


def test_the_unsupervised_loss_is_infonce_of_cosines_in_one_direction() -> None:
    first, second = vectors(4, 0), vectors(4, 1)
    loss = contrast_loss(torch.cat([first, second]), 4, temperature=0.05)
    cosines = F.cosine_similarity(first[:, None], second[None], dim=-1)
    wanted = F.cross_entropy(cosines / 0.05, torch.arange(4))
    assert loss.total.item() == pytest.approx(wanted.item(), abs=1e-5)
    right = (cosines.argmax(1) == torch.arange(4)).float().mean()
    assert loss.terms["first"] == right


def test_the_supervised_loss_has_all_positives_and_negatives_as_candidates() -> None:
    queries, passages = vectors(3, 2), vectors(9, 3)  # of each a positive and two negatives
    keys = torch.arange(9)
    answers = torch.tensor([[0, -1], [3, 6], [6, -1]])  # the third's positive answers the second
    loss = contrast_loss(
        torch.cat([queries, passages]), 3, temperature=0.05, keys=keys, answers=answers
    )
    positives, negatives = passages[::3], passages[[1, 2, 4, 5, 7, 8]]
    candidates = torch.cat([positives, negatives])
    scores = F.cosine_similarity(queries[:, None], candidates[None], dim=-1) / 0.05
    scores[1, 2] = -torch.inf
    wanted = F.cross_entropy(scores, torch.arange(3))
    assert loss.total.item() == pytest.approx(wanted.item(), abs=1e-5)

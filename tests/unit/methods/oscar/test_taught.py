"""What a reader teaches a pair: against its own logits, by the formulas."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_pair import SPECIALS, tiny_pair, tiny_shape, tiny_tokenizer
from tokenizers import Tokenizer
from torch.nn import functional as F
from transformers import AutoModelForQuestionAnswering, MPNetConfig, MPNetForQuestionAnswering

from condensery.errors import InputError
from condensery.methods.oscar.batches import Item, Layout, Row, collate
from condensery.methods.oscar.losses import losses, taught_loss
from condensery.methods.oscar.packs import Start
from condensery.methods.oscar.preparing import Origins, prepare
from condensery.methods.oscar.recipe import Recipe
from condensery.methods.oscar.sampling import Mix
from condensery.methods.oscar.taught import Teacher
from condensery.methods.oscar.training import train
from condensery.methods.trainer.checkpoints import latest
from condensery.methods.trainer.method import TrainingSetup
from condensery.networks.oscar_shape import OscarShape
from condensery.networks.pointers import Spans
from condensery.store.checking import sha256_of

CPU = torch.device("cpu")
SHAPE = tiny_shape(query_tokens=24, passage_tokens=48, bounds=True)
pytestmark = pytest.mark.usefixtures("one_thread")


def words(text: str) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    ids = tiny_tokenizer().encode(text, add_special_tokens=False).ids
    return np.array(ids, dtype=np.int32)


ROWS = [
    Row(words("what is old?"), words("the mill is old stone"), (4, 5), relevant=True),
    Row(words("who?"), words("bread of the new river town"), None, relevant=False),
]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random reader of another kind, whose word pieces have other numbers."""
    folder = tmp_path_factory.mktemp("reader")
    told = json.loads(tiny_tokenizer().to_str())
    known = [word for word in told["model"]["vocab"] if word not in ("[PAD]", "[CLS]", "[SEP]")]
    told["model"]["vocab"] = {
        word: at for at, word in enumerate(["<s>", "<pad>", "</s>", *reversed(known)])
    }
    (folder / "tokenizer.json").write_text(json.dumps(told))
    torch.manual_seed(3)
    sizes: dict[str, Any] = {
        "vocab_size": len(told["model"]["vocab"]), "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 2, "intermediate_size": 48, "max_position_embeddings": 130,
        "passage_tokens": 48, "query_tokens": 24, "answer_tokens": 8,
    }  # fmt: skip
    model = MPNetForQuestionAnswering(MPNetConfig(**sizes))
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(4)
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def teacher(reader: Path) -> Teacher:
    return Teacher.open(reader, tiny_tokenizer(), device=CPU, dtype=torch.float32)


def test_a_teacher_tells_the_readers_own_odds_of_each_span(reader: Path, teacher: Teacher) -> None:
    model = AutoModelForQuestionAnswering.from_pretrained(reader).eval()
    tokenizer = Tokenizer.from_file(str(reader / "tokenizer.json"))
    taught = teacher(ROWS, 10)
    assert taught.table.shape == (2, 10, 10)
    for at, (question, passage) in enumerate(
        (("what is old?", "the mill is old stone"), ("who?", "bread of the new river town"))
    ):
        asked, read = (tokenizer.encode(text).ids for text in (question, passage))
        out = model(torch.tensor([[0, *asked, 2, *read, 2]]))  # alone, without padding
        first = len(asked) + 2
        starts, ends = (logits[0] for logits in (out.start_logits, out.end_logits))
        scores = {
            (i, j): (starts[first + i] + ends[first + j]).item()
            for i in range(len(read))
            for j in range(i, len(read))
        }
        nothing = (starts[0] + ends[0]).item()
        total = torch.tensor([nothing, *scores.values()]).logsumexp(0).item()
        assert taught.nothing[at].item() == pytest.approx(nothing - total, abs=1e-4)
        for (i, j), score in scores.items():
            assert taught.table[at, j - i, i].item() == pytest.approx(score - total, abs=1e-4)
        assert taught.every()[at].exp().sum().item() == pytest.approx(1, abs=1e-4)


def test_what_is_taught_is_the_divergence_and_the_cross_entropy_of_there_being_an_answer() -> None:
    pair = tiny_pair(bounds=True)
    layout = Layout(pair.shape, SPECIALS, pair.compressor.slot_positions)
    batch = collate([Item(row.question, (row,), words("old")) for row in ROWS], layout)
    assert batch.given is not None
    found = pair.compressor(batch.given, pair.generator.words)
    assert found.spans is not None
    torch.manual_seed(5)
    every = torch.randn_like(found.spans.every())
    every[found.spans.every() < -1000] = -1e4
    every = every.log_softmax(1)
    told = Spans(every[:, 1:].view_as(found.spans.table), every[:, 0], found.spans.end)
    apart = F.kl_div(found.spans.every(), every, log_target=True, reduction="batchmean")
    some = 1 - every[:, 0].exp()
    relevance = F.binary_cross_entropy(torch.sigmoid(found.relevance), some)
    taught = taught_loss(found, told)
    assert taught.item() == pytest.approx((apart + relevance).item(), rel=1e-4)
    assert losses(pair, batch, told).taught.item() == pytest.approx(taught.item(), rel=1e-4)
    assert losses(pair, batch).taught.item() == 0


def test_what_is_kept_is_the_divergence_of_spans_given_an_answer() -> None:
    pair, old = tiny_pair(bounds=True), tiny_pair(bounds=True)
    layout = Layout(pair.shape, SPECIALS, pair.compressor.slot_positions)
    batch = collate([Item(row.question, (row,), words("old")) for row in ROWS], layout)
    assert batch.given is not None
    with torch.no_grad():
        for weights in old.compressor.pointer.parameters():
            weights.add_(torch.randn_like(weights))
    assert losses(pair, batch, before=pair.compressor).kept.item() == pytest.approx(0, abs=1e-6)
    result = losses(pair, batch, before=old.compressor)
    found, wanted = (
        each.compressor(batch.given, each.generator.words).spans for each in (pair, old)
    )
    apart = F.kl_div(*(spans.table.flatten(1).log_softmax(1) for spans in (found, wanted)),
                     log_target=True, reduction="batchmean")  # fmt: skip
    assert result.kept.item() == pytest.approx(apart.item(), rel=1e-4)
    assert apart.item() > 0.1  # else nothing is shown
    result.kept.backward()
    head = pair.compressor.pointer.span
    assert head.weight.grad.abs().sum() > 0
    assert all(weights.grad is None for weights in old.parameters())
    assert pair.compressor.rerank.weight.grad is None  # whether there is an answer is free


def beginning(base: Path, data: Path, recipe: Recipe, shape: OscarShape = SHAPE) -> Start:
    mix = Mix(smallest=16, spelled=0, plain=0, none=0)
    return prepare(Origins(base), data, shape, recipe, mix=mix)


def test_a_pair_comes_nearer_to_its_teacher(
    base_folder: Path, data_folder: Path, tmp_path: Path, reader: Path
) -> None:
    recipe = Recipe(
        steps=100, tokens=600, warmup=5, cloze_only=0, cloze=20, new_rate=3e-3,
        backbone_rate=2e-3, relevance_weight=0, pointer_weight=0,
    )  # fmt: skip
    setup = TrainingSetup(every=50, dtype=torch.float32)
    start = beginning(base_folder, data_folder, recipe)
    train(start, tmp_path, limit=0, setup=setup, teacher=reader)
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    told = [row["taught"] for row in log if "taught" in row]
    assert told[-1] < 0.7 * told[0], told
    checkpoint = latest(tmp_path)
    assert checkpoint is not None
    state = json.loads((checkpoint.path / "state.json").read_text())
    assert sha256_of(reader / "model.safetensors") in json.dumps(state)


def test_a_run_that_keeps_needs_something_to_keep(
    base_folder: Path, data_folder: Path, tmp_path: Path
) -> None:
    start = beginning(base_folder, data_folder, Recipe(cloze=20, keep_weight=1))
    with pytest.raises(InputError, match=r"keep_weight=1: what is kept .* goes on from"):
        train(start, tmp_path, limit=0)


def test_a_teacher_of_no_use_is_refused_by_name(
    base_folder: Path, data_folder: Path, tmp_path: Path, reader: Path
) -> None:
    told = json.loads((reader / "tokenizer.json").read_text())
    del told["model"]["vocab"]["mill"]
    other = tmp_path / "other"
    other.mkdir()
    for file in reader.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    (other / "tokenizer.json").write_text(json.dumps(told))
    with pytest.raises(InputError, match=r"lacks 1 of the pair's .* such as 'mill'"):
        Teacher.open(other, tiny_tokenizer(), device=CPU, dtype=torch.float32)
    with pytest.raises(InputError, match="no span reader"):
        Teacher.open(base_folder.parent, tiny_tokenizer(), device=CPU, dtype=torch.float32)
    shape = tiny_shape(query_tokens=24, passage_tokens=48)
    start = beginning(base_folder, data_folder, Recipe(steps=1, cloze=20), shape)
    setup = TrainingSetup(dtype=torch.float32)
    with pytest.raises(InputError, match=r"teacher: .*--bounds"):
        train(start, tmp_path / "run", limit=0, setup=setup, teacher=reader)

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_pair import tiny_tokenizer
from torch.nn import functional as F
from transformers import BertForQuestionAnswering, MPNetConfig, MPNetModel

from condensery.agreement import exact_match
from condensery.errors import InputError
from condensery.methods.reader.batches import PairForm, Row, collate
from condensery.methods.reader.recipe import ReaderRecipe
from condensery.methods.reader.span_reader import SpanReader
from condensery.methods.reader.training import main, new_reader, span_loss, train
from condensery.methods.trainer.method import TrainingSetup

RECIPE = ReaderRecipe(
    steps=120, tokens=400, warmup=10, backbone_rate=3e-3, new_rate=3e-3, smallest=8,
    passage_tokens=40, query_tokens=16, answer_tokens=4, others=1.0, held_articles=1,
)  # fmt: skip
CPU = torch.device("cpu")


def test_training_learns_to_find_answers_and_none(
    base: Path, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    # The number after "long" answers; one after another word, in a second passage, does not.
    for i, row in enumerate(rows):
        other = rows[i - 1]["context"].replace("long", "stone")
        row["other"] = other.replace(row["answers"][0], "7")
    for i, row in enumerate(rows):
        row["passages"] = [row.pop("context"), row.pop("other")]
        row["title"] = "Held" if i % 8 == 0 else ""
    questions = tmp_path / "train.jsonl"
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = tmp_path / "run"
    folder = train(
        base,
        [questions],
        run,
        RECIPE,
        setup=TrainingSetup(device=CPU, dtype=torch.float32, every=60),
    )
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    validations = [row["validation"] for row in log if "validation" in row]
    assert len(validations) == 2
    assert validations[-1]["em"] > 25, "of an article that it never saw, both passages given"
    reader = SpanReader.open(run, device=CPU, dtype=torch.float32)
    asked = [row["question"] for row in rows[:40]]
    gold, none = (
        reader.read(asked, [[row["passages"][which]] for row in rows[:40]]) for which in (0, 1)
    )
    right = [
        exact_match(answer.text, row["answers"]) for answer, row in zip(gold, rows, strict=False)
    ]
    assert sum(right) > 12, "of 40, where chance would find two"
    pairs = list(zip(gold, none, strict=True))
    surer = sum(a.score > b.score for a, b in pairs)
    assert surer > 28, "that there is an answer where there is one"
    model = BertForQuestionAnswering.from_pretrained(folder, local_files_only=True)
    assert model.config.passage_tokens == 40
    card = json.loads((folder / "card.json").read_text())
    assert card["recipe"]["steps"] == 120
    assert next(iter(card["data"].values()))["questions"] == 175


def test_the_loss_is_the_cross_entropy_over_passage_and_none(base: Path) -> None:
    model = new_reader(base, RECIPE).eval()
    rows = [
        Row(torch.tensor([50, 51]).numpy(), torch.tensor([60, 61, 62]).numpy(), (1, 3)),
        Row(torch.tensor([52]).numpy(), torch.tensor([63, 64]).numpy()),
    ]
    batch = collate(rows, PairForm(2, 3))
    loss = span_loss(model, batch)
    out = model(**batch.inputs)
    expected = []
    for i, (at, start, end) in enumerate((([0, 4, 5, 6], 2, 3), ([0, 3, 4], 0, 0))):
        for logits, wanted in ((out.start_logits, start), (out.end_logits, end)):
            expected.append(F.cross_entropy(logits[i, at][None], torch.tensor([wanted])))
    assert loss.total.item() == pytest.approx(torch.stack(expected).mean().item(), abs=1e-5)
    assert (loss.weight, loss.items) == (2, 2)
    assert torch.isfinite(loss.total)
    assert not model.bert.embeddings.word_embeddings.weight.requires_grad


def test_an_mpnet_becomes_a_reader_that_another_run_goes_on_from(
    tmp_path: Path, questions: Path
) -> None:
    base = tmp_path / "mpnet"
    told = json.loads(tiny_tokenizer().to_str())
    known = [word for word in told["model"]["vocab"] if word not in ("[PAD]", "[CLS]", "[SEP]")]
    words = ["<s>", "<pad>", "</s>", *known]
    told["model"]["vocab"] = {word: at for at, word in enumerate(words)}
    torch.manual_seed(3)
    config = MPNetConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=48, max_position_embeddings=61,
    )  # fmt: skip
    MPNetModel(config, add_pooling_layer=False).save_pretrained(base)
    (base / "tokenizer.json").write_text(json.dumps(told))
    setup = TrainingSetup(device=CPU, dtype=torch.float32, every=60)
    recipe = replace(RECIPE, steps=60)
    first = train(base, [questions], tmp_path / "first", recipe, setup=setup)
    log = [json.loads(line) for line in (first.parent / "log.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in log if "loss" in row]
    assert losses[-1] < 1.5, "of ten words one answers: chance is 2.4"
    with pytest.raises(
        InputError, match=r"passage_tokens=41.*60 positions, and the encoder has 59"
    ):
        new_reader(base, replace(RECIPE, passage_tokens=41))
    again, fresh = new_reader(first, RECIPE), new_reader(base, RECIPE)
    kept = load_file(first / "model.safetensors")["qa_outputs.weight"]
    assert torch.equal(again.qa_outputs.weight, kept)
    assert not torch.equal(fresh.qa_outputs.weight, kept)
    assert not again.get_input_embeddings().weight.requires_grad


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tokens": 0}, "tokens=0"),
        ({"passage_tokens": 16, "smallest": 32}, "passage_tokens=16"),
        ({"steps": 0}, "steps=0"),
    ],
)
def test_sizes_that_can_not_be_are_refused_by_name(changes: dict[str, int], says: str) -> None:
    with pytest.raises(InputError, match=says):
        replace(RECIPE, **changes).trainer(10)


def test_bad_input_is_refused_before_anything_is_written(
    base: Path, questions: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with pytest.raises(InputError, match="shares="):
        train(base, [questions], out, RECIPE, shares=[0.0])
    with pytest.raises(InputError, match="passage_tokens=200"):
        train(base, [questions], out, replace(RECIPE, passage_tokens=200))
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        train(tmp_path, [questions], out, RECIPE)
    assert not out.exists()


@pytest.mark.tiny_run
def test_the_command_trains(base: Path, questions: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    flags = ["--steps", "2", "--tokens", "200", "--passage-tokens", "40", "--smallest", "8"]
    flags += ["--query-tokens", "16", "--held-articles", "1", "--dtype", "float32"]
    main(["--base", str(base), "--questions", str(questions), "--out", str(out), *flags])
    card = json.loads((out / "model" / "card.json").read_text())
    assert card["command"].startswith("condensery train extractive-reader --base")
    assert str(tmp_path) not in json.dumps(card)

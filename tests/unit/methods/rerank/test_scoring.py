import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_pair import sharpen, text_of
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertForSequenceClassification,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)

from condensery.errors import InputError, ModelFault
from condensery.methods.rerank import scoring
from condensery.methods.rerank.model import open_base
from condensery.methods.rerank.scoring import CrossEncoder, longest

CPU = torch.device("cpu")
QUERY = "who is in the old town"
PASSAGES = [text_of(count, seed=count) for count in (3, 40, 7, 200, 1, 0, 24, 40)]


def write(folder: Path, base: Path) -> BertForSequenceClassification:
    model, reader = open_base(base, 96, seed=3)
    sharpen(model.bert.encoder, 5)
    sharpen(model.classifier, 50)
    model.save_pretrained(folder)
    reader.tokenizer.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def folder(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "model"
    write(path, base)
    return path


def alone(folder: Path, query: str, passages: list[str], length: int) -> list[float]:
    """Score as transformers does, one pair at a time."""
    model: Any = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    scores = []
    for passage in passages:
        inputs = tokenizer(
            [query], [passage], truncation="only_second", max_length=length, return_tensors="pt"
        )
        with torch.no_grad():
            scores.append(float(model(**inputs).logits))
    return scores


@pytest.mark.parametrize("tokens", [64, 300, 10_000])
def test_scores_are_those_of_transformers_alone(
    folder: Path, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "CPU_TOKENS", tokens)
    scored = CrossEncoder.open(folder, device=CPU, dtype=torch.float32).scores(QUERY, PASSAGES)
    wanted = alone(folder, QUERY, PASSAGES, 96)
    assert scored == pytest.approx(wanted, abs=1e-4)
    assert max(wanted) - min(wanted) > 0.1  # else any order of them would pass


def test_a_cross_encoder_of_another_family_scores_as_transformers_does(
    folder: Path, tmp_path: Path
) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(0)
    config = XLMRobertaConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=48, max_position_embeddings=50, pad_token_id=0, num_labels=1,
    )  # fmt: skip
    model = XLMRobertaForSequenceClassification(config)
    sharpen(model.roberta.encoder, 5)
    sharpen(model.classifier, 50)
    model.save_pretrained(tmp_path)
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    tokenizer.model_max_length = 10**30
    tokenizer.save_pretrained(tmp_path)
    opened = CrossEncoder.open(tmp_path, device=CPU, dtype=torch.float32)
    assert opened.pair_tokenizer.length == 49  # its positions are counted from behind the padding's
    scored = opened.scores(QUERY, PASSAGES)
    assert scored == pytest.approx(alone(tmp_path, QUERY, PASSAGES, 49), abs=1e-4)


def test_no_passages_have_no_scores_and_a_query_of_any_length_is_scored(folder: Path) -> None:
    opened = CrossEncoder.open(folder, device=CPU, dtype=torch.float32, length=40)
    assert opened.pair_tokenizer.length == 40
    assert opened.scores(QUERY, []) == []
    first, second = opened.scores(text_of(500), ["old mill", "new river"])
    assert abs(first - second) > 1e-3  # something is left of each passage


def test_a_score_that_is_not_finite_is_a_fault(folder: Path, tmp_path: Path, base: Path) -> None:
    write(tmp_path / "model", base)
    weights = load_file(tmp_path / "model" / "model.safetensors")
    weights["classifier.bias"].fill_(float("nan"))
    save_file(weights, tmp_path / "model" / "model.safetensors", {"format": "pt"})
    opened = CrossEncoder.open(tmp_path / "model", device=CPU, dtype=torch.float32)
    with pytest.raises(ModelFault, match="the score of passage 0 is nan"):
        opened.scores("old", ["mill"])


def test_what_is_no_cross_encoder_is_refused_by_name(base: Path, tmp_path: Path) -> None:
    def refusal(path: Path) -> str:
        with pytest.raises(InputError) as caught:
            CrossEncoder.open(path, device=CPU, dtype=torch.float32)
        assert str(path) in caught.value.message
        return caught.value.message

    assert "no config.json" in refusal(tmp_path)
    assert "2 labels" in refusal(base)  # transformers' default, for it says nothing
    folder = tmp_path / "model"
    write(folder, base)
    weights = load_file(folder / "model.safetensors")
    bare = {k: v for k, v in weights.items() if not k.startswith("classifier")}
    save_file(bare, folder / "model.safetensors", {"format": "pt"})
    assert "weights are missing: classifier.bias, classifier.weight" in refusal(folder)
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    assert "safetensors" in refusal(folder)
    config = json.loads((folder / "config.json").read_text())
    own = {"AutoConfig": "own.Config", "AutoModelForSequenceClassification": "own.Model"}
    (folder / "own.py").write_text("raise SystemExit('code of the model has run')\n")
    (folder / "config.json").write_text(
        json.dumps({**config, "model_type": "its-own", "auto_map": own})
    )
    assert "trust_remote_code" in refusal(folder)


def test_the_longest_pair_is_what_both_network_and_tokenizer_allow() -> None:
    class Some:
        def __init__(self, **fields: object) -> None:
            self.__dict__.update(fields)

    bert = Some(model_type="bert", max_position_embeddings=512)
    assert longest(bert, Some(model_max_length=128)) == 128
    assert longest(bert, Some(model_max_length=10**30)) == 512
    roberta = Some(model_type="xlm-roberta", max_position_embeddings=514, pad_token_id=1)
    assert longest(roberta, Some(model_max_length=8192)) == 512
    assert longest(Some(model_type="other"), Some(model_max_length=10**30)) == 512

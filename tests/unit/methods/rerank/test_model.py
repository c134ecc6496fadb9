import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_pair import VOCABULARY, write_base
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertModel

from condensery.errors import InputError
from condensery.methods.rerank.model import open_base, write_model


def change(folder: Path, name: str, **values: object) -> None:
    about = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps({**about, **values}))


def test_the_bases_weights_are_taken_and_the_head_is_new_and_by_seed(base: Path) -> None:
    first, again, other = (open_base(base, 64, seed)[0] for seed in (1, 1, 2))
    own = BertModel.from_pretrained(base, add_pooling_layer=False).state_dict()
    made = first.bert.state_dict()
    assert all(torch.equal(own[name], made[name]) for name in own)
    assert first.classifier.weight.shape == (1, 32)
    assert torch.equal(first.classifier.weight, again.classifier.weight)
    assert not torch.equal(first.classifier.weight, other.classifier.weight)


def test_a_written_model_is_read_by_transformers_and_replaces_another(
    base: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    write_model(tmp_path, *_open(base, 1), {"seed": 1})
    model, tokenizer = _open(base, 2)
    write_model(tmp_path, model, tokenizer, {"seed": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert json.loads((folder / "card.json").read_text()) == {"seed": 2}
    read = AutoModelForSequenceClassification.from_pretrained(folder, local_files_only=True)
    assert torch.equal(read.classifier.weight, model.classifier.weight)
    assert read.config.num_labels == 1
    encoded = AutoTokenizer.from_pretrained(folder)("old mill", "town")
    assert encoded["input_ids"] == tokenizer("old mill", "town")["input_ids"]
    assert encoded["token_type_ids"] == [0, 0, 0, 0, 1, 1]


def _open(base: Path, seed: int):  # type: ignore[no-untyped-def]
    model, reader = open_base(base, 64, seed)
    return model, reader.tokenizer


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_type": "roberta"}, r"base: .* model_type is 'roberta', not 'bert'"),
        ({"vocab_size": len(VOCABULARY) - 1}, r"tokenizer: .* has \d+ tokens, the network \d+"),
        ({"vocab_size": 30_522}, r"tokenizer: .* tokens, the network 30522"),
        ({"pad_token_id": 5}, "pads with 0, the network with 5"),
        ({"max_position_embeddings": 32}, "length=64: .* positions for 32 tokens"),
    ],
)
def test_a_base_of_no_use_is_refused_by_name(
    tmp_path: Path, changes: dict[str, object], says: str
) -> None:
    folder = write_base(tmp_path / "base")
    change(folder, "config.json", **changes)
    with pytest.raises(InputError, match=says):
        open_base(folder, 64, seed=1)


def test_a_base_that_lacks_files_or_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"base: .*config\.json"):
        open_base(tmp_path, 64, seed=1)
    folder = write_base(tmp_path / "base")
    weights = load_file(folder / "model.safetensors")
    gone = next(name for name in weights if "layer.1" in name)
    rest = {name: value for name, value in weights.items() if name != gone}
    save_file(rest, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=f"weights are missing: .*{gone}"):
        open_base(folder, 64, seed=1)
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match="safetensors"):
        open_base(folder, 64, seed=1)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        open_base(folder, 64, seed=1)


def test_a_tokenizer_without_berts_marks_is_refused(tmp_path: Path) -> None:
    folder = write_base(tmp_path / "base")
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text.replace("[SEP]", "[END]"))
    with pytest.raises(InputError, match=r"has no \[SEP\]"):
        open_base(folder, 64, seed=1)

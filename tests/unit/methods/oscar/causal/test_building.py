import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_causal import bpe
from tokenizers import AddedToken, Tokenizer
from transformers import AutoModelForCausalLM

from condensery.errors import InputError
from condensery.methods.oscar.causal.building import Bases, PairSources
from condensery.methods.oscar.causal.network import new_pair
from condensery.methods.oscar.causal.recipe import CausalRecipe
from condensery.store.published_pairs import SYSTEM


def test_a_pair_is_addressed_as_published_pairs_are(
    bases: dict[str, Path], kinds: dict[str, PairSources]
) -> None:
    made = Bases(kinds["first layers"])
    generator, compressor = made.shape.generator, made.shape.compressor
    assert generator.before == f"<s>[INST] {SYSTEM}\nBackground:\n"
    assert (generator.between, generator.after) == ("\n\nQuestion:", " [/INST]")
    assert generator.memory == ("<MEM0>", "<MEM1>", "<MEM2>", "<MEM3>")
    assert generator.passage_after == "<SEP>"
    assert (compressor.layout, compressor.text_tokens) == ("joined", 24 + 12 + 8)
    assert (compressor.final_norm, compressor.mapping_size) == (False, 0)
    other = Bases(kinds["another model"]).shape.compressor
    assert (other.layout, other.text_tokens) == ("pair", 24 + 12 + 3)
    assert (other.final_norm, other.mapping_size) == (True, 40)
    # Qwen2's tokenizer puts nothing between two texts.
    plain = Bases(PairSources(bases["wide"], compressor=bases["qwen2"], mapping_size=8))
    assert plain.shape.compressor.layout == "joined"
    assert plain.end == bpe("mistral").token_to_id("</s>")


def test_new_tokens_are_special_and_have_rows(kinds: dict[str, PairSources]) -> None:
    for built in kinds.values():
        made = Bases(built)
        for name in ("<MEM0>", "<MEM3>", "<AE>"):
            (number,) = made.tokenizer.encode(f"{name}", add_special_tokens=False).ids[-1:]
            assert number == made.tokenizer.token_to_id(name) < made.configs[1].vocab_size
        assert len(made.new_ids) == 4 + 1 + built.separator


def test_a_base_without_a_template_is_addressed_plainly(
    bases: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(bases["llama"], tmp_path / "base")
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    content = json.loads((folder / "tokenizer_config.json").read_text())
    content.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(content))
    made = Bases(PairSources(folder, layers=1)).shape.generator
    assert made.before == "<|begin_of_text|>Background:\n"
    assert (made.between, made.after) == ("\n\nQuestion: ", "\nAnswer:\n")
    with pytest.raises(InputError, match=r"holds no chat template"):
        Bases(PairSources(folder, layers=1, prompt="chat"))


@pytest.mark.parametrize(
    ("sources", "says"),
    [
        ({}, "give one of compressor, layers, every_nth, bert, not none"),
        ({"layers": 2, "every_nth": 2}, "give one of .*'layers': 2, 'every_nth': 2"),
        ({"layers": 9}, "layers=9: the generator has 4 layers"),
        ({"every_nth": 5}, "every_nth=5: the generator has 4 layers"),
        ({"layers": -1}, "layers=-1: too small"),
        ({"layers": 1, "memory_tokens": 0}, "memory_tokens=0: too small"),
        ({"layers": 1, "layout": "odd"}, "layout='odd': none of"),
        ({"layers": 1, "positions": 9000}, "positions=9000: the generator has 4096"),
        ({"layers": 1, "passage_tokens": 5000}, "the longest text takes 5081 positions"),
    ],
)
def test_what_can_not_be_built_is_named(
    sources: dict[str, Any], says: str, bases: dict[str, Path]
) -> None:
    with pytest.raises(InputError, match=says):
        new_pair(Bases(PairSources(bases["mistral"], **sources)), CausalRecipe())


def grown(folder: Path) -> None:
    """Give a base a tokenizer with more tokens than it has rows."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(f"odd{i}") for i in range(60)])
    (folder / "tokenizer.json").write_text(tokenizer.to_str())


def unreadable(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")


def no_model(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "t5"}))


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def fewer(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    state = model.state_dict()
    del state["model.layers.1.mlp.up_proj.weight"]
    model.save_pretrained(folder, state_dict=state)


@pytest.mark.parametrize("half", ["generator", "compressor"])
@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (grown, r"tokenizer.json has tokens up to \d+, and its network \d+ rows"),
        (unreadable, "tokenizer.json can't be read"),
        (no_model, "model_type 't5' is no causal language model"),
        (no_weights, "holds no weights"),
        (fewer, r"layers.1.mlp.up_proj.weight is missing"),
    ],
)
def test_a_directory_that_is_no_base_is_refused(
    half: str, harm: Callable[[Path], None], says: str, bases: dict[str, Path], tmp_path: Path
) -> None:
    bad = shutil.copytree(bases["llama"], tmp_path / "bad")
    harm(bad)
    chosen = {"generator": bases["wide"], "compressor": bases["llama"]} | {half: bad}
    with pytest.raises(InputError, match=says):
        new_pair(Bases(PairSources(**chosen, mapping_size=8)), CausalRecipe())
    with pytest.raises(InputError, match=r"is not a directory"):
        Bases(PairSources(**chosen | {half: tmp_path / "none"}, mapping_size=8))


def test_a_bert_must_be_one(bases: dict[str, Path]) -> None:
    with pytest.raises(InputError, match=r"bert: model_type 'llama' is no BERT encoder"):
        Bases(PairSources(bases["wide"], bert=bases["llama"]))
    with pytest.raises(InputError, match=r"the shape needs \d+ positions"):
        new_pair(
            Bases(PairSources(bases["llama"], bert=bases["bert"], mapping_size=8)), CausalRecipe()
        )


def test_fingerprints_change_with_any_file(bases: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(bases["llama"], tmp_path / "base")
    built = PairSources(bases["wide"], compressor=folder, mapping_size=8)
    before = Bases(built).fingerprints
    assert before == Bases(built).fingerprints
    assert before.keys() == {"generator", "compressor"}
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    model.save_pretrained(folder)
    after = Bases(built).fingerprints
    assert after["generator"] == before["generator"]
    assert after["compressor"] != before["compressor"]


def test_what_a_pair_is_built_from_can_be_written_and_read(kinds: dict[str, PairSources]) -> None:
    for built in kinds.values():
        assert PairSources.from_dict(json.loads(json.dumps(built.to_dict()))) == built

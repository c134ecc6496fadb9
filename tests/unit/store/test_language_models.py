from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_published import CHATML, write_base

from condensery.errors import StoreError
from condensery.store.language_models import CONTEXT, QUESTION, LanguageModel

ChangeJson = Callable[..., None]
USER = f"Read:{CONTEXT}\nQuestion:{QUESTION}"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_base(tmp_path / "base", "mistral")


def model(base: Path) -> LanguageModel:
    return LanguageModel(base, "generator_base")


@pytest.mark.parametrize(
    ("kind", "side", "left"),
    [
        ("LlamaTokenizer", None, True),
        ("LlamaTokenizerFast", None, True),
        ("Qwen2Tokenizer", None, False),
        ("LlamaTokenizer", "right", False),
        ("Qwen2Tokenizer", "left", True),
    ],
)
def test_a_tokenizer_pads_as_its_file_says_else_as_its_class_does(
    base: Path, change_json: ChangeJson, kind: str, side: str | None, left: bool
) -> None:
    path = base / "tokenizer_config.json"
    change_json(path, tokenizer_class=kind, padding_side=side)
    assert model(base).pads_left == left


def test_answers_end_where_the_generation_configuration_says(
    base: Path, change_json: ChangeJson
) -> None:
    change_json(base / "config.json", eos_token_id=7)
    assert model(base).stop == (2,)
    change_json(base / "generation_config.json", eos_token_id=[3, 4])
    assert model(base).stop == (3, 4)
    (base / "generation_config.json").unlink()
    assert model(base).stop == (7,)
    change_json(base / "config.json", eos_token_id=None)
    with pytest.raises(StoreError, match="eos_token_id None is no token's id"):
        _ = model(base).stop


def test_a_template_without_system_texts_gets_one_turn(base: Path) -> None:
    prompt = model(base).prompt("Be brief.", USER)
    assert prompt.before == "<s>[INST] Be brief.\nRead:"
    assert (prompt.between, prompt.after, prompt.strip) == ("\nQuestion:", " [/INST]", True)


@pytest.mark.parametrize("place", ["config", "named", "file"])
def test_a_template_is_found_wherever_transformers_keeps_it(
    base: Path, change_json: ChangeJson, place: str
) -> None:
    (base / "chat_template.jinja").unlink()
    if place == "file":
        (base / "chat_template.jinja").write_text(CHATML)
    else:
        named = [{"name": "tools", "template": "x"}, {"name": "default", "template": CHATML}]
        template = CHATML if place == "config" else named
        change_json(base / "tokenizer_config.json", chat_template=template)
    prompt = model(base).prompt("Be brief.", USER)
    assert prompt.before == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nRead:"
    assert prompt.after == "<|im_end|>\n<|im_start|>assistant\n"
    assert not prompt.strip


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ raise_exception('no') }}", "its chat template fails: no"),
        ("{% if %}", "its chat template fails"),
        ("{{ messages[-1].content * 2 }}", "does not hold the user's text once"),
        ("nothing", "does not hold the user's text once"),
    ],
)
def test_a_template_that_does_not_serve_is_refused(base: Path, template: str, says: str) -> None:
    (base / "chat_template.jinja").write_text(template)
    with pytest.raises(StoreError, match=says):
        model(base).prompt("Be brief.", USER)


def test_special_tokens_are_read_in_either_form(base: Path, change_json: ChangeJson) -> None:
    change_json(base / "tokenizer_config.json", bos_token={"content": "<s>", "lstrip": False})
    assert (model(base).special("bos_token"), model(base).special("eos_token")) == ("<s>", "</s>")
    change_json(base / "tokenizer_config.json", bos_token=None)
    with pytest.raises(StoreError, match=r"tokenizer_config.json names no bos_token"):
        model(base).special("bos_token")


def test_shards_outside_the_directory_are_refused(base: Path, change_json: ChangeJson) -> None:
    (base / "model.safetensors").rename(base.parent / "model.safetensors")
    index = base / "model.safetensors.index.json"
    for name in ("../model.safetensors", "gone.safetensors"):
        change_json(index, weight_map={"a": name})
        with pytest.raises(StoreError, match="which is missing"):
            list(model(base).tensors())
    change_json(index, weight_map=3)
    with pytest.raises(StoreError, match="holds no weight_map"):
        list(model(base).tensors())


def test_buffers_among_the_weights_are_no_weights(base: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    path = base / "model.safetensors"
    before = {name for name, _ in model(base).tensors()}
    state = load_file(path)
    state["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(state, path, metadata={"format": "pt"})
    assert {name for name, _ in model(base).tensors()} == before
    path.write_bytes(b"no weights")
    with pytest.raises(StoreError, match=r"generator_base: base/model.safetensors: "):
        list(model(base).tensors())

"""What published directories say, and what is refused, by name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from condensery.errors import StoreError
from condensery.store.layouts import read_encoder, read_licence, read_sentence_transformers

ChangeJson = Callable[..., None]
POOLING = "1_Pooling/config.json"
ABOUT = "config_sentence_transformers.json"


def set_modules(directory: Path, *types: str) -> None:
    paths = {"Transformer": "", "Pooling": "1_Pooling"}
    modules = [{"type": kind, "path": paths.get(kind.rsplit(".", 1)[-1], "x")} for kind in types]
    (directory / "modules.json").write_text(json.dumps(modules))


def test_a_sentence_transformers_directory_says_it_all(sentence_bert: Path) -> None:
    layout = read_sentence_transformers(sentence_bert)
    assert sorted(layout.files) == [
        *("card.md", "config.json", "model.safetensors"),
        *("tokenizer.json", "tokenizer_config.json"),
    ]
    assert (layout.pooling, layout.normalize, layout.max_tokens) == ("mean", True, 24)
    assert layout.shape == {"architecture": "BertModel", "dims": 16, "layers": 2}
    assert layout.prompts == {"query": "query: ", "document": ""}
    assert layout.default_prompt is None


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, "last"),
        ({"pooling_mode_mean_tokens": None, "pooling_mode": "mean"}, "mean"),
        ({"pooling_mode_mean_tokens": None, "pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode_mean_tokens": None, "pooling_mode": ["cls"]}, "cls"),
    ],
)
def test_pooling_is_read_from_flags_and_from_its_name(
    sentence_bert: Path, change_json: ChangeJson, config: dict[str, Any], pooling: str
) -> None:
    change_json(sentence_bert / POOLING, **config)
    assert read_sentence_transformers(sentence_bert).pooling == pooling


def test_normalisation_is_that_of_the_modules(sentence_bert: Path) -> None:
    set_modules(
        sentence_bert,
        "sentence_transformers.models.Transformer",
        "sentence_transformers.models.Pooling",
    )
    assert read_sentence_transformers(sentence_bert).normalize is False


def test_modules_of_a_newer_release_are_known_by_their_last_name(sentence_bert: Path) -> None:
    set_modules(
        sentence_bert,
        "sentence_transformers.base.modules.transformer.Transformer",
        "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    )
    assert read_sentence_transformers(sentence_bert).pooling == "mean"


def test_a_transformer_in_a_folder_of_its_own_is_found(sentence_bert: Path) -> None:
    inner = sentence_bert / "0_Transformer"
    inner.mkdir()
    for path in list(sentence_bert.iterdir()):
        if path.name.startswith(("config.json", "model.", "tokenizer", "sentence_bert")):
            shutil.move(path, inner / path.name)
    modules = json.loads((sentence_bert / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (sentence_bert / "modules.json").write_text(json.dumps(modules))
    layout = read_sentence_transformers(sentence_bert)
    assert layout.files["model.safetensors"] == inner / "model.safetensors"
    assert layout.files["card.md"] == sentence_bert / "README.md"
    assert layout.max_tokens == 24


def test_lengths_that_vectors_may_be_cut_to_are_read(
    sentence_bert: Path, change_json: ChangeJson
) -> None:
    change_json(sentence_bert / "config.json", matryoshka_dimensions=[8, 4])
    assert read_sentence_transformers(sentence_bert).shape["matryoshka"] == [8, 4]


def test_prompts_and_the_default_prompt_are_read(
    sentence_bert: Path, change_json: ChangeJson
) -> None:
    change_json(sentence_bert / ABOUT, prompts={"q": "ask: "}, default_prompt_name="q")
    layout = read_sentence_transformers(sentence_bert)
    assert (layout.prompts, layout.default_prompt) == ({"q": "ask: "}, "q")


Break = Callable[[Path, ChangeJson], None]
REFUSED: dict[str, tuple[Break, str]] = {
    "Dense": (
        lambda d, _: set_modules(
            d, *(f"sentence_transformers.models.{m}" for m in ("Transformer", "Pooling", "Dense"))
        ),
        "a Dense module is not supported",
    ),
    "own code": (
        lambda d, _: set_modules(d, "custom_st.Transformer"),
        "'custom_st.Transformer' is code of the model's own, which is never run",
    ),
    "twice": (
        lambda d, _: set_modules(d, *["sentence_transformers.models.Transformer"] * 2),
        "Transformer is there twice",
    ),
    "no pooling": (
        lambda d, _: set_modules(d, "sentence_transformers.models.Transformer"),
        "expected Transformer, Pooling",
    ),
    "wrong order": (
        lambda d, _: set_modules(
            d, "sentence_transformers.models.Pooling", "sentence_transformers.models.Transformer"
        ),
        "in this order",
    ),
    "no modules": (lambda d, _: set_modules(d), "modules.json: nothing; expected"),
    "modules a map": (lambda d, _: (d / "modules.json").write_text("{}") and None, "not a list"),
    "modules broken": (lambda d, _: (d / "modules.json").write_text("[") and None, "is not JSON"),
    "modules of numbers": (lambda d, _: (d / "modules.json").write_text("[1]") and None, "modules"),
    "module outside": (
        lambda d, _: (
            (d / "modules.json").write_text(
                '[{"type": "sentence_transformers.models.Transformer", "path": "../x"}]'
            )
            and None
        ),
        r"path \.\./x: points outside",
    ),
    "max pooling": (
        lambda d, c: c(d / POOLING, pooling_mode_mean_tokens=False, pooling_mode_max_tokens=True),
        "mode max is not supported; only mean, cls, lasttoken are",
    ),
    "two poolings": (
        lambda d, c: c(d / POOLING, pooling_mode_cls_token=True),
        r"mode cls \+ mean is not supported",
    ),
    "no pooling mode": (
        lambda d, c: c(d / POOLING, pooling_mode_mean_tokens=False),
        "mode unknown is not supported",
    ),
    "other width": (
        lambda d, c: c(d / POOLING, word_embedding_dimension=17),
        "Pooling expects 17 dims, the network has 16",
    ),
    "prompt left out": (lambda d, c: c(d / POOLING, include_prompt=False), "include_prompt false"),
    "default prompt": (
        lambda d, c: c(d / ABOUT, default_prompt_name="nope"),
        "default_prompt_name 'nope' is not among the prompts",
    ),
    "prompts of numbers": (lambda d, c: c(d / ABOUT, prompts={"q": 1}), "prompts is not a map"),
    "sparse": (lambda d, c: c(d / ABOUT, model_type="SparseEncoder"), "a SparseEncoder is not"),
    "lower case": (
        lambda d, c: c(d / "sentence_bert_config.json", do_lower_case=True),
        "do_lower_case true, which the tokenizer does not",
    ),
    "length": (
        lambda d, c: c(d / "sentence_bert_config.json", max_seq_length="long"),
        "max_seq_length 'long' is no number",
    ),
    "task": (
        lambda d, c: c(d / "sentence_bert_config.json", transformer_task="fill-mask"),
        "transformer_task 'fill-mask'",
    ),
    "no weights": (lambda d, _: (d / "model.safetensors").unlink(), "holds no model.safetensors"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_give_other_vectors_is_refused_by_name(
    sentence_bert: Path, change_json: ChangeJson, case: str
) -> None:
    spoil, reason = REFUSED[case]
    spoil(sentence_bert, change_json)
    with pytest.raises(StoreError, match=reason):
        read_sentence_transformers(sentence_bert)


def test_lower_casing_that_the_tokenizer_does_itself_is_fine(
    sentence_bert: Path, change_json: ChangeJson
) -> None:
    change_json(sentence_bert / "sentence_bert_config.json", do_lower_case=True)
    change_json(sentence_bert / "tokenizer_config.json", do_lower_case=True)
    assert read_sentence_transformers(sentence_bert).max_tokens == 24


def test_the_longest_input_is_the_tightest_of_all_limits(
    sentence_bert: Path, change_json: ChangeJson
) -> None:
    settings = sentence_bert / "sentence_bert_config.json"
    change_json(settings, max_seq_length=10_000)
    assert read_sentence_transformers(sentence_bert).max_tokens == 32  # the tokenizer's
    settings.unlink()
    assert read_sentence_transformers(sentence_bert).max_tokens == 32
    change_json(sentence_bert / "tokenizer_config.json", model_max_length=10**30)
    assert read_sentence_transformers(sentence_bert).max_tokens == 64  # the network's
    change_json(sentence_bert / "config.json", model_type="roberta", pad_token_id=1)
    assert read_sentence_transformers(sentence_bert).max_tokens == 62  # two go unused


def test_a_plain_encoder_says_neither_pooling_nor_normalisation(bert: Path) -> None:
    layout = read_encoder(bert)
    assert (layout.pooling, layout.normalize, layout.max_tokens) == (None, None, 32)
    assert layout.notes == ()


def test_a_pickle_alone_is_refused_with_how_to_convert_it(bert: Path) -> None:
    (bert / "model.safetensors").rename(bert / "pytorch_model.bin")
    with pytest.raises(StoreError, match=r"pytorch_model\.bin: is a pickle.*save_pretrained"):
        read_encoder(bert)


def test_a_pickle_beside_safetensors_is_left_behind(bert: Path) -> None:
    (bert / "pytorch_model.bin").write_bytes(b"cos\nsystem\n")
    (bert / "modeling_own.py").write_text("raise SystemExit")
    assert not {"pytorch_model.bin", "modeling_own.py"} & set(read_encoder(bert).files)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "own", "auto_map": {"AutoModel": "m.Own"}}, "auto_map names is never run"),
        ({"model_type": "own"}, "model_type 'own' is not one that transformers has"),
        ({"model_type": None}, "model_type 'None'"),
        ({"model_type": ["bert"]}, "model_type"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"architectures": ["BertForSequenceClassification"]}, "is not an encoder"),
    ],
)
def test_a_network_that_is_no_known_encoder_is_refused(
    bert: Path, change_json: ChangeJson, changes: dict[str, Any], reason: str
) -> None:
    change_json(bert / "config.json", **changes)
    with pytest.raises(StoreError, match=reason):
        read_encoder(bert)


def test_code_that_is_not_needed_is_ignored_with_a_note(
    bert: Path, change_json: ChangeJson
) -> None:
    change_json(bert / "config.json", auto_map={"AutoModel": "modeling_own.Own"})
    change_json(bert / "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.Own", None]})
    first, second = read_encoder(bert).notes
    assert "auto_map of config.json was ignored" in first
    assert "auto_map of tokenizer_config.json was ignored" in second


def test_an_adapter_or_no_tokenizer_is_refused(bert: Path) -> None:
    weights = (bert / "model.safetensors").rename(bert / "adapter_model.safetensors")
    (bert / "adapter_config.json").write_text("{}")
    with pytest.raises(StoreError, match="LoRA adapter"):
        read_encoder(bert)
    weights.rename(bert / "model.safetensors")
    (bert / "tokenizer.json").unlink()
    with pytest.raises(StoreError, match="holds no tokenizer"):
        read_encoder(bert)


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ('{"weight_map": {"a": "one.safetensors"}}', "names one.safetensors, which is missing"),
        ('{"weight_map": {"a": "../one.safetensors"}}', r"names \.\./one\.safetensors"),
        ('{"weight_map": {"a": "one.bin"}}', "names one.bin"),
        ("{}", "holds no weight_map"),
        ("[]", "is not a JSON object"),
    ],
)
def test_a_shard_that_the_index_names_must_be_there(bert: Path, index: str, reason: str) -> None:
    (bert / "model.safetensors").unlink()
    (bert / "one.bin").write_bytes(b"pickle")
    (bert / "model.safetensors.index.json").write_text(index)
    with pytest.raises(StoreError, match=reason):
        read_encoder(bert)


def test_shards_are_taken_with_their_index(bert: Path) -> None:
    (bert / "model.safetensors").rename(bert / "model-00001-of-00001.safetensors")
    (bert / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "model-00001-of-00001.safetensors"}}'
    )
    files = set(read_encoder(bert).files)
    assert {"model.safetensors.index.json", "model-00001-of-00001.safetensors"} <= files


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ("---\nlicense: apache-2.0\n---\n", "apache-2.0"),
        ("---\nlanguage: en\nlicense: 'mit'  # so they say\n---\n", "mit"),
        ("---\r\nlicense: mit\r\n---\r\n", "mit"),
        ("---\nlicense:\n- cc-by-4.0\ntags:\n- x\n---\n", "cc-by-4.0"),
        ("---\nlicense: other\nlicense_name: own-terms\n---\n", "own-terms"),
        ("---\nlicense: other\n---\n", "other"),
        ("---\nlicense:\ntags:\n- x\n---\n", "unknown"),
        ("---\ntags: []\n---\nlicense: mit\n", "unknown"),
        ("license: mit\n", "unknown"),
        ("---\nlicense: mit\n", "unknown"),
        ("", "unknown"),
    ],
)
def test_the_licence_is_read_from_the_front_matter_only(
    tmp_path: Path, card: str, licence: str
) -> None:
    (tmp_path / "README.md").write_bytes(card.encode())
    assert read_licence(tmp_path / "README.md") == licence


def test_without_a_card_the_licence_is_unknown(tmp_path: Path) -> None:
    assert read_licence(tmp_path / "README.md") == "unknown"

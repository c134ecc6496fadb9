import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_pair import VOCABULARY, tiny_config, tiny_pair, tiny_shape, tiny_tokenizer
from transformers import BertForQuestionAnswering, LlamaConfig, LlamaForCausalLM

from condensery.errors import InputError, ModelNotFound
from condensery.methods.oscar.exporting import export
from condensery.methods.oscar.exporting import main as command
from condensery.methods.oscar.prefixes import Prefixes
from condensery.methods.oscar.starting import (
    END_OFFSET,
    Past,
    between,
    encoder_shape,
    language_model_shape,
    new_pair,
    run_weights,
    start_encoder,
    start_from,
    start_generator,
    start_only_generator,
    start_two_way,
)
from condensery.methods.trainer.checkpoints import save_checkpoint
from condensery.methods.trainer.texts import open_tokenizer
from condensery.networks.oscar import OscarPair
from condensery.networks.oscar_generator import TwoWayGenerator, standardised
from condensery.networks.packing import Packing
from condensery.networks.pointers import BoundsPointer, SpanPointer
from condensery.runtime.oscar_pair import word_embeddings
from condensery.store.store import ModelStore
from condensery.store.weights import load_state

SHAPE = tiny_shape(generator_layers=3)


def write_model(folder: Path, base: Path, **changes: Any) -> Path:
    """Write what ``condensery train lm --words`` leaves: a Llama over the encoder's words."""
    sizes = {
        "vocab_size": len(VOCABULARY),
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
    }
    torch.manual_seed(5)
    model = LlamaForCausalLM(LlamaConfig(**{**sizes, **changes}))
    words = load_file(base / "model.safetensors")["embeddings.word_embeddings.weight"]
    if model.config.hidden_size == 32:
        model.get_input_embeddings().weight.data.copy_(standardised(words)[: len(VOCABULARY)])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed" not in name:
                parameter.normal_(0.3 if parameter.ndim == 1 else 0.0, 0.2)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tiny_tokenizer().to_str())
    return folder


@pytest.fixture(scope="module")
def model(base_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("lm"), base_folder)


def test_the_generators_logits_are_the_language_models(base_folder: Path, model: Path) -> None:
    pair = new_pair(base_folder, SHAPE).eval()
    start_generator(pair, model, tiny_tokenizer())
    pair.generator.backbone.set_attn_implementation("sdpa")
    llama = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    ids = torch.randint(4, len(VOCABULARY), (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = llama(ids).logits
        generator = pair.generator
        logits = generator.logits(generator(generator.words[ids]).last_hidden_state)
    assert float(wanted.std()) > 0.5  # else nothing is shown
    torch.testing.assert_close(logits, wanted, rtol=1e-5, atol=1e-5)


def test_its_shape_is_the_language_models(model: Path) -> None:
    shape = tiny_shape(**language_model_shape(model))
    assert shape == SHAPE


def test_a_language_model_in_bf16_has_the_same_words(base_folder: Path, tmp_path: Path) -> None:
    folder = write_model(tmp_path, base_folder)
    state = {k: v.bfloat16() for k, v in load_file(folder / "model.safetensors").items()}
    save_file(state, folder / "model.safetensors")
    pair = new_pair(base_folder, SHAPE)
    start_generator(pair, folder, tiny_tokenizer())
    norm = state["model.norm.weight"].float()
    assert torch.equal(pair.generator.backbone.norm.weight, norm)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_hidden_layers": 2}, "num_hidden_layers=2, not 3"),
        ({"num_key_value_heads": 1}, "num_key_value_heads=1, not 2"),
        ({"intermediate_size": 40}, "intermediate_size=40, not 48"),
        ({"rms_norm_eps": 1e-5}, "rms_norm_eps=1e-05, not 1e-06"),
        ({"hidden_size": 64}, "hidden_size=64, not 32"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, "rope_theta=500000.0"),
    ],
)
def test_other_layers_are_refused_by_what_differs(
    base_folder: Path, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    folder = write_model(tmp_path, base_folder, **changes)
    with pytest.raises(InputError, match="language_model: not the generator's layers") as raised:
        start_generator(new_pair(base_folder, SHAPE), folder, tiny_tokenizer())
    assert says in raised.value.message
    assert raised.value.field == "language_model"


def test_other_words_are_refused(base_folder: Path, model: Path, tmp_path: Path) -> None:
    pair = new_pair(base_folder, SHAPE)
    folder = Path(shutil.copytree(model, tmp_path / "words"))
    state = load_file(folder / "model.safetensors")
    state["model.embed_tokens.weight"][7:9] += 1
    save_file(state, folder / "model.safetensors")
    with pytest.raises(InputError, match=r"2 of .* rows of embed_tokens are not the encoder's"):
        start_generator(pair, folder, tiny_tokenizer())
    folder = Path(shutil.copytree(model, tmp_path / "pieces"))
    text = json.loads((folder / "tokenizer.json").read_text())
    text["model"]["vocab"]["market"] = text["model"]["vocab"].pop("mill")
    (folder / "tokenizer.json").write_text(json.dumps(text))
    with pytest.raises(InputError, match="other word pieces"):
        start_generator(pair, folder, tiny_tokenizer())
    del state["model.embed_tokens.weight"]
    save_file(state, model.parent / "none.safetensors")
    with pytest.raises(InputError, match=r"language_model: .*config\.json"):
        start_generator(pair, tmp_path, tiny_tokenizer())


def test_a_tokenizer_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"tokenizer: .*tokenizer\.json"):
        open_tokenizer(tmp_path)


def equal(a: OscarPair, b: OscarPair, prefix: str) -> bool:
    pairs = zip(a.own_state().items(), b.own_state().values(), strict=True)
    return all(torch.equal(x, y) for (name, x), y in pairs if name.startswith(prefix))


def test_a_pair_of_the_same_shape_gives_both_halves(base_folder: Path) -> None:
    other = tiny_pair(generator_layers=3)
    pair = new_pair(base_folder, SHAPE)
    assert start_from(pair, other.own_state(), "other")
    assert equal(pair, other, "")


def test_a_pair_with_another_generator_gives_its_compressor_alone(base_folder: Path) -> None:
    pair, before = new_pair(base_folder, SHAPE), new_pair(base_folder, SHAPE)
    before.load_state_dict(pair.state_dict())
    other = tiny_pair(generator_layers=2)
    assert not start_from(pair, other.own_state(), "other")
    assert equal(pair, before, "generator.")
    for name, value in other.own_state().items():
        if name.startswith("compressor."):
            assert torch.equal(pair.own_state()[name], value)


def test_an_extractive_readers_layers_start_the_compressor(
    base_folder: Path, tmp_path: Path
) -> None:
    torch.manual_seed(5)
    reader = BertForQuestionAnswering(tiny_config())
    words = new_pair(base_folder, SHAPE).compressor.backbone.embeddings.word_embeddings.weight
    reader.bert.embeddings.word_embeddings.weight.data.copy_(words)
    reader.bfloat16().save_pretrained(tmp_path)
    pair = new_pair(base_folder, SHAPE)
    start_encoder(pair, [tmp_path])
    its = dict(reader.bert.named_parameters())
    for name, weight in pair.compressor.backbone.named_parameters():
        table = name == "embeddings.word_embeddings.weight"  # not the rounded one
        assert torch.equal(weight, words if table else its[name].float()), name
    reader.bert.embeddings.word_embeddings.weight.data[3:5] += 1
    reader.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"reader: .*: 2 of .* words are not the encoder's"):
        start_encoder(pair, [tmp_path])
    reader.bert.encoder.layer[0].output.dense.weight.data = torch.zeros(4, 4)
    reader.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"layer\.0\.output\.dense\.weight \(4, 4\), not"):
        start_encoder(pair, [tmp_path])


def test_of_several_readers_the_mean_starts_it_and_of_a_pair_a_share_stays(
    base_folder: Path, tmp_path: Path
) -> None:
    torch.manual_seed(6)
    pair = new_pair(base_folder, tiny_shape(bounds=True))
    words = pair.compressor.backbone.embeddings.word_embeddings.weight
    before = {name: value.clone() for name, value in pair.own_state().items()}
    readers = [BertForQuestionAnswering(tiny_config()) for _ in range(2)]
    for number, reader in enumerate(readers):
        reader.bert.embeddings.word_embeddings.weight.data.copy_(words)
        reader.save_pretrained(tmp_path / str(number))
    start_encoder(pair, [tmp_path / "0", tmp_path / "1"], 0.25)
    states = [reader.state_dict() for reader in readers]
    for name, value in pair.own_state().items():
        part = name.removeprefix("compressor.")
        its = part.replace("backbone.", "bert.").replace("pointer.span.", "qa_outputs.")
        wanted = before[name]
        if its in states[0]:
            wanted = 0.75 * wanted + 0.125 * (states[0][its] + states[1][its])
        else:
            assert not part.startswith("backbone.")
        torch.testing.assert_close(value, wanted)


def test_another_compressor_is_refused_by_its_tensors(base_folder: Path) -> None:
    other = tiny_pair(memory_tokens=4)
    with pytest.raises(InputError, match=r"slots\.weight \(5, 32\), not \(4, 32\)"):
        start_from(new_pair(base_folder, SHAPE), other.own_state(), "other")
    lacking = {k: v for k, v in tiny_pair().own_state().items() if "pointer" not in k}
    with pytest.raises(InputError, match=r"pointer\.\S+ is missing"):
        start_from(new_pair(base_folder, SHAPE), lacking, "other")


def test_weights_are_those_of_a_runs_last_checkpoint_or_of_a_file(tmp_path: Path) -> None:
    state = tiny_pair().own_state()
    for step in (1, 2):
        save_checkpoint(tmp_path, step, {"step": torch.tensor(step)}, {}, {})
    assert run_weights(tmp_path)["step"] == 2
    save_file(state, tmp_path / "some.safetensors")
    assert run_weights(tmp_path / "some.safetensors").keys() == state.keys()
    with pytest.raises(InputError, match=r"start: .* neither a run with a checkpoint nor weights"):
        run_weights(tmp_path / "checkpoints")
    (tmp_path / "bad").write_text("no")
    with pytest.raises(InputError, match="start: "):
        run_weights(tmp_path / "bad")


def test_a_pointer_that_walks_starts_from_the_readers_span_head(
    base_folder: Path, tmp_path: Path
) -> None:
    torch.manual_seed(5)
    reader = BertForQuestionAnswering(tiny_config())
    pair = new_pair(base_folder, tiny_shape(walk=True))
    words = pair.compressor.backbone.embeddings.word_embeddings.weight
    reader.bert.embeddings.word_embeddings.weight.data.copy_(words)
    reader.qa_outputs.bias.data.copy_(torch.tensor([0.5, 0.25]))
    reader.save_pretrained(tmp_path)
    start_encoder(pair, [tmp_path])
    pointer = pair.compressor.pointer
    assert isinstance(pointer, SpanPointer)
    assert torch.equal(pointer.span.weight, reader.qa_outputs.weight)
    assert pointer.span.bias.tolist() == [0.5, 0.25 - END_OFFSET]
    reader.bert.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"reader: .*: no span head: qa_outputs.weight"):
        start_encoder(pair, [tmp_path])


def test_a_pointer_of_bounds_is_the_readers_span_head(base_folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(5)
    reader = BertForQuestionAnswering(tiny_config())
    pair = new_pair(base_folder, tiny_shape(bounds=True))
    words = pair.compressor.backbone.embeddings.word_embeddings.weight
    reader.bert.embeddings.word_embeddings.weight.data.copy_(words)
    reader.save_pretrained(tmp_path)
    start_encoder(pair, [tmp_path])
    pointer = pair.compressor.pointer
    assert isinstance(pointer, BoundsPointer)
    for name, value in reader.qa_outputs.state_dict().items():
        assert torch.equal(pointer.span.state_dict()[name], value)


def test_a_generator_alone_may_be_gone_on_from(base_folder: Path) -> None:
    other = tiny_pair(seed=4)
    pair = new_pair(base_folder, tiny_shape(walk=True))
    before = {name: value.clone() for name, value in pair.own_state().items()}
    start_only_generator(pair, other.own_state(), "other")
    for name, value in pair.own_state().items():
        its = other.own_state() if name.startswith("generator.") else before
        assert torch.equal(value, its[name]), name
    with pytest.raises(
        InputError, match=r"start_generator: other: another generator: .* is missing"
    ):
        start_only_generator(pair, {}, "other")
    deeper = tiny_pair(generator_layers=3).own_state()
    with pytest.raises(InputError, match=r"layers\.2\.\S+ is unknown"):
        start_only_generator(pair, deeper, "other")


def test_a_generator_that_reads_both_ways_starts_from_the_compressor(base_folder: Path) -> None:
    assert encoder_shape(base_folder) == {
        "generator_layers": 2,
        "generator_heads": 2,
        "generator_mlp_size": 48,
    }
    pair = new_pair(base_folder, tiny_shape(two_way=True))
    start_two_way(pair, separator=3)
    own, given = pair.generator, pair.compressor.backbone
    assert isinstance(own, TwoWayGenerator)
    # What it reads of words is what the compressor reads, but that all words are of one size.
    question, passage = [2, 40, 41, 3], [50, 51, 52]
    words = given.embeddings.word_embeddings.weight
    rows = (words - words.mean(0)).pow(2).mean(-1).sqrt()
    sizes = rows.mean() / rows[[*passage, 3, *question]]
    raw = words[[*passage, 3, *question]]
    scaled = words.mean(0) + (raw - words.mean(0)) * sizes[:, None]
    wanted = given(
        inputs_embeds=scaled[None],
        position_ids=torch.tensor([[4, 5, 6, 7, 0, 1, 2, 3]]),
        token_type_ids=torch.tensor([[1, 1, 1, 1, 0, 0, 0, 0]]),
        packing=Packing.of([8], dtype=torch.float32),
    ).last_hidden_state
    prefixes = Prefixes(Packing.of([8], dtype=torch.float32), [8])
    actual = own(own.embed([passage, question]), prefixes=prefixes).last_hidden_state
    torch.testing.assert_close(actual, wanted, atol=1e-5, rtol=1e-5)


def test_heads_that_are_not_the_encoders_are_refused(base_folder: Path) -> None:
    pair = new_pair(base_folder, tiny_shape(two_way=True, generator_heads=4))
    with pytest.raises(InputError, match=r"generator_heads=4: the encoder's layers.* have 2"):
        start_two_way(pair, separator=3)


def test_layers_that_are_not_the_encoders_are_refused(base_folder: Path) -> None:
    for changes in ({"generator_mlp_size": 40}, {"generator_layers": 3}):
        pair = new_pair(base_folder, tiny_shape(two_way=True, **changes))
        with pytest.raises(InputError, match="two_way: its layers are not the encoder's: encoder"):
            start_two_way(pair, separator=3)


def test_a_run_knows_what_made_it(tmp_path: Path) -> None:
    assert Past.of_run(tmp_path) == Past.of_run(tmp_path / "weights.safetensors") == Past()
    (tmp_path / "command.txt").write_text("condensery train oscar --a 1\n\ncondensery b\n")
    (tmp_path / "data.json").write_text('{"sources": {}, "cloze_examples": 3}')
    own = Past.of_run(tmp_path)
    assert own.commands == ("condensery train oscar --a 1", "condensery b")
    assert own.data == {"sources": {}, "cloze_examples": 3}
    for text in ("[]", "{", ""):
        (tmp_path / "data.json").write_text(text)
        with pytest.raises(InputError, match=r"start: .*data\.json"):
            Past.of_run(tmp_path)
    (tmp_path / "command.txt").write_bytes(b"\xff")
    with pytest.raises(InputError, match=r"start: .*command\.txt: 'utf-8'"):
        Past.of_run(tmp_path)


def test_what_was_read_before_stays_beside_what_is_read_now() -> None:
    first = Past(
        ("a", "b"),
        {
            "sources": {
                "squad/train": {"sha256": "1", "examples": 5},
                "squad/mined": {"sha256": "2", "examples": 6},
                "qamr/train": {"sha256": "3", "examples": 7},
            },
            "wikipedia_kept": 8,
            "cloze_examples": 9,
        },
    )
    now = {
        "sources": {
            "squad/train": {"sha256": "1", "examples": 4},  # the same file, other limits
            "squad/mined": {"sha256": "4", "examples": 3},
        },
        "cloze_examples": 2,
    }
    both = first.then(["b", "c"], now)
    assert both.commands == ("a", "b", "c")
    assert both.data == {
        "sources": {
            "squad/train": {"sha256": "1", "examples": 4},
            "squad/mined": {"sha256": "4", "examples": 3},
            "squad/mined-before": {"sha256": "2", "examples": 6},
            "qamr/train": {"sha256": "3", "examples": 7},
        },
        "wikipedia_kept": 8,
        "cloze_examples": 2,
    }
    assert Past().then([], {"cloze_examples": 1}).data == {"cloze_examples": 1}


def test_between_two_pairs_each_weight_is_a_share_of_the_way() -> None:
    first = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([4.0]).bfloat16()}
    second = {"a": torch.tensor([3.0, -2.0]), "b": torch.tensor([8.0])}
    mixed = between(first, second, 0.25)
    assert mixed["a"].tolist() == [1.5, 1.0]
    assert mixed["b"].tolist() == [5.0]
    assert mixed["b"].dtype == torch.bfloat16
    with pytest.raises(InputError, match="start: runs of different pairs: a "):
        between(first, {**second, "a": torch.zeros(3)}, 0.25)


def test_an_exported_compressor_is_a_bert_whose_layers_a_pair_takes_back(
    base_folder: Path, tmp_path: Path
) -> None:
    torch.manual_seed(3)
    made = new_pair(base_folder, SHAPE)
    for parameter in made.compressor.backbone.encoder.parameters():
        parameter.data.normal_(0, 0.1)
    folder, tokenizer = tmp_path / "bert", base_folder / "tokenizer.json"
    of = made.compressor.backbone.config, word_embeddings(base_folder)
    export(*of, made.own_state(), tokenizer, folder)
    # As train extractive-reader opens it, with a span head of its own.
    reader = BertForQuestionAnswering.from_pretrained(folder)
    reader.save_pretrained(tmp_path / "reader")
    taking = new_pair(base_folder, SHAPE)
    start_encoder(taking, [tmp_path / "reader"])
    own, others = (pair.compressor.backbone.state_dict() for pair in (made, taking))
    assert all(torch.equal(own[name], others[name]) for name in own)
    with pytest.raises(InputError, match="is there already"):
        export(*of, made.own_state(), tokenizer, folder)
    with pytest.raises(InputError, match=r"not a BERT's: .*Missing key"):
        export(*of, {}, tokenizer, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_the_command_takes_the_encoder_that_the_pair_is_over(
    store_with_pair: Path, tmp_path: Path
) -> None:
    def run(model: str, root: Path) -> None:
        command(["--model", model, "--store", str(root), "--out", str(tmp_path / "bert")])

    with pytest.raises(InputError, match="'minilm-l6' is of kind 'encoder', not 'oscar-pair'"):
        run("minilm-l6", store_with_pair)
    alone = tmp_path / "alone"
    shutil.copytree(store_with_pair / "oscar-mini", alone / "oscar-mini")
    with pytest.raises(ModelNotFound, match="minilm-l6"):
        run("oscar-mini", alone)
    run("oscar-mini", store_with_pair)
    written = load_file(tmp_path / "bert" / "model.safetensors")
    base = load_file(ModelStore(None, store_with_pair).open("minilm-l6").path / "model.safetensors")
    words = "embeddings.word_embeddings.weight"
    assert torch.equal(written[words], base[words].float())
    pair = load_state(ModelStore(None, store_with_pair).open("oscar-mini"))
    first = "encoder.layer.0.output.dense.weight"
    assert torch.equal(written[first], pair[f"compressor.backbone.{first}"].float())

"""What a pair in training computes is what it computes when it serves."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_causal_training import disturb, some_rows, write_rows
from torch import Tensor
from transformers import AutoModelForCausalLM

from condensery.errors import InputError
from condensery.methods.oscar.causal.building import Bases, PairSources
from condensery.methods.oscar.causal.items import Questions
from condensery.methods.oscar.causal.losses import run_forward
from condensery.methods.oscar.causal.network import groups, merged, new_pair
from condensery.methods.oscar.causal.publishing import published_shape
from condensery.methods.oscar.causal.recipe import CausalRecipe
from condensery.methods.oscar.causal.runs import Run
from condensery.methods.oscar.causal.validation import running
from condensery.methods.trainer.method import learning_state
from condensery.methods.trainer.questions import Rules, read_questions
from condensery.networks.oscar_causal import CausalPair
from condensery.networks.oscar_interface import PassageWindow
from condensery.question import CompressedPassage

KINDS = ["first layers", "every second layer", "tied, no head", "another model", "a BERT"]
RECIPE = CausalRecipe(lora_rank=4, lora_alpha=8, passages=3)


def questions(bases: Bases, folder: Path, count: int = 3) -> Questions:
    rows, _ = read_questions([write_rows(folder / "rows.jsonl", some_rows(count))], Rules())
    return Questions(rows, bases, RECIPE)


def served(pair: CausalPair, bases: Bases) -> tuple[CausalPair, dict[str, Tensor]]:
    """Load what is served, without any of training's code; returns its weights too."""
    state = {name: weight.clone() for name, weight in merged(pair)}
    return CausalPair(bases.shape, *bases.configs).load(state.items()), state


def close(computed: Tensor, wanted: Tensor) -> None:
    scale = max(1.0, float(wanted.abs().max()))
    np.testing.assert_allclose(computed.numpy(), wanted.numpy(), rtol=0, atol=1e-5 * scale)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tuning", ["lora", "full"])
def test_a_pair_in_training_computes_what_it_serves(
    kind: str, tuning: str, kinds: dict[str, PairSources], tmp_path: Path
) -> None:
    bases = Bases(kinds[kind])
    recipe = CausalRecipe(lora_rank=4, lora_alpha=8, generator_tuning=tuning)
    pair = new_pair(bases, recipe)
    disturb(pair)
    asked = questions(bases, tmp_path)
    items = [asked.item(0), asked.item(1, plain=True), asked.item(2)]
    pair.eval()
    with torch.no_grad():
        result = run_forward(pair, items, bases.texts)
    assert result.memories is not None
    ready, state = served(pair, bases)
    # The generator's reference is transformers' own, with its own attention, one prompt at a time.
    generator = AutoModelForCausalLM.from_config(bases.configs[1], attn_implementation="eager")
    own = {k.removeprefix("generator.network."): v for k, v in state.items()}
    wrong = generator.load_state_dict(
        {k: v for k, v in own.items() if not k.startswith("compressor.")}, strict=False
    )
    assert not wrong.unexpected_keys
    assert set(wrong.missing_keys) <= {"lm_head.weight"}  # tied
    at = 0
    vectors, relevance = result.memories.split(), result.memories.relevance
    with torch.inference_mode():
        for item, logprobs in zip(items, result.logprobs, strict=True):
            memories = []
            for reading in item.readings:
                alone = ready.compressor.compress([reading])
                close(vectors[at], alone.vectors)
                assert (relevance is None) == (kind == "tied, no head")
                if relevance is not None and alone.relevance is not None:
                    close(relevance[at : at + 1], alone.relevance)
                memories.append(alone.vectors)
                at += 1
            prompt = ready.generator.embed(item.prompt(bases.texts, memories))
            ids = torch.tensor([item.label])
            answer = generator.get_input_embeddings()(ids[:, :-1])
            logits = generator(inputs_embeds=torch.cat([prompt, answer], 1)).logits
            wanted = logits[0, prompt.shape[1] - 1 :].log_softmax(-1).gather(1, ids.T)[:, 0]
            close(logprobs, wanted)
    assert at == len(vectors) == 6


@pytest.mark.parametrize("kind", ["first layers", "a BERT"])
def test_the_running_reader_gives_what_training_sees(
    kind: str, kinds: dict[str, PairSources], tmp_path: Path
) -> None:
    bases = Bases(kinds[kind])
    pair = new_pair(bases, RECIPE)
    disturb(pair)
    asked = questions(bases, tmp_path)
    item, row = asked.item(0), asked.rows[0]
    with torch.no_grad():
        result = run_forward(pair.eval(), [item], bases.texts)
    assert result.memories is not None
    assert result.memories.relevance is not None
    # As far as training reads them: a long passage is served in windows, of which the best counts.
    texts = [p[r.start : r.end] for p, r in zip(row.passages, item.readings, strict=True)]
    with running(pair, bases) as reader:
        compressed = asyncio.run(reader.compress(row.question, texts))
    for passage, memory, score in zip(
        compressed, result.memories.split(), result.memories.relevance, strict=True
    ):
        assert isinstance(passage, CompressedPassage)
        close(torch.from_numpy(passage.memory.copy()), memory)
        assert passage.relevance == pytest.approx(float(score), abs=1e-5)
        assert passage.tokens_in > 4


def test_adapters_begin_as_no_change_and_new_rows_as_the_mean(
    bases: dict[str, Path], kinds: dict[str, PairSources]
) -> None:
    made = Bases(kinds["first layers"])
    state = dict(merged(new_pair(made, RECIPE)))
    base = AutoModelForCausalLM.from_pretrained(bases["mistral"]).state_dict()
    for name, weight in base.items():
        tensor = state[f"generator.network.{name}"]
        assert torch.equal(tensor[: len(weight)], weight), name
    words = base["model.embed_tokens.weight"]
    grown = state["generator.network.model.embed_tokens.weight"][len(words) :]
    assert len(grown) == 6  # four memory tokens, <AE>, <SEP>
    torch.testing.assert_close(grown, words.mean(0).expand(6, -1))
    assert torch.equal(state["compressor.backbone.embed_tokens.weight"], words)
    third = "layers.1.mlp.up_proj.weight"
    assert torch.equal(state[f"compressor.backbone.{third}"], base[f"model.{third}"])
    assert not [name for name in state if "compressor.backbone.layers.2" in name]
    slots = state["compressor.slots.weight"]
    assert slots.shape == (5, 32)
    assert (slots.std() / words.std()).item() == pytest.approx(1, abs=0.3)


def test_every_nth_layer_is_taken_from_the_first_on(
    bases: dict[str, Path], kinds: dict[str, PairSources]
) -> None:
    state = dict(merged(new_pair(Bases(kinds["every second layer"]), RECIPE)))
    base = AutoModelForCausalLM.from_pretrained(bases["qwen2"]).state_dict()
    for place, layer in enumerate((0, 2)):
        name = "self_attn.q_proj.bias"
        weight = state[f"compressor.backbone.layers.{place}.{name}"]
        assert torch.equal(weight, base[f"model.layers.{layer}.{name}"])
    # Qwen2 has spare rows: the new tokens take them, and the table does not grow.
    assert len(state["generator.network.lm_head.weight"]) == len(base["lm_head.weight"])


@pytest.mark.parametrize("tuning", ["lora", "full", "none"])
def test_a_checkpoint_holds_what_learns_and_nothing_else(
    tuning: str, kinds: dict[str, PairSources]
) -> None:
    recipe = CausalRecipe(lora_rank=2, generator_tuning=tuning, generator_rate=3e-4)
    pair = new_pair(Bases(kinds["first layers"]), recipe)
    names = learning_state(pair).keys()
    compressor = {name for name in names if name.startswith("compressor.")}
    assert compressor == {f"compressor.{n}" for n, _ in pair.compressor.named_parameters()}
    rest = names - compressor
    if tuning == "lora":
        # Seven linear layers in each of four, two matrices each, and the rows of new tokens.
        assert len(rest) == 4 * 7 * 2 + 1
        assert "generator.network.model.embed_tokens.own" in rest
        assert sum(".lora_" in name for name in rest) == 56
    elif tuning == "full":
        assert rest == {f"generator.{n}" for n, _ in pair.generator.named_parameters()}
    else:
        assert not rest
    split = groups(pair, recipe, layers=True)
    assert sum(len(group.parameters) for group in split) == len(names)
    rates = {group.learning_rate for group in split}
    assert rates == ({5e-5, 3e-4} if rest else {5e-5})
    assert all(
        (parameter.ndim > 1) == bool(group.weight_decay)
        for group in split
        for parameter in group.parameters
    )


def test_new_weights_hang_on_the_seed_alone(kinds: dict[str, PairSources]) -> None:
    made = Bases(kinds["another model"])
    first, same = (learning_state(new_pair(made, RECIPE)) for _ in range(2))
    other = learning_state(new_pair(made, CausalRecipe(lora_rank=4, lora_alpha=8, seed=14)))
    assert all(torch.equal(first[name], same[name]) for name in first)
    differing = {name for name in first if not torch.equal(first[name], other[name])}
    assert {"compressor.slots.weight", "compressor.mapping.0.weight"} <= differing
    assert not {name for name in differing if name.startswith("compressor.backbone.")}


def test_weights_that_do_not_fit_are_named(bases: dict[str, Path], tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(bases["llama"])
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 4] = float("nan")
    bad = tmp_path / "bad"
    model.save_pretrained(bad)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (bases["llama"] / name).is_file():
            (bad / name).write_text((bases["llama"] / name).read_text())
    wanted = "generator.network.model.layers.1.mlp.up_proj.weight holds values that are not finite"
    with pytest.raises(InputError, match=wanted):
        new_pair(Bases(PairSources(bad, layers=1)), RECIPE)


def test_without_its_rerank_token_memory_is_the_same(kinds: dict[str, PairSources]) -> None:
    made = Bases(kinds["first layers"])
    pair = new_pair(made, RECIPE)
    disturb(pair)
    shape, taught = published_shape(made, Run(made.built, RECIPE, {}, {}, reranks=False))
    assert (shape.compressor.rerank, taught) == (False, False)
    assert published_shape(made, Run(made.built, RECIPE, {}, {}, reranks=True))[0] == made.shape
    bare = CausalPair(shape, *made.configs).load(
        (name, weight.clone()) for name, weight in merged(pair, rerank=False)
    )
    reading = PassageWindow([5, 6, 7], 0, 0, 4, 0, 0)
    with torch.inference_mode():
        close(
            bare.compressor.compress([reading]).vectors,
            served(pair, made)[0].compressor.compress([reading]).vectors,
        )

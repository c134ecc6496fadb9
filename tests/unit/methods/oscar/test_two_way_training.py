"""Training a generator that reads prompts from both sides: what rows see, and what it learns."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.unit.methods.oscar.test_batches import GOLD, ITEMS, LAYOUT, QUESTION, ids
from tiny_pair import SPECIALS, tiny_pair, tiny_shape
from torch import Tensor, nn
from torch.nn import functional as F

from condensery.methods.oscar.batches import Item, Layout, collate
from condensery.methods.oscar.command import main
from condensery.methods.oscar.losses import Weights, losses, prompt_embeds
from condensery.methods.oscar.packs import open_pack
from condensery.methods.oscar.prefixes import PREFIXED, Prefixes, prefixed_attention
from condensery.methods.oscar.preparing import Origins, prepare
from condensery.methods.oscar.publishing import publish
from condensery.methods.oscar.recipe import Recipe
from condensery.methods.oscar.starting import empty_pair
from condensery.methods.oscar.training import groups
from condensery.methods.trainer.checkpoints import latest
from condensery.networks.attention import PACKED
from condensery.networks.caching import Span, Step
from condensery.networks.oscar import OscarPair
from condensery.networks.oscar_causal import CPU
from condensery.networks.oscar_generator import TwoWayGenerator
from condensery.networks.oscar_shape import OscarShape
from condensery.networks.packing import Packing
from condensery.networks.stepping import Stepper
from condensery.runtime.oscar_pair import open_pair
from condensery.store.manifest import Manifest
from condensery.store.store import ModelStore

SHAPE = tiny_shape(two_way=True)


def two_way_pair(attention: str = PREFIXED) -> OscarPair:
    pair = tiny_pair(seed=4, two_way=True)
    assert isinstance(pair.generator, TwoWayGenerator)
    with torch.no_grad():
        pair.generator.ranks.weight.normal_(std=0.3)
    pair.compressor.backbone.set_attn_implementation(PACKED)
    pair.generator.backbone.set_attn_implementation(attention)
    return pair


def layout_of(pair: OscarPair) -> Layout:
    assert isinstance(pair.generator, TwoWayGenerator)
    return Layout(SHAPE, SPECIALS, LAYOUT.slot_positions, pair.generator.placing)


def by_a_mask(pair: OscarPair, item: Item, memory: Tensor | None) -> Tensor:
    """Return the answer's loss of one item, its prompt embedded as when it serves."""
    own = pair.generator
    assert isinstance(own, TwoWayGenerator)
    own.backbone.set_attn_implementation("eager")
    if item.plain:
        passages: list[Tensor | list[int]] = [row.passage.tolist() for row in item.rows]
    else:
        passages = list(memory) if memory is not None else []
    asked = [SPECIALS.start, *item.question.tolist(), SPECIALS.end]
    said = (item.answer if item.said is None else item.said).tolist()
    prompt = own.embed([*passages, asked])[0]
    whole = torch.cat([prompt, own.said(said, range(len(said)))])
    seen = torch.ones(len(whole), len(whole), dtype=torch.bool).tril()
    seen[: len(prompt), : len(prompt)] = True
    mask = torch.zeros(1, 1, *seen.shape).masked_fill(~seen, -1e9)
    hidden = own(whole[None], attention_mask=mask).last_hidden_state[0]
    logits = own.logits(hidden[len(prompt) - 1 :])
    return F.cross_entropy(logits, torch.tensor([*item.answer.tolist(), SPECIALS.end]))


@torch.no_grad()
def test_the_loss_is_what_each_prompt_gives_alone_as_it_is_read_when_it_serves() -> None:
    pair = two_way_pair()
    layout = layout_of(pair)
    batch = collate(ITEMS, layout)
    actual = losses(pair, batch).answer
    counts = [len(item.answer) + 1 for item in ITEMS]
    total = torch.zeros(())
    for item, count in zip(ITEMS, counts, strict=True):
        pair.generator.backbone.set_attn_implementation(PREFIXED)
        given = collate([item], layout).given
        memory = None
        if given is not None:
            memory = pair.compressor(given, pair.generator.words).memory
        total += count * by_a_mask(pair, item, memory)
    torch.testing.assert_close(actual, total / sum(counts), rtol=1e-4, atol=1e-4)


def test_an_answers_later_words_are_seen_by_nothing_before_them() -> None:
    pair = two_way_pair()
    layout = layout_of(pair)
    with torch.no_grad():
        outs = []
        for said in (ids(11, 12), ids(11, 50)):
            item = Item(QUESTION, (GOLD,), ids(11, 12), plain=True, said=said)
            batch = collate([item, ITEMS[2]], layout)
            assert batch.prefixes is not None
            embeds = prompt_embeds(pair, batch, None)[None]
            outs.append(pair.generator(embeds, prefixes=batch.prefixes).last_hidden_state[0])
    last = int(batch.labels_at[2])  # the row that reads the word which differs
    assert torch.equal(outs[0][:last], outs[1][:last])
    assert torch.equal(outs[0][last + 1 :], outs[1][last + 1 :])
    assert not torch.equal(outs[0][last], outs[1][last])


def test_every_trained_weight_gets_a_gradient_and_belongs_to_a_group() -> None:
    pair = two_way_pair()
    batch = collate(ITEMS, layout_of(pair))
    losses(pair, batch).total(Weights(0.3, 0.05, 1.0, 0.1, 0.4)).backward()
    lacking = {name for name, p in pair.named_parameters() if p.requires_grad and p.grad is None}
    assert lacking == set()
    recipe = Recipe(backbone_rate=1.0, generator_rate=2.0, new_rate=3.0)
    names = {id(parameter): name for name, parameter in pair.named_parameters()}
    rates = {
        names[id(parameter)]: group.learning_rate
        for group in groups(pair, recipe)
        for parameter in group.parameters
    }
    assert rates["generator.backbone.encoder.layer.0.attention.self.query.weight"] == 2.0
    assert rates["generator.positions.weight"] == rates["generator.norm.bias"] == 2.0
    assert rates["generator.output.weight"] == rates["generator.answered"] == 3.0
    assert rates["compressor.backbone.encoder.layer.0.output.dense.bias"] == 1.0


def test_copies_are_attention_to_the_next_word() -> None:
    pair = two_way_pair()
    item = Item(QUESTION, (GOLD,), ids(11, 12), plain=True)
    batch = collate([ITEMS[1], item], layout_of(pair))
    actual = losses(pair, batch).copies
    alone = collate([item], layout_of(pair))
    states: list[Tensor] = []
    attention = pair.generator.backbone.get_submodule("encoder.layer")[-2].attention.self
    attention.register_forward_pre_hook(lambda module, args: states.append(args[0][0]))
    pair.generator(prompt_embeds(pair, alone, None)[None], prefixes=alone.prefixes)
    heads, size = 1, 16  # half of two heads, 32 wide
    projections = attention.query, attention.key
    query, key = (part(states[0])[:, : heads * size] for part in projections)
    scores = query @ key.T / size**0.5
    wanted = [
        -scores[label, : label + 1].log_softmax(-1)[word]
        for label, word in zip(alone.labels_at[alone.copied_at], alone.copied, strict=True)
    ]
    torch.testing.assert_close(actual, torch.stack(wanted).mean(), atol=1e-5, rtol=1e-4)


def test_a_pair_to_train_reads_prompts_whole() -> None:
    pair = tiny_pair(two_way=True)
    words = pair.compressor.backbone.embeddings.word_embeddings.weight.detach()
    made = empty_pair(pair.compressor.backbone.config, SHAPE, words)
    assert made.generator.backbone.config._attn_implementation == PREFIXED


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_attention_and_its_gradient_are_those_of_a_mask(device: str) -> None:
    lengths, prompts, size = [9, 4, 30], [5, 4, 21], 8
    packing = Packing.of(lengths, dtype=torch.float32, device=device, total_multiple=16)
    source = torch.Generator().manual_seed(0)
    rows = torch.randn(3, 1, 2, packing.total, size, generator=source).to(device)
    query, key, value = (part.clone().requires_grad_() for part in rows)
    prefixes = Prefixes(packing, prompts)
    output, _ = prefixed_attention(nn.Module(), query, key, value, None, prefixes=prefixes)
    seen = torch.zeros(packing.total, packing.total, dtype=torch.bool)
    start = 0
    for length, prompt in zip(lengths, prompts, strict=True):
        inside = slice(start, start + length)
        seen[inside, inside] = torch.ones(length, length, dtype=torch.bool).tril()
        seen[start : start + prompt, start : start + prompt] = True
        start += length
    whole = [part.clone().requires_grad_() for part in rows]
    wanted = F.scaled_dot_product_attention(*whole, attn_mask=seen.to(device))
    wanted = wanted.transpose(1, 2).nan_to_num()[:, :start]
    torch.testing.assert_close(output[:, :start], wanted, atol=1e-5, rtol=1e-5)
    assert not output[:, start:].any()
    weights = torch.randn(wanted.shape, generator=source).to(device)
    (output[:, :start] * weights).sum().backward()
    (wanted * weights).sum().backward()
    for own, other in zip((query, key, value), whole, strict=True):
        assert own.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(own.grad, other.grad.nan_to_num(), atol=1e-5, rtol=1e-5)


def test_what_this_attention_does_not_do_is_refused() -> None:
    rows = torch.randn(1, 2, 3, 4)
    prefixes = Prefixes(Packing.of([3], dtype=torch.float32), [2])
    for wrong, says in (
        ({"prefixes": None}, "needs prefixes"),
        ({"attention_mask": torch.zeros(1)}, "no mask"),
        ({"dropout": 0.1}, "no dropout"),
        ({"softcap": 30.0}, "softcap"),
    ):
        options = {"attention_mask": None, "prefixes": prefixes, **wrong}
        with pytest.raises(ValueError, match=says):
            prefixed_attention(nn.Module(), rows, rows, rows, **options)


WINDOWS = ("--query-tokens", "24", "--passage-tokens", "48", "--memory-tokens", "3")
RUN = ("--cloze", "5", "--steps", "2", "--tokens", "200", "--cloze-only", "0", "--warmup", "1")


@pytest.mark.usefixtures("one_thread")
def test_a_run_begins_as_the_encoder_is_validated_published_and_gone_on_from(
    base_folder: Path, data_folder: Path, tmp_path: Path
) -> None:
    flags = ["--base", str(base_folder), "--data", str(data_folder), *WINDOWS, *RUN]
    flags += ["--two-way", "--bounds", "--plain", "0.5", "--device", "cpu", "--threads", "1"]
    first, second = tmp_path / "first", tmp_path / "second"
    main([*flags, "--every", "2", "--limit", "20", "--out", str(first)])
    checkpoint = latest(first)
    assert checkpoint is not None
    shape = OscarShape.from_dict(checkpoint.state()["shape"])
    assert (shape.generator_layers, shape.generator_heads, shape.generator_mlp_size) == (2, 2, 48)
    rows = [json.loads(line) for line in (first / "log.jsonl").read_text().splitlines()]
    assert all(0 <= row["validation"]["plain"]["em"] <= 100 for row in rows if "validation" in row)
    assert checkpoint.state()["origin"]["generator"] == "the compressor's layers"
    # Gone on from, it keeps what it has learnt; a run of its generator alone gives that.
    encoder = load_file(base_folder / "model.safetensors")
    name = "encoder.layer.0.output.dense.weight"
    made = prepare(Origins(base_folder), data_folder, shape, Recipe(cloze=5))
    assert torch.equal(made.pair.generator.backbone.state_dict()[name], encoder[name])
    learnt = checkpoint.weights()[f"generator.backbone.{name}"].float()
    assert not torch.equal(learnt, encoder[name])
    for origins in (
        Origins(base_folder, starts=(first,)),
        Origins(base_folder, start_generator=first),
    ):
        start = prepare(origins, data_folder, shape, Recipe(cloze=5))
        kept = start.pair.generator.backbone.state_dict()[name]
        assert torch.equal(kept, learnt)
        assert "generator" not in start.origin
    # As a pack, too, and resumed from what was saved.
    main([*flags, "--start", str(first), "--pack", str(tmp_path / "pack")])
    packed = open_pack(tmp_path / "pack").pair
    assert torch.equal(packed.generator.backbone.state_dict()[name], learnt)
    packs = ["--packed", str(tmp_path / "pack"), "--limit", "0", "--device", "cpu"]
    main([*packs, "--threads", "1", "--every", "2", "--out", str(second)])
    assert latest(second) is not None
    # Published in 8 bits, it is served as it was trained.
    store = ModelStore(None, tmp_path / "store")
    manifest = Manifest(name="tiny-base", kind="encoder", pooling="mean", max_tokens=64)
    base = store.publish(base_folder, manifest)
    stored = publish(second, base, store, name="two-way", quote=True)
    assert "sees a prompt from both sides" in (stored.path / "card.md").read_text()
    answers = []
    for held in ("float", "int8"):
        pair = open_pair(
            stored, base, compressor=CPU, generator=CPU, dtype=torch.float32, weights=held
        )
        stepper = Stepper(pair.generator)
        assert stepper.whole_prompts
        prompt = pair.texts.prompt("who is the mill?", ["the mill and the river"])
        embeds = stepper.embed(prompt)
        step = Step(stepper.cache(64), [Span(np.arange(64), 0, len(embeds))])
        with torch.inference_mode():
            answers.append(stepper.logits(stepper.run(embeds, step))[-1])
    trained = open_pack(tmp_path / "pack").pair
    trained.load_own_state({n: w.float() for n, w in latest(second).weights().items()})
    trained.generator.backbone.set_attn_implementation("eager")
    with torch.no_grad():
        wanted = trained.generator.logits(
            trained.generator(trained.generator.embed(prompt)).last_hidden_state[0, -1]
        )
    for scores in answers:
        assert torch.cosine_similarity(scores, wanted, dim=0) > 0.999  # int8

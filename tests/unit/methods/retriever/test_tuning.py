from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft.tuners.lora import Linear as LoraLinear
from serving import embed
from tests.unit.methods.conftest import Stored
from torch.nn import functional as F
from transformers import AutoModel

from condensery.errors import InputError
from condensery.methods.retriever.batches import Batches, read_examples
from condensery.methods.retriever.network import Retriever, open_retriever
from condensery.methods.retriever.publishing import publish
from condensery.methods.retriever.recipe import RetrieverRecipe
from condensery.methods.retriever.tuning import retrieval_loss, tune
from condensery.methods.trainer.method import Draw, TrainingSetup
from condensery.methods.trainer.progress import read_log
from condensery.networks.effir import prune
from condensery.networks.effir_shape import Pruning
from condensery.runtime.tokenizing import TextTokenizer
from condensery.store.manifest import StoredModel
from condensery.store.store import ModelStore

pytestmark = pytest.mark.usefixtures("one_thread")
RECIPE = RetrieverRecipe(
    steps=30, queries=6, negatives=3, rate=3e-3, warmup=3, lora_rank=4, lora_alpha=8
)
TEXTS = [[2, 40, 41, 3], [2, 45, 3], [2, *range(30, 60), 3]]


def batches_of(stored: StoredModel, tuning_rows: Path, recipe: RetrieverRecipe = RECIPE) -> Batches:
    return Batches(read_examples([tuning_rows]), TextTokenizer.load(stored.path, 64), recipe)


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_vectors_in_training_are_transformers_own(kind: str, stored: Stored) -> None:
    model = stored(kind)
    retriever = open_retriever(model).train()
    vectors = retriever(TEXTS)
    reference = AutoModel.from_pretrained(model.path, attn_implementation="eager").eval()
    for ids, vector in zip(TEXTS, vectors, strict=True):
        states = reference(input_ids=torch.tensor([ids])).last_hidden_state[0]
        pooled = states[-1] if kind == "llama" else states.mean(0)
        assert (F.normalize(pooled, dim=0) - vector).abs().max() < 1e-5


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_computing_activations_again_saves_them_and_changes_no_gradient(
    kind: str, stored: Stored
) -> None:
    gradients, kept = [], []
    for again in (False, True):
        retriever = open_retriever(stored(kind)).train()
        prune(retriever.model, Pruning(4, (1,), (2,)))
        if again:
            retriever.recompute()
        held: list[int] = []

        def hold(tensor: torch.Tensor, held: list[int] = held) -> torch.Tensor:
            held.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(hold, lambda tensor: tensor):
            loss = (retriever(TEXTS)[:, :3] ** 2).sum()
        loss.backward()
        gradients.append({n: p.grad for n, p in retriever.named_parameters()})
        kept.append(sum(held))
    assert kept[1] < 0.6 * kept[0]
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, msg=name)
        assert gradient is None or gradient.abs().max() > 0


@pytest.mark.parametrize("kind", ["llama", "bert"])
@pytest.mark.parametrize("tuning", ["lora", "full"])
def test_tuning_finds_more_positives_first_and_resumes_bit_for_bit(
    kind: str, tuning: str, stored: Stored, tuning_rows: Path, tmp_path: Path
) -> None:
    model = stored(kind)
    rate = RECIPE.rate if tuning == "lora" else 1e-3
    recipe = replace(RECIPE, tuning=tuning, rate=rate)
    batches = batches_of(model, tuning_rows, recipe)
    before = retrieval_loss(open_retriever(model), batches(Draw(13, 40)), recipe)

    def run(steps: int, out: Path) -> Retriever:
        short = replace(recipe, steps=steps) if steps != recipe.steps else recipe
        return tune(
            open_retriever(model), batches, short, out, identity={}, setup=TrainingSetup(every=10)
        )

    whole = run(30, tmp_path / "a")
    after = retrieval_loss(whole, batches(Draw(13, 40)), recipe)
    assert after.total < before.total / 2
    assert after.terms["first"] >= before.terms["first"]
    assert {"contrastive", "distil", "first"} <= set(read_log(tmp_path / "a")[-1])
    adapted = [module for module in whole.modules() if isinstance(module, LoraLinear)]
    assert len(adapted) == (0 if tuning == "full" else {"llama": 28, "bert": 24}[kind])
    again = tune(
        open_retriever(model),
        batches,
        recipe,
        tmp_path / "a",
        identity={},
        setup=TrainingSetup(every=10),
    )
    assert all(torch.equal(w, again.weights()[n]) for n, w in whole.weights().items())


def test_with_adapters_only_they_change_and_merging_keeps_the_vectors(
    stored: Stored, tuning_rows: Path, tmp_path: Path
) -> None:
    model = stored("llama")
    tuned = tune(
        open_retriever(model), batches_of(model, tuning_rows), RECIPE, tmp_path / "run", identity={}
    )
    before = AutoModel.from_pretrained(model.path).state_dict()
    weights = tuned.weights()
    assert weights.keys() == before.keys()
    changed = {name for name in weights if not torch.equal(weights[name], before[name])}
    assert changed == {name for name in weights if "_proj" in name}
    store = ModelStore(None, tmp_path / "store")
    manifest = model.manifest.model_copy(update={"name": "tuned"})
    published = publish(store, model, manifest, weights)
    with torch.no_grad():
        wanted = tuned(TEXTS)
        assert (open_retriever(published)(TEXTS) - wanted).abs().max() < 1e-5
    text = "where is the old mill"
    (ids,) = [encoding.ids for encoding in TextTokenizer.load(model.path, 64).encode([text])]
    with torch.no_grad():
        wanted = tuned([ids])[0]
    served = torch.from_numpy(embed(published, [text])[0])
    assert (served - wanted).abs().max() < 1e-5


@pytest.mark.tiny_run
def test_what_has_parts_gone_is_tuned_and_published_without_them(
    stored: Stored, tuning_rows: Path, tmp_path: Path
) -> None:
    model = stored("bert")
    pruning = Pruning(4, (1,), (0, 2))
    retriever = open_retriever(model)
    prune(retriever.model, pruning)
    tune(retriever, batches_of(model, tuning_rows), RECIPE, tmp_path / "run", identity={})
    store = ModelStore(None, tmp_path / "store")
    manifest = model.manifest.model_copy(update={"name": "small"})
    published = publish(store, model, manifest, retriever.weights(), config=pruning.to_config())
    with torch.no_grad():
        assert (open_retriever(published)(TEXTS) - retriever(TEXTS)).abs().max() < 1e-5


def test_the_loss_of_a_query_does_not_push_other_answers_of_its_own_away(
    stored: Stored, tuning_rows: Path
) -> None:
    model = stored("bert")
    retriever = open_retriever(model)
    batch = batches_of(model, tuning_rows)(Draw(13, 0))
    whole = retrieval_loss(retriever, batch, RECIPE).terms["contrastive"]
    every = batch.keys[None].expand(len(batch.queries), -1)  # all answers all
    alone = retrieval_loss(retriever, replace(batch, answers=every), RECIPE).terms["contrastive"]
    assert alone.item() == pytest.approx(0.0, abs=1e-6)
    assert whole > 0.1


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("queries", 0, "at least 1"),
        ("negatives", -1, "at least 0"),
        ("tuning", "half", "lora, full"),
        ("rate", 0.0, "above 0"),
        ("temperature", 0.0, "above 0"),
        ("steps", 0, "at least 1"),
        ("length", 2, "at least 4"),
    ],
)
def test_a_recipe_that_can_t_be_is_refused(field: str, value: object, wanted: str) -> None:
    with pytest.raises(InputError, match=rf"{field}=.*{wanted}"):
        RetrieverRecipe(**{field: value})  # type: ignore[arg-type]  # on purpose


def test_weights_that_are_not_finite_are_not_published(stored: Stored, tmp_path: Path) -> None:
    model = stored("bert")
    weights = open_retriever(model).weights()
    name = next(iter(weights))
    weights[name] = torch.full_like(weights[name], torch.nan)
    with pytest.raises(InputError, match=name):
        publish(ModelStore(None, tmp_path / "own"), model, model.manifest, weights)
    assert not (tmp_path / "own").exists()

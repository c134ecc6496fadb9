"""Who answers in ``generate.py``: this engine, transformers' own ``generate``, and llama.cpp."""

import asyncio
import random
import time
from collections import deque
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

from llama_cpp import LlamaCpp, write_gguf

ROOT = Path(__file__).resolve().parents[1]
OURS, LOOP, BATCHES = "condensery", "transformers, one by one", "transformers, padded batches"
INT8, INT4 = "condensery, int8", "condensery, int4"
WEIGHTS = {OURS: "float", INT8: "int8", INT4: "int4"}
LLAMA, LLAMA8 = "llama.cpp", "llama.cpp, 8 bits"
MOST_CALLERS, POSITIONS = 32, 256  # of llama.cpp; of a sequence's
PASSAGES, MEMORY, PASSAGE_TOKENS = 10, 8, 128


@dataclass(frozen=True)
class Question:
    """The lengths of a question and of its answer, and where its tokens come from."""

    seed: int
    words: int
    tokens: int


@dataclass(frozen=True)
class Task:
    """A round of one contender.

    ``kind`` is what the generator reads: ``plain`` passages, memory vectors that are ``compressed``
    first, or random ``vectors`` in their place, which all contenders can read.
    """

    model: str
    kind: str
    concurrency: int
    questions: list[Question]


@dataclass
class Timed:
    first: float = 0.0
    whole: float = 0.0
    ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Model:
    """A pair as we run it, its generator as transformers does, and what it costs."""

    cost: Any
    compressor: Any
    generator: Any
    theirs: Any  # None: transformers generates with no model that reads prompts both ways
    specials: bool  # whether the compressor's texts have [CLS] and [SEP]


def models(store: Path, tiny: bool, dtype: str, weights: Any) -> dict[str, Model]:
    """Make the random pair, and load ``oscar-mini``, the generators' weights as named."""
    import torch
    from random_pairs import config_of, random_compressor, random_generator

    from condensery.networks import linear
    from condensery.networks.accounting import CausalPairCost, DecoderShape
    from condensery.networks.oscar_loading import cost_of
    from condensery.networks.quantised import quantise_linears
    from condensery.runtime.oscar_pair import load_bert_pair, runnable_bert_pair
    from condensery.store.store import ModelStore

    kind, cpu = getattr(torch, dtype), torch.device("cpu")
    # Six layers of MiniLM's width, and eight times their weights.
    small = DecoderShape(384, 6, 6, 6, 64, 1024, 32_000)
    large = DecoderShape(768, 12, 12, 12, 64, 2048, 32_000, tied=True)
    if tiny:
        small = DecoderShape(32, 2, 2, 2, 16, 64, 500)
        large = DecoderShape(64, 4, 4, 4, 16, 128, 500, tied=True)
    ours, theirs = (random_generator(config_of(large), cpu, kind) for _ in range(2))
    quantise_linears(ours, weights)
    compressor = random_compressor(config_of(small), large.hidden_size, cpu, kind, mapping=512)
    shapes = (replace(shape, trimmed=True) for shape in (small, large))
    cost = CausalPairCost.of(*shapes, memory_tokens=MEMORY, mapping_size=512)
    by_name = {"random": Model(cost, compressor, ours, theirs.network, False)}
    shelf = ModelStore(ROOT / "model_store", store)
    stored = shelf.open("oscar-mini")
    base = shelf.open_base(stored)
    plainly = mock.patch.object(linear, "form_of", return_value="torch")
    with plainly:  # weights that can be read
        whole = load_bert_pair(stored, base, device=cpu, dtype=torch.float32)
    pair = runnable_bert_pair(
        load_bert_pair(stored, base, device=cpu, dtype=kind, weights=weights), stored.path
    )
    model = None if whole.shape.two_way else as_llama(whole.generator).to(kind)
    by_name["oscar-mini"] = Model(cost_of(whole), pair.compressor, pair.generator, model, True)
    return by_name


def as_llama(plain: Any) -> Any:
    """Return a small pair's generator as transformers has it; its weights can be read."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    words = plain.words
    config = LlamaConfig(**{**plain.backbone.config.to_dict(), "vocab_size": len(words)})
    config.use_cache = True
    model = LlamaForCausalLM(config).eval()
    model.model.load_state_dict({**plain.backbone.state_dict(), "embed_tokens.weight": words})
    head = torch.nn.Linear(words.shape[1], len(words))
    with torch.no_grad():
        head.weight.copy_(plain.output_scale * words @ plain.output.weight)
        head.bias.copy_(plain.output_bias)
    model.lm_head = head
    return model


def sizes(by_name: dict[str, Model]) -> tuple[float, float]:
    """Return the millions of weights in the layers of the random pair's halves."""
    from condensery.networks.linear import Dense

    def count(module: Any) -> int:
        own = sum(weights.numel() for weights in module.parameters(recurse=False))
        if isinstance(module, Dense) and module.form != "torch":
            own += module.in_features * module.out_features
        return own

    pair = by_name["random"]
    return tuple(  # type: ignore[return-value]
        sum(count(module) for name, module in half.named_modules() if "layers." in name) / 1e6
        for half in (pair.compressor.backbone, pair.theirs)
    )


def contend(name: str, store: Path, tiny: bool, dtype: str, threads: int, pipe: Connection) -> None:
    """Serve rounds until told to end; runs in a process of its own."""
    import torch

    from condensery.runtime.device import prepare_process

    if name in WEIGHTS:
        prepare_process()
    else:
        torch.set_num_threads(threads)
    by_name = models(store, tiny, dtype, WEIGHTS.get(name, "float"))
    counted = sizes(by_name) if name not in WEIGHTS else (0.0, 0.0)
    costs = {model: entry.cost for model, entry in by_name.items()}
    pipe.send(
        (counted, costs, {model for model, entry in by_name.items() if entry.theirs is not None})
    )
    serving: dict[str, Any] = {}
    while (task := pipe.recv()) is not None:
        model = by_name[task.model]
        if name in WEIGHTS:
            run = asyncio.run(serve(model, task, serving))
        elif name in (LLAMA, LLAMA8):
            if not serving:
                bits = 8 if name == LLAMA8 else 8 * getattr(torch, dtype).itemsize
                path = store / f"{bits}.gguf"
                write_gguf(model.theirs, path, bits=bits)
                serving["server"] = LlamaCpp(path, threads, MOST_CALLERS, POSITIONS)
            run = ask_llama(serving["server"], model, task)
        else:
            run = generate(model.theirs, task, batched=name == BATCHES)
        pipe.send(run)


def ids_of(seed: int, count: int, vocabulary: int) -> list[int]:
    draws = random.Random(seed)
    return [draws.randrange(vocabulary // 30, vocabulary) for _ in range(count)]


def vectors_of(table: Any, question: Question) -> Any:
    """Return a prompt's embeddings (positions, hidden): random rows of a table."""
    return table[rows_of(len(table), question)]


def rows_of(vocabulary: int, question: Question) -> Any:
    """Return which rows of a table those are, (positions,)."""
    import torch

    source = torch.Generator().manual_seed(question.seed)
    count = PASSAGES * MEMORY + question.words
    return torch.randint(vocabulary, (count,), generator=source)


def readings_of(model: Model, question: Question, vocabulary: int) -> list[Any]:
    """Return what the compressor reads: the question with each passage."""
    from condensery.networks.oscar_interface import PassageWindow

    asked = ids_of(question.seed, question.words, vocabulary)
    start, end = ([asked[0]], [asked[-1]]) if model.specials else ([], [])
    head, tail = [*start, *asked, *end], end
    return [
        PassageWindow(
            *([*head, *passage, *tail], len(head), len(tail), MEMORY, 0, 0),
        )
        for passage in passages_of(question, vocabulary)
    ]


def passages_of(question: Question, vocabulary: int) -> list[list[int]]:
    first = 1000 * (question.seed + 1)
    return [ids_of(first + number, PASSAGE_TOKENS, vocabulary) for number in range(PASSAGES)]


async def serve(model: Model, task: Task, serving: dict[str, Any]) -> tuple[float, list[Timed]]:
    """Answer with the engine; returns the round's seconds, and each question's."""
    import torch

    from condensery.networks.stepping import Stepper
    from condensery.runtime.compressor import Compressor
    from condensery.runtime.engine import Engine
    from condensery.runtime.queue import BatchLimits
    from condensery.runtime.sequence import GenerationRequest, TokenEvent
    from condensery.runtime.workers import Workers

    if task.model not in serving:
        workers, limits = (
            Workers(),
            BatchLimits(queue_seconds=3600.0),
        )  # all are served, however late
        serving[task.model] = (
            Compressor(model.compressor, workers, model=task.model, limits=limits),
            Engine(Stepper(model.generator), workers, model=task.model, limits=limits),
        )
    compressor, engine = serving[task.model]
    table = model.generator.words
    vocabulary = len(table)
    results = [Timed() for _ in task.questions]
    waiting = deque(range(len(results)))

    async def prompt_of(question: Question) -> list[Any]:
        if task.kind == "vectors" and model.theirs is not None:
            return [vectors_of(table, question)]
        if task.kind == "vectors":  # of whose prompts the question is a part by itself
            rows = rows_of(vocabulary, question)
            return [table[rows[: -question.words]], rows[-question.words :].tolist()]
        asked = ids_of(question.seed, question.words, vocabulary)
        if task.kind == "plain":
            return [*passages_of(question, vocabulary), asked]
        readings = readings_of(model, question, vocabulary)
        compressed = await compressor.compress([[reading] for reading in readings])
        return [*(torch.from_numpy(passage.memory) for passage in compressed), asked]

    async def caller() -> None:
        while waiting:
            place = waiting.popleft()
            question = task.questions[place]
            asked, ids = time.perf_counter(), []
            prompt = await prompt_of(question)
            generation = engine.begin(GenerationRequest(prompt, question.tokens))
            finish = None
            while finish is None:
                event = await generation.events.get()
                assert isinstance(event, TokenEvent), event
                if not ids:
                    results[place].first = time.perf_counter() - asked
                ids.append(event.token.id)
                finish = event.finish
            results[place].whole = time.perf_counter() - asked
            results[place].ids = tuple(ids)

    started = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(task.concurrency)))
    return time.perf_counter() - started, results


def ask_llama(server: LlamaCpp, model: Model, task: Task) -> tuple[float, list[Timed]]:
    """Answer with llama.cpp, which reads the same tokens by their ids."""
    assert task.kind == "vectors"
    vocabulary = model.theirs.config.vocab_size
    prompts = [rows_of(vocabulary, question).tolist() for question in task.questions]
    tokens = [question.tokens for question in task.questions]
    started = time.perf_counter()
    answers = server.answer(prompts, tokens, task.concurrency)
    return time.perf_counter() - started, [Timed(*answer) for answer in answers]


def generate(model: Any, task: Task, *, batched: bool) -> tuple[float, list[Timed]]:
    """Answer with transformers, the callers' turns played by hand."""
    import torch
    from transformers import StoppingCriteria, StoppingCriteriaList

    class Clock(StoppingCriteria):
        """Notes when the first token is there; stops nothing."""

        first = 0.0

        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
            self.first = self.first or time.perf_counter()
            return torch.zeros(len(input_ids), dtype=torch.bool)

    table = model.get_input_embeddings().weight.detach()
    prompts = [vectors_of(table, question) for question in task.questions]
    results = [Timed() for _ in prompts]
    started = time.perf_counter()
    coming = deque(range(len(prompts)))
    waiting = deque((coming.popleft(), started) for _ in range(min(task.concurrency, len(coming))))
    while waiting:
        turn = [waiting.popleft() for _ in range(len(waiting) if batched else 1)]
        longest = max(len(prompts[place]) for place, _ in turn)
        embeds = torch.zeros(len(turn), longest, prompts[0].shape[1], dtype=prompts[0].dtype)
        mask = torch.zeros(len(turn), longest, dtype=torch.long)
        for row, (place, _) in enumerate(turn):
            embeds[row, longest - len(prompts[place]) :] = prompts[place]
            mask[row, longest - len(prompts[place]) :] = 1
        clock = Clock()
        with torch.inference_mode():
            generated = model.generate(
                inputs_embeds=embeds,
                attention_mask=mask,
                max_new_tokens=max(task.questions[place].tokens for place, _ in turn),
                do_sample=False,
                pad_token_id=0,
                stopping_criteria=StoppingCriteriaList([clock]),
            )
        now = time.perf_counter()
        for (place, asked), ids in zip(turn, generated.tolist(), strict=True):
            answer = tuple(ids[: task.questions[place].tokens])
            results[place] = Timed(clock.first - asked, now - asked, answer)
            if coming:
                waiting.append((coming.popleft(), now))
    return time.perf_counter() - started, results

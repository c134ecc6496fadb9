"""Labels for sentence-level distillation: what a causal language model answers from the texts.

Source: OSCAR, arXiv:2504.07109, sections 3 and 4.1: greedy answers of the teacher to the same
passages, at most 128 tokens (Table 7).
"""

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Self

import torch
from jinja2 import TemplateError
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    GenerationConfig,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    StoppingCriteriaList,
)

from condensery.errors import InputError
from condensery.networks.linear import prepack_linears
from condensery.networks.quantised import Weights, quantise_linears

TeacherInput = tuple[str, Sequence[str]]  # question, passages
WORTH_SHARING = 32  # tokens at the beginning of all prompts, from which on they are read once


SYSTEM = (
    "You are a helpful assistant. Your task is to extract relevant information from provided "
    "documents and to answer to questions as briefly as possible."
)


def user_text(question: str, passages: Sequence[str]) -> str:
    """Return what the user says; each passage is a paragraph of one line."""
    background = "\n".join(" ".join(passage.split()) for passage in passages)
    return f"Background:\n{background}\n\nQuestion:{question.strip()}"


class Prompts:
    """Makes prompts for one tokenizer.

    With a chat template: the system's text and the user's, which go into one turn where the
    template refuses a system. Without: both, then ``Answer:``, plain, with the tokenizer's own
    special tokens around; an answer then ends with its line.

    Args:
        tokenizer: transformers' own.
        system: What the system says.

    Raises:
        InputError: The template fails.
    """

    def __init__(self, tokenizer: Any, system: str = SYSTEM) -> None:
        self._tokenizer, self._system = tokenizer, system
        self.is_chat = bool(tokenizer.chat_template)
        self._alone = False
        if self.is_chat:
            try:
                self._render(user_text("?", ["."]))
            except TemplateError:
                self._alone = True
                try:
                    self._render(user_text("?", ["."]))
                except TemplateError as error:
                    raise InputError(f"teacher: its chat template fails: {error}") from error

    def text(self, question: str, passages: Sequence[str]) -> str:
        """Return a prompt as text."""
        user = user_text(question, passages)
        return self._render(user) if self.is_chat else f"{self._system}\n\n{user}\nAnswer:"

    def ids(self, question: str, passages: Sequence[str]) -> list[int]:
        """Return a prompt's token ids."""
        return self._ids(self.text(question, passages))

    def told(self, user: str) -> list[int]:
        """Return the token ids of a prompt with what the user says; for chat models."""
        return self._ids(self._render(user))

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=not self.is_chat, verbose=False)[
            "input_ids"
        ]
        return ids

    def _render(self, user: str) -> str:
        turns = [{"role": "system", "content": self._system}, {"role": "user", "content": user}]
        if self._alone:
            turns = [{"role": "user", "content": f"{self._system}\n{user}"}]
        # Of models that think first, only the answer is wanted; other templates ignore it.
        return str(
            self._tokenizer.apply_chat_template(
                turns, tokenize=False, add_generation_prompt=True, enable_thinking=False
            )
        )


@dataclass(frozen=True, slots=True)
class TeacherAnswer:
    """What a teacher says.

    Attributes:
        text: Without special tokens and blanks around; "" if it says nothing.
        tokens: Generated ones, one that stops left out.
        finished: Whether it ended by itself.
        fits: Whether the prompt did fit into what the model reads; otherwise nothing was asked.
    """

    text: str
    tokens: int
    finished: bool = True
    fits: bool = True


class Teacher:
    """A causal language model that answers greedily; made by ``open``.

    Several prompts share a batch, padded on the left, in which each has the answer that it has
    alone (but for rounding, which may decide between two tokens that are as good). What they all
    begin with is read once.

    Args:
        model: transformers', in the device and dtype it runs in.
        tokenizer: Its own.
        max_tokens: Most tokens of an answer.
        batch: Most prompts of a batch.
        system: What it is told before all else.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        max_tokens: int = 128,
        batch: int = 16,
        system: str = SYSTEM,
    ) -> None:
        self._model: Any = model
        self._tokenizer = tokenizer
        self._prompts = Prompts(tokenizer, system)
        self._begin: tuple[list[int], Any] = ([], None)  # tokens that are read, and their cache
        self._max_tokens = max_tokens
        self._batch = batch
        self._stop = _stop_ids(self._model, tokenizer)
        text: Any = model.config.get_text_config()
        self._longest = int(getattr(text, "max_position_embeddings", None) or 10**9)
        self._rows = int(self._model.get_input_embeddings().weight.shape[0])
        added = set(tokenizer.get_added_vocab().values())
        self._check_ids(set(tokenizer.get_vocab().values()) - added)
        # Not the model's own settings, which may sample or penalise what was said before.
        self._settings = GenerationConfig(
            do_sample=False,
            num_beams=1,
            max_new_tokens=max_tokens,
            eos_token_id=sorted(self._stop) or None,
            pad_token_id=min(self._stop, default=0),  # masked, and cut off after an answer
        )
        self._model.generation_config = self._settings

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        device: torch.device,
        dtype: torch.dtype,
        max_tokens: int = 128,
        batch: int = 16,
        system: str = SYSTEM,
        weights: Weights = "float",
    ) -> Self:
        """Open a Hugging Face directory, of which no code is run.

        Args:
            path: Holds a causal language model that transformers has, as safetensors, and its
                tokenizer.
            device: Where it runs.
            dtype: What it computes in.
            max_tokens: As above.
            batch: As above.
            system: As above.
            weights: "int8" or "int4" rounds its larger matrices, on a CPU alone.

        Raises:
            InputError: It is no such thing, some of its weights are missing, the tokenizer is
                another model's, or weights can't be rounded there.
        """
        if weights != "float" and device.type != "cpu":
            raise InputError(
                f"weights={weights}: are rounded on a CPU alone", field="weights", value=weights
            )
        for name in ("config.json", "tokenizer.json"):
            if not (path / name).is_file():
                raise _refusal(path, f"it has no {name}")
        try:
            # tokenizer.json as it is; AutoTokenizer puts the model's usual rules in place of its
            tokenizer = PreTrainedTokenizerFast.from_pretrained(
                path, local_files_only=True, trust_remote_code=False
            )
            opened: Any = AutoModelForCausalLM.from_pretrained(  # its types know one result only
                path,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                dtype=dtype,
                output_loading_info=True,
            )
            model, loading = opened
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise _refusal(path, " ".join(str(error).split())) from error
        if missing := sorted(loading["missing_keys"]):  # transformers makes up random ones
            raise _refusal(path, f"weights are missing: {', '.join(missing[:5])}")
        model.requires_grad_(requires_grad=False).eval().to(device)
        if weights != "float":
            quantise_linears(model, weights)
            prepack_linears(model)
        return cls(model, tokenizer, max_tokens=max_tokens, batch=batch, system=system)

    def count(self, text: str) -> int:
        """Return how many tokens a text has, special ones left out."""
        return len(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def answer(self, inputs: Sequence[TeacherInput]) -> list[TeacherAnswer]:
        """Answer each question from its passages, in the given order.

        Raises:
            InputError: A prompt has a token that the model has no embedding of.
        """
        return self._answer([self._prompts.ids(*each) for each in inputs])

    def reply(self, said: Sequence[str]) -> list[TeacherAnswer]:
        """Reply to what users say, each by itself.

        Raises:
            InputError: It is no model to chat with: its tokenizer has no template.
        """
        if not self._prompts.is_chat:
            raise InputError("teacher: it has no chat template", field="teacher")
        return self._answer([self._prompts.told(user) for user in said])

    def _answer(self, prompts: Sequence[list[int]]) -> list[TeacherAnswer]:
        self._check_ids({token for ids in prompts for token in ids})
        answers = [TeacherAnswer("", 0, fits=False)] * len(prompts)
        fitting = [i for i, p in enumerate(prompts) if len(p) + self._max_tokens <= self._longest]
        # Alike lengths together, the longest first: what does not fit into memory fails at once.
        fitting.sort(key=lambda i: -len(prompts[i]))
        for start in range(0, len(fitting), self._batch):
            rows = fitting[start : start + self._batch]
            for i, answer in zip(rows, self._generate([prompts[i] for i in rows]), strict=True):
                answers[i] = answer
        return answers

    @torch.no_grad()
    def _generate(self, prompts: Sequence[list[int]]) -> list[TeacherAnswer]:
        width = max(map(len, prompts))
        pad = self._settings.pad_token_id
        shared, cache = self._beginning(prompts)
        # Padding stands behind what they share, which is read already.
        fill = [width - len(prompt) for prompt in prompts]
        rows = [[*p[:shared], *[pad] * n, *p[shared:]] for p, n in zip(prompts, fill, strict=True)]
        seen = [[1] * shared + [0] * n + [1] * (width - shared - n) for n in fill]
        ids, mask = torch.tensor(rows), torch.tensor(seen)
        device = self._model.device
        criteria = [] if self._prompts.is_chat else [_AfterLine(self._tokenizer, width)]
        generated: Tensor = self._model.generate(
            input_ids=ids.to(device),
            attention_mask=mask.to(device),
            past_key_values=cache,
            stopping_criteria=StoppingCriteriaList(criteria),
        )
        return [self._read(row) for row in generated[:, width:].tolist()]

    def _beginning(self, prompts: Sequence[list[int]]) -> tuple[int, Any]:
        """Return how many first tokens prompts share, and a cache of them for each prompt.

        Few are not worth it, and a model that keeps a state in place of keys can't go on from it.
        """
        # A token of each is left, since a pass has to read something.
        places = zip(*(prompt[:-1] for prompt in prompts), strict=False)
        shared = sum(1 for _ in takewhile(lambda tokens: len(set(tokens)) == 1, places))
        if len(prompts) < 2 or shared < WORTH_SHARING:
            return 0, None
        tokens, cache = self._begin
        if tokens != prompts[0][:shared]:
            tokens = prompts[0][:shared]
            ids = torch.tensor([tokens], device=self._model.device)
            cache = self._model(input_ids=ids, use_cache=True).past_key_values
            self._begin = tokens, cache
        if type(cache) is not DynamicCache:
            return 0, None
        own = copy.deepcopy(cache)
        own.batch_repeat_interleave(len(prompts))
        return shared, own

    def _read(self, tokens: list[int]) -> TeacherAnswer:
        end = next((i for i, token in enumerate(tokens) if token in self._stop), None)
        answer = tokens[:end]
        text = self._tokenizer.decode(answer, skip_special_tokens=True).lstrip()
        finished = end is not None
        if not self._prompts.is_chat:
            text, broken, _ = text.partition("\n")
            finished = finished or bool(broken)
        return TeacherAnswer(text.rstrip(), len(answer), finished)

    def _check_ids(self, ids: set[int]) -> None:
        if ids and max(ids) >= self._rows:
            token = self._tokenizer.convert_ids_to_tokens(max(ids))
            raise InputError(
                f"teacher: its tokenizer is another model's: {token!r} is token {max(ids)}, and "
                f"the model has embeddings of {self._rows}",
                field="teacher",
                value=token,
            )


class _AfterLine(StoppingCriteria):
    """Ends an answer with the line that it is on, once that holds text."""

    def __init__(self, tokenizer: Any, prompt: int) -> None:
        self._tokenizer = tokenizer
        self._prompt = prompt

    def __call__(self, input_ids: Tensor, _scores: Tensor, **_: Any) -> Tensor:
        texts = self._tokenizer.batch_decode(input_ids[:, self._prompt :], skip_special_tokens=True)
        over = ["\n" in text.lstrip() for text in texts]
        return torch.tensor(over, device=input_ids.device)


def fingerprint(path: Path) -> str:
    """Return the sha256 of a model's directory: names and contents of its files."""
    digest = hashlib.sha256()
    for file in sorted(file for file in path.iterdir() if file.is_file()):
        with file.open("rb") as opened:
            content = hashlib.file_digest(opened, "sha256").hexdigest()
        digest.update(f"{file.name}\0{content}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def _stop_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return the tokens that end an answer, as the model's settings or its tokenizer say."""
    own = model.generation_config.eos_token_id
    own = tokenizer.eos_token_id if own is None else own
    if own is None:
        return frozenset()
    return frozenset(own) if isinstance(own, list) else frozenset({own})


def _refusal(path: Path, why: str) -> InputError:
    return InputError(f"teacher: {path}: {why}", field="teacher", value=str(path))

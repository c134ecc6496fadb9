"""A causal language model's directory in transformers' layout: what a pair is built on."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing
from torch import Tensor

from condensery.errors import CorruptModel, StoreError
from condensery.store.layouts import read_licence
from condensery.store.pickles import read_tensors
from condensery.store.writing import name_of, read_json

# What an exporter may have written beside the weights: made anew from the configuration.
NO_WEIGHTS = ("rotary_emb.inv_freq", "masked_bias", ".attn.bias")
# Tokenizer classes that pad on the left unless their file says otherwise.
LEFT = ("LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer")
CONTEXT, QUESTION = "CONDENSERYPASSAGES", "CONDENSERYQUESTION"


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A chat template with a system and a user text in it, around passages and a question."""

    before: str
    between: str
    after: str
    strip: bool


class LanguageModel:
    """The files of one directory, read as they are asked for.

    Args:
        path: The directory.
        role: What it is for, in messages.

    Raises:
        StoreError: There is no such directory.
    """

    def __init__(self, path: Path, role: str) -> None:
        if not path.is_dir():
            raise StoreError(f"{role}: {path} is not a directory", field=role, value=str(path))
        self.path = path
        self.role = role

    @cached_property
    def config(self) -> dict[str, Any]:
        """Its ``config.json``."""
        return read_json(self.path / "config.json")

    @cached_property
    def licence(self) -> str:
        """What its card says."""
        return read_licence(self.path / "README.md")

    def tokenizer(self, *extra: str) -> Tokenizer:
        """Return its tokenizer with these special tokens added, neither cutting nor padding.

        Raises:
            StoreError: There is no ``tokenizer.json``, or it can't be read.
        """
        path = self.path / "tokenizer.json"
        if not path.is_file():
            raise StoreError(f"{self.role}: {self.path.name} holds no tokenizer.json")
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises nothing more precise
            raise StoreError(f"{self.role}: {name_of(path)} can't be read: {error}") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in extra])
        return tokenizer

    def special(self, name: str) -> str:
        """Return a special token's text: ``bos_token`` or ``eos_token``.

        Raises:
            StoreError: ``tokenizer_config.json`` does not say.
        """
        value = self._tokenizer_config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if not isinstance(text, str) or not text:
            raise StoreError(
                f"{self.role}: {name_of(self.path / 'tokenizer_config.json')} names no {name}"
            )
        return text

    @property
    def says_add_eos(self) -> bool:
        """Whether ``tokenizer_config.json`` says that texts end with the end token.

        transformers 4 made some tokenizers do so; 5 goes by ``tokenizer.json`` alone.
        """
        return self._tokenizer_config.get("add_eos_token") is True

    @property
    def pads_left(self) -> bool:
        """Whether its tokenizer pads on the left."""
        side = self._tokenizer_config.get("padding_side")
        if side is None:
            kind = str(self._tokenizer_config.get("tokenizer_class"))
            return kind.removesuffix("Fast") in LEFT
        return bool(side == "left")

    @property
    def stop(self) -> tuple[int, ...]:
        """Ids that end its answers.

        Raises:
            StoreError: Neither of its configurations says.
        """
        path = self.path / "generation_config.json"
        generation = read_json(path) if path.is_file() else {}
        eos = generation.get("eos_token_id", self.config.get("eos_token_id"))
        stop = tuple(eos) if isinstance(eos, list) else (eos,)
        if not stop or not all(type(token) is int for token in stop):
            source = path if "eos_token_id" in generation else self.path / "config.json"
            raise StoreError(
                f"{self.role}: {name_of(source)}: eos_token_id {eos!r} is no token's id"
            )
        return stop

    def prompt(self, system: str, user: str) -> ChatPrompt:
        """Put texts into its chat template, ``CONTEXT`` and ``QUESTION`` standing for theirs.

        Where the template refuses a system text, that goes before the user's, in one turn.

        Raises:
            StoreError: There is no template, it fails, or it changes what it is given.
        """
        turns = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        together = [{"role": "user", "content": f"{system}\n{user}"}]
        from jinja2 import TemplateError

        try:
            chosen, text = turns, self._render(turns)
        except TemplateError:
            try:
                chosen, text = together, self._render(together)
            except TemplateError as error:
                raise StoreError(
                    f"{self.role}: {self.path.name}: its chat template fails: {error}"
                ) from error
        before, _, rest = text.partition(CONTEXT)
        between, _, after = rest.partition(QUESTION)
        if text.count(CONTEXT) != 1 or text.count(QUESTION) != 1 or CONTEXT in before:
            raise StoreError(
                f"{self.role}: {self.path.name}: its chat template does not hold the user's text "
                "once"
            )
        spaced = [
            turn | {"content": turn["content"].replace(QUESTION, QUESTION + " \n")}
            for turn in chosen
        ]
        return ChatPrompt(before, between, after, strip=self._render(spaced) == text)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield its weights one at a time, by their names in the files.

        Raises:
            StoreError: A file is missing, or a pickle that names code.
            CorruptModel: A file can't be read.
        """
        for path in self._weight_files():
            if path.suffix == ".bin":
                yield from ((n, t) for n, t in read_tensors(path).items() if _is_weight(n))
                continue
            try:
                with safe_open(path, framework="pt") as shard:
                    for name in shard.keys():  # noqa: SIM118  # a shard can be iterated in no other way
                        if _is_weight(name):
                            yield name, shard.get_tensor(name)
            except SafetensorError as error:
                raise CorruptModel(f"{self.role}: {name_of(path)}: {error}") from error

    @cached_property
    def _tokenizer_config(self) -> dict[str, Any]:
        path = self.path / "tokenizer_config.json"
        return read_json(path) if path.is_file() else {}

    def _render(self, turns: list[dict[str, str]]) -> str:
        from transformers import PreTrainedTokenizerFast

        names = {
            name: self.special(name)
            for name in ("bos_token", "eos_token")
            if self._tokenizer_config.get(name)
        }
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=self.tokenizer(), **names)
        return str(
            tokenizer.apply_chat_template(
                turns, chat_template=self._template, tokenize=False, add_generation_prompt=True
            )
        )

    @cached_property
    def _template(self) -> str:
        path = self.path / "chat_template.jinja"
        template: Any = self._tokenizer_config.get("chat_template")
        if isinstance(template, list):  # several, by name
            template = {each.get("name"): each.get("template") for each in template}.get("default")
        if template is None and path.is_file():
            template = path.read_text(encoding="utf-8")
        if not isinstance(template, str):
            raise StoreError(f"{self.role}: {self.path.name} holds no chat template")
        return template

    def _weight_files(self) -> list[Path]:
        for whole in ("model.safetensors", "pytorch_model.bin"):
            if (self.path / whole).is_file():
                return [self.path / whole]
            index = self.path / f"{whole}.index.json"
            if index.is_file():
                return self._shards(index, read_json(index))
        raise StoreError(f"{self.role}: {self.path.name} holds no weights")

    def _shards(self, index: Path, content: Mapping[str, Any]) -> list[Path]:
        weight_map = content.get("weight_map")
        if not isinstance(weight_map, dict):
            raise StoreError(f"{self.role}: {name_of(index)} holds no weight_map")
        names = sorted({str(name) for name in weight_map.values()})
        for name in names:
            if Path(name).name != name or not (self.path / name).is_file():
                raise StoreError(f"{self.role}: {name_of(index)} names {name}, which is missing")
        return [self.path / name for name in names]


def named_directory(named: object, directory: Path) -> Path | None:
    """Find the base model that a published directory names.

    Args:
        named: A path or, where it was made, the name of a model on a hub.
        directory: What names it: looked for in there, then as a path of its own, then beside it.
    """
    if not isinstance(named, str) or not named:
        return None
    for place in (directory / named, Path(named), directory.parent / named):
        try:
            if place.is_dir():
                return place
        except OSError:  # no path that this system could have
            continue
    return None


def ends_texts(tokenizer: Tokenizer, end: str) -> bool:
    """Tell whether a tokenizer ends each text with this token by itself."""
    encoded = tokenizer.encode("a")
    return bool(encoded.special_tokens_mask[-1]) and encoded.tokens[-1] == end


def end_texts(tokenizer: Tokenizer, end: str) -> None:
    """Make a tokenizer that ends no text end each with this token.

    Raises:
        StoreError: It has no such token.
    """
    if tokenizer.token_to_id(end) is None:
        raise StoreError(f"the end token {end!r} is not among the tokens of tokenizer.json")
    encoded = tokenizer.encode("a")
    mask = encoded.special_tokens_mask
    before = [token for token, special in zip(encoded.tokens, mask, strict=True) if special]
    marks = list(dict.fromkeys([*before, end]))
    tokenizer.post_processor = TemplateProcessing(
        single=[*before, "$A", end],
        pair=[*before, "$A", "$B:1", f"{end}:1"],
        special_tokens=[(mark, tokenizer.token_to_id(mark)) for mark in marks],
    )


def _is_weight(name: str) -> bool:
    return not name.endswith(NO_WEIGHTS)

"""Encoders that are judged: stored ones as the service runs them, and OpenAI-compatible URLs."""

import asyncio
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx
import numpy as np
import torch

from condensery.errors import InputError, ModelFault, shorten
from condensery.index.prompts import PROMPT_PURPOSES, prompt_name_for
from condensery.methods.judging.sets import Kind
from condensery.methods.ranking.retrieval import embed, running
from condensery.methods.retriever.measuring import cost
from condensery.networks.dtypes import dtype_name
from condensery.runtime.encoder import Encoder
from condensery.store.manifest import StoredModel
from condensery.values import INSTRUCTION_PLACE, Floats, fill_prompt

# What texts are for, by kind of task, as clients say it with ``input_type``; None: nothing is said.
PURPOSES: Mapping[Kind, str | None] = {
    "sts": None,
    "pairs": None,
    "classification": "classification",
    "clustering": "clustering",
    "retrieval": "search_query",
    "reranking": "search_query",
}
PASSAGE = "search_document"
KEY = "CONDENSERY_EMBEDDINGS_KEY"
INSTRUCTION, DEFAULT = "instruction", "default"  # a prompt's name; a prompt where none is named
BLOCK = 256  # texts that are embedded at once, and kept
REPORTED = 8  # blocks between reports
URL_BLOCK = 64  # texts of a request
COSTED_TOKENS = 128
COUNTED = ("none", "effir")  # methods whose layers are transformers' own, or are gone
TRIES, PAUSE, LONGEST_PAUSE = 4, 1.0, 60.0  # requests; seconds before the second, and at most


class JudgedEncoder(Protocol):
    """An encoder that is judged.

    Attributes:
        name: In the tables.
        about: What its vectors depend on; those of another are not taken for its own.
    """

    name: str
    about: Mapping[str, Any]

    def facts(self) -> dict[str, Any]:
        """Return what else is told of it: parameters, FLOPs, as far as they are known."""
        ...

    def prompt(self, purpose: str | None, instruction: str) -> str:
        """Return what stands before, or round, texts for a purpose.

        Args:
            purpose: One of ``PROMPT_PURPOSES``, or None.
            instruction: For encoders that read one.
        """
        ...

    def embed(self, texts: Sequence[str], prompt: str) -> Floats:
        """Return the vectors of texts, (texts, dims)."""
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...


class StoredEncoder:
    """A stored encoder that runs as in the service: its tokenizer, prompts, pooling, scaling.

    It is loaded when its first vector is wanted, and until ``close``.
    """

    def __init__(
        self, stored: StoredModel, workers: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.name = stored.name
        self.stored = stored
        self.about: Mapping[str, Any] = {
            "fingerprint": stored.manifest.fingerprint,
            "dtype": dtype_name(dtype),
            "device": device.type,
        }
        self._runs_on = (workers, device, dtype)
        self._stack = ExitStack()
        self._encoder: Encoder | None = None

    def facts(self) -> dict[str, Any]:
        """Return its method, longest input, parameters and FLOPs."""
        manifest = self.stored.manifest
        about = {"method": manifest.method, "max_tokens": manifest.max_tokens}
        return about | cost_of(self.stored)

    def prompt(self, purpose: str | None, instruction: str) -> str:
        """Return the prompt that a client gets for a purpose: named, for instructions, default."""
        model = self.stored.manifest
        names = PROMPT_PURPOSES.get(purpose or "", ())
        own = model.prompts.get(INSTRUCTION, "")
        named = any(name in model.prompts for name in names)
        if instruction and not named and INSTRUCTION_PLACE in own:
            return own.replace(INSTRUCTION_PLACE, instruction, 1)
        name = prompt_name_for(model, purpose) if purpose else model.default_prompt
        prompt = "" if name is None else model.prompts[name]
        if INSTRUCTION_PLACE in prompt:
            raise InputError.at(
                "model", f"{self.name}: its prompt {shorten(name)} needs an instruction", name
            )
        return prompt

    def embed(self, texts: Sequence[str], prompt: str) -> Floats:
        """Return the vectors of texts, (texts, dims); what is too long is cut."""
        if self._encoder is None:
            self._encoder = self._stack.enter_context(running(self.stored, *self._runs_on))
        with torch.inference_mode():
            return embed(self._encoder, texts, prompt)

    def close(self) -> None:
        """Stop it, and free its memory."""
        self._encoder = None
        self._stack.close()


def cost_of(stored: StoredModel) -> dict[str, int]:
    """Return an encoder's parameters and the FLOPs of a text of 128 tokens; what is known of them.

    From its manifest, or else counted from its layers.
    """
    names = ("parameters", f"flops_{COSTED_TOKENS}_tokens")
    declared = stored.manifest.cost
    known = {name: value for name in names if isinstance(value := declared.get(name), int)}
    if len(known) < len(names) and stored.manifest.method in COUNTED:
        return known | cost(stored, COSTED_TOKENS)  # an import counts what is not run, too
    return known


@dataclass(frozen=True, slots=True)
class EmbeddingServer:
    """Where an encoder is served.

    Attributes:
        name: Of the model, as that server calls it.
        url: Of the API (``http://HOST/v1``), or of its ``/embeddings``.
        key: Sent as a bearer token, if not empty.
        prompts: By purpose, and ``default``: put before the texts here.
        characters: Texts are cut to so many; 0: sent whole.
        seconds: That a reply may take.
        pause: Seconds before a second try.
    """

    name: str
    url: str
    key: str = field(default="", repr=False)
    prompts: Mapping[str, str] | None = None
    characters: int = 0
    seconds: float = 120.0
    pause: float = PAUSE

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise InputError.at("url", f"{shorten(self.url)} is no http or https URL", self.url)
        if parts.username or parts.password:
            raise InputError.at("url", "has a password in it; keys come from the environment")

    @property
    def endpoint(self) -> str:
        """What is posted to."""
        url = self.url.rstrip("/")
        return url if url.endswith("/embeddings") else f"{url}/embeddings"


class ServedEncoder:
    """An encoder behind OpenAI's embeddings API; whether it cuts what is too long is its own."""

    def __init__(self, server: EmbeddingServer) -> None:
        self.name = server.name
        self.about: Mapping[str, Any] = {"url": server.endpoint, "characters": server.characters}
        self._server = server

    def facts(self) -> dict[str, Any]:
        """Return nothing: neither its size nor its work is known."""
        return {}

    def close(self) -> None:
        """Do nothing: each call has a connection of its own."""

    def prompt(self, purpose: str | None, instruction: str) -> str:
        """Return what the command line names for a purpose; its instruction is not sent."""
        prompts = self._server.prompts or {}
        return prompts.get(purpose or DEFAULT, prompts.get(DEFAULT, ""))

    def embed(self, texts: Sequence[str], prompt: str) -> Floats:
        """Return the vectors of texts, (texts, dims).

        Raises:
            ModelFault: The server can't be reached or refuses, for all tries, or replies with
                something else; says what.
        """
        most = self._server.characters or None
        whole = [fill_prompt(prompt, text[:most]) for text in texts]
        return asyncio.run(self._embed(whole))

    async def _embed(self, texts: Sequence[str]) -> Floats:
        key = self._server.key
        headers = {"authorization": f"Bearer {key}"} if key else {}
        async with httpx.AsyncClient(headers=headers, timeout=self._server.seconds) as client:
            parts = [
                await self._ask(client, texts[start : start + URL_BLOCK])
                for start in range(0, len(texts), URL_BLOCK)
            ]
        if len({part.shape[1] for part in parts}) > 1:
            raise self._fault("sent vectors of several lengths")
        return np.concatenate(parts)

    async def _ask(self, client: httpx.AsyncClient, texts: Sequence[str]) -> Floats:
        body = {"model": self.name, "input": list(texts), "encoding_format": "float"}
        why, wait = "", 0.0
        for tried in range(TRIES):
            await asyncio.sleep(wait)
            wait = self._server.pause * 2**tried
            try:
                reply = await client.post(self._server.endpoint, json=body)
            except httpx.HTTPError as error:
                why = f"{type(error).__name__}: {error}"
                continue
            if reply.status_code == 429 or reply.status_code >= 500:
                why = f"replied {reply.status_code}: {shorten(reply.text)}"
                after = reply.headers.get("retry-after", "")
                wait = min(float(after), LONGEST_PAUSE) if after.isdecimal() else wait
                continue
            if reply.status_code in (401, 403):  # whose text may quote a part of the key
                raise self._fault(f"replied {reply.status_code}: it wants another key ({KEY})")
            if reply.status_code != 200:
                raise self._fault(f"replied {reply.status_code}: {shorten(reply.text)}")
            return self._read(reply, len(texts))
        raise self._fault(why)

    def _read(self, reply: httpx.Response, count: int) -> Floats:
        try:
            rows = sorted(reply.json()["data"], key=lambda row: row["index"])
            places = [row["index"] for row in rows]
            vectors = np.array([row["embedding"] for row in rows], dtype=np.float32)
        except (ValueError, LookupError, TypeError) as error:
            raise self._fault(f"sent no list of embeddings: {shorten(reply.text)}") from error
        if places != [*range(count)] or vectors.ndim != 2 or not np.isfinite(vectors).all():
            raise self._fault(f"sent {len(rows)} vectors for {count} texts, or what is no vector")
        return vectors

    def _fault(self, why: str) -> ModelFault:
        return ModelFault.at("url", f"{self._server.endpoint}, {self.name}: {why}")


class KeptVectors:
    """An encoder whose vectors are kept in a folder block by block, for a run that goes on.

    Args:
        encoder: That makes those that are not there.
        folder: Of this encoder and this set alone; made if it is not there.
        report: Called now and then with the texts embedded so far.
    """

    def __init__(
        self, encoder: JudgedEncoder, folder: Path, report: Callable[[int], None] | None = None
    ) -> None:
        self._encoder, self._folder, self._report = encoder, folder, report
        self._done = 0

    def embed(self, texts: Sequence[str], prompt: str) -> Floats:
        """Return the vectors of texts, (texts, dims), float32."""
        parts = [
            self._block(texts[start : start + BLOCK], prompt)
            for start in range(0, len(texts), BLOCK)
        ]
        return np.concatenate(parts)

    def remove(self) -> None:
        """Remove them all, once they are no longer wanted."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _block(self, texts: Sequence[str], prompt: str) -> Floats:
        digest = hashlib.sha256(json.dumps([prompt, *texts]).encode()).hexdigest()[:32]
        path = self._folder / f"{digest}.npy"
        vectors: Floats
        if path.exists():
            vectors = np.load(path, allow_pickle=False)
        else:
            vectors = self._encoder.embed(texts, prompt).astype(np.float32)
            if not np.isfinite(vectors).all():
                raise ModelFault(f"{self._encoder.name}: a vector came out with NaN or infinity")
            self._folder.mkdir(parents=True, exist_ok=True)
            aside = path.with_suffix(".partial")
            with aside.open("wb") as file:
                np.save(file, vectors, allow_pickle=False)
            aside.replace(path)
        self._done += len(texts)
        if self._report is not None and self._done // BLOCK % REPORTED == 0:
            self._report(self._done)
        return vectors


def time_texts(encoder: JudgedEncoder, texts: Sequence[str], rounds: int) -> dict[str, Any]:
    """Return how many texts a second an encoder embeds, all at once; median, least and most.

    Args:
        encoder: That is timed, prompts and the way to it included.
        texts: As they are.
        rounds: Counted ones; one more goes before.
    """
    prompt = encoder.prompt(PASSAGE, "")
    seconds = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        encoder.embed(texts, prompt)
        seconds.append(time.perf_counter() - began)
    counted = seconds[1:]
    return {
        "texts": len(texts),
        "characters": sum(map(len, texts)),
        "rounds": rounds,
        "texts_a_second": len(texts) / median(counted),
        "least": len(texts) / max(counted),
        "most": len(texts) / min(counted),
    }

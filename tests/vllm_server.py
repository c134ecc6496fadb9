"""vLLM's completions over HTTP, as far as prompt embeddings need them, over a transformers model.

Routes, fields, checks and their words are vLLM 0.32's, told from its own server on a CPU. It
computes each token anew with transformers, and breaks in the ways that a test asks for.
"""

import asyncio
import base64
import binascii
import io
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from torch import Tensor
from transformers import AutoModelForCausalLM

BLOCK = 16  # positions of a block of vLLM's cache, on a GPU
MAX_LOGPROBS = 20


class Refusal(Exception):
    """What vLLM answers with a status of its own, before any stream."""

    def __init__(self, message: str, status: int = 400, param: str | None = None) -> None:
        super().__init__(message)
        kind = {400: "BadRequestError", 404: "NotFoundError", 500: "InternalServerError"}[status]
        told = f"{message} (parameter={param})" if param == "prompt_embeds" else message
        self.status = status
        self.body = {"error": {"message": told, "type": kind, "param": param, "code": status}}


OUT_OF_MEMORY = Refusal(
    "EngineCore encountered an issue. See stack trace (above) for the root cause.", 500
)


@dataclass
class VllmServer:
    """A server, and what a test may change of it while it runs.

    Attributes:
        name: Under which the model is served.
        directory: Of the model, as transformers saves one.
        max_model_len: Positions of the longest prompt with its answer.
        embeds: Whether it was started with ``--enable-prompt-embeds``.
        mixes_prefixes: Whether it caches prefixes by tokens alone, which prompts of vectors have
            none of: what vLLM's first versions with both did.
        fault: How it breaks: "out of memory", "out of memory in the stream", "rubbish", "no
            stream", "cut", "silent", "no ids"; "" is well.
        cut_after: Tokens before it cuts, or falls silent.
        bodies: Requests for completions so far, without their vectors, whose shapes are there.
        left: Set once a client has left a stream before its end.
    """

    name: str
    directory: Path
    max_model_len: int = 512
    embeds: bool = True
    mixes_prefixes: bool = False
    fault: str = ""
    cut_after: int = 2
    bodies: list[dict[str, Any]] = field(default_factory=list)
    left: threading.Event = field(default_factory=threading.Event)
    url: str = ""
    _blocks: dict[tuple[int, ...], Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.serve(self.directory)

    def serve(self, directory: Path, name: str | None = None) -> None:
        """Hold another model from now on, as after a restart."""
        self.name = name or self.name
        self._blocks.clear()
        self._model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        self._table = self._model.get_input_embeddings()

    async def models(self, request: Request) -> Response:
        del request
        if self.fault == "rubbish":
            return Response(b"<html>", media_type="text/html")
        card = {
            "id": self.name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "vllm",
            "root": str(self.directory),
            "parent": None,
            "max_model_len": self.max_model_len,
        }
        return JSONResponse({"object": "list", "data": [card]})

    async def completions(self, request: Request) -> Response:
        body = json.loads(await request.body())
        try:
            embeds = self._embeds(body)
        except Refusal as refusal:
            return JSONResponse(refusal.body, refusal.status)
        finally:
            kept = {key: value for key, value in body.items() if key != "prompt_embeds"}
            self.bodies.append(kept)
        kept["shape"] = tuple(embeds.shape)
        if self.fault == "out of memory":
            return JSONResponse(OUT_OF_MEMORY.body, 500)
        if self.fault == "no stream":
            return JSONResponse({"choices": []})
        return StreamingResponse(self._stream(body, embeds), media_type="text/event-stream")

    def _embeds(self, body: dict[str, Any]) -> Tensor:
        """Return a request's prompt, (positions, hidden), checked in vLLM's order."""
        if body.get("model") != self.name:
            problem = f"The model `{body.get('model')}` does not exist. Valid aliases: {self.name}."
            raise Refusal(problem, 404, "model")
        sent, ids = body.get("prompt_embeds"), body.get("prompt")
        if not sent and not ids:
            problem = "Either prompt or prompt_embeds must be provided and non-empty."
            raise Refusal(problem, param="prompt")
        embeds = self._load(sent) if sent else self._table(torch.tensor(ids)).detach()
        if len(embeds) > self.max_model_len:
            raise Refusal(
                f"This model's maximum context length is {self.max_model_len} tokens. However, "
                f"your prompt contains {len(embeds)} input tokens, which exceeds this limit even "
                "without any output tokens. Please reduce the length of the input prompt. "
                f"(parameter=input_tokens, value={len(embeds)})",
                param="input_tokens",
            )
        keys = [0] * len(embeds) if sent else ids
        return self._through_the_cache(embeds, keys) if self.mixes_prefixes else embeds

    def _load(self, sent: str) -> Tensor:
        if not self.embeds:
            problem = "You must set `--enable-prompt-embeds` to input `prompt_embeds`."
            raise Refusal(problem, param="prompt_embeds")
        try:
            content = base64.b64decode(sent, validate=True)
        except binascii.Error:
            raise Refusal("Non-base64 digit found") from None
        tensor: Tensor = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
        if tensor.dim() > 2:
            tensor = tensor.squeeze(0)
        hidden = self._table.weight.shape[1]
        if tensor.dim() != 2 or tensor.shape[1] != hidden:
            problem = (
                f"`prompt_embeds` hidden_size {tensor.shape[-1]} does not match the model's "
                f"hidden_size {hidden}."
            )
            raise Refusal(problem, param="prompt_embeds")
        return tensor.to(torch.float32)

    def _through_the_cache(self, embeds: Tensor, keys: list[int]) -> Tensor:
        """Replace the blocks that were seen before by what was seen then; the last row is new."""
        embeds = embeds.clone()
        for end in range(BLOCK, len(embeds), BLOCK):
            known = self._blocks.setdefault(tuple(keys[:end]), embeds[end - BLOCK : end].clone())
            embeds[end - BLOCK : end] = known
        return embeds

    async def _stream(self, body: dict[str, Any], embeds: Tensor) -> AsyncIterator[bytes]:
        done = False
        try:
            if error := self._late_refusal(body):
                yield _event(error.body)
                yield b"data: [DONE]\n\n"
            else:
                async for event in self._tokens(body, embeds):
                    yield event
            done = True
        finally:
            if not done:
                self.left.set()

    def _late_refusal(self, body: dict[str, Any]) -> Refusal | None:
        """Return what vLLM's engine refuses, when its stream has begun."""
        vocabulary = self._table.weight.shape[0]
        if wrong := [token for token in body.get("prompt") or () if token >= vocabulary]:
            return Refusal(f"Token id {wrong[0]} is out of vocabulary")
        if (body.get("logprobs") or 0) > MAX_LOGPROBS:
            return Refusal(
                f"Requested sample logprobs of {body['logprobs']}, which is greater than max "
                f"allowed: {MAX_LOGPROBS} (parameter=logprobs, value={body['logprobs']})",
                param="logprobs",
            )
        return OUT_OF_MEMORY if self.fault == "out of memory in the stream" else None

    async def _tokens(self, body: dict[str, Any], embeds: Tensor) -> AsyncIterator[bytes]:
        room = self.max_model_len - len(embeds)
        most = min(body.get("max_tokens") or 16, room)
        rng = torch.Generator().manual_seed(body.get("seed") or 0)
        for count in range(1, most + 1):
            if count > self.cut_after and self.fault in ("cut", "silent", "rubbish"):
                if self.fault == "silent":
                    await asyncio.Event().wait()
                if self.fault == "cut":
                    raise ConnectionError("the engine is gone")
                yield b"data: {not JSON\n\n"
            scores = self._scores(embeds)
            token = _choose(scores, body, rng)
            stops = token in body.get("stop_token_ids", ())
            finish = "stop" if stops else "length" if count == most else None
            yield _event(self._chunk(body, token, scores, finish, count == 1))
            embeds = torch.cat([embeds, self._table.weight[token].detach()[None]])
            await asyncio.sleep(0)
            if finish:
                break
        yield b"data: [DONE]\n\n"

    @torch.inference_mode()
    def _scores(self, embeds: Tensor) -> Tensor:
        scores: Tensor = self._model(inputs_embeds=embeds[None]).logits[0, -1]
        return scores

    def _chunk(
        self, body: dict[str, Any], token: int, scores: Tensor, finish: str | None, first: bool
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": 0,
            "text": f"<{token}>",
            "logprobs": None,
            "finish_reason": finish,
            "stop_reason": token if finish == "stop" else None,
        }
        if (wanted := body.get("logprobs")) is not None:
            values, ids = scores.log_softmax(-1).topk(wanted)
            own = float(scores.log_softmax(-1)[token])
            top = {f"token_id:{token}": own}
            top |= {f"token_id:{i}": v for i, v in zip(ids.tolist(), values.tolist(), strict=True)}
            choice["logprobs"] = {
                "text_offset": [0],
                "token_logprobs": [own],
                "tokens": [f"token_id:{token}"],
                "top_logprobs": [top],
            }
        if body.get("return_token_ids") and self.fault != "no ids":
            choice["token_ids"] = [token]
            choice["prompt_token_ids"] = [0] * 3 if first else None
        return {
            "id": "cmpl-1",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self.name,
            "choices": [choice],
        }


def _choose(scores: Tensor, body: dict[str, Any], rng: torch.Generator) -> int:
    if not body.get("temperature", 1.0):
        return int(scores.argmax())
    chances = (scores / body["temperature"]).softmax(-1)
    return int(torch.multinomial(chances, 1, generator=rng))


def _event(content: Any) -> bytes:
    return b"data: %b\n\n" % json.dumps(content).encode()


@contextmanager
def vllm_server(directory: Path, name: str, port: int = 0, **how: Any) -> Iterator[VllmServer]:
    """Run a server in a thread of its own; its ``url`` is of the API's root."""
    served = VllmServer(name, directory, **how)
    with listening(served, port):
        yield served


@contextmanager
def listening(served: VllmServer, port: int = 0) -> Iterator[None]:
    """Listen, and let go of all connections in the end, as a process that dies."""
    routes = [
        Route("/v1/models", served.models),
        Route("/v1/completions", served.completions, methods=["POST"]),
    ]
    config = uvicorn.Config(
        Starlette(routes=routes),
        host="127.0.0.1",
        port=port,
        log_config=None,
        log_level="critical",
        lifespan="off",
        timeout_graceful_shutdown=0,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "it did not start"
        time.sleep(0.01)
    served.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(30)

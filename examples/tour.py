"""A tour of every door of a running server: calls it, prints what it got, and checks it.

    condensery serve                                        # in another terminal
    python examples/tour.py [--url http://127.0.0.1:8080] [--grpc 127.0.0.1:8081]

REST is called as any HTTP client would, gRPC through the stubs. Ends with 1 if anything came out
otherwise than it should: REST and gRPC must agree, a stream's pieces must join to the answer.
"""

import argparse
import base64
import contextlib
import importlib.util
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import httpx
import numpy as np

from condensery.stubs import condensery_v1_pb2 as pb
from condensery.stubs import condensery_v1_pb2_grpc as stubs

QUESTION = "Which lake does the Rhine pass through?"
TEXTS = ["The Rhine passes through Lake Constance.", "Bread rises because yeast makes gas."]
INDEX = "tour"
DOCUMENTS = [
    {"id": "rhine", "text": TEXTS[0], "metadata": {"kind": "river"}},
    {"id": "bread", "text": TEXTS[1], "metadata": {"kind": "food"}},
]
# Largest difference between elements of one text's unit vector in two batches, bf16.
ACROSS_BATCHES = 0.02


class Tour:
    """The stops made, and which of them went wrong."""

    def __init__(self, url: str, address: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=120)
        self.url = url
        self.channel = grpc.insecure_channel(address)
        self.failed: list[str] = []
        self.vectors: dict[str, Any] = {}
        self.answers: dict[str, str] = {}

    def stop(self, name: str, visit: Callable[["Tour"], str]) -> None:
        """Make one stop; whatever goes wrong there, the tour goes on."""
        try:
            summary = visit(self)
        except Skip as reason:
            print(f"  -    {name}: left out: {reason}")
        # A tour is there to show what does not work, whatever it raises.
        except Exception as error:
            self.failed.append(name)
            print(f"  FAIL {name}: {type(error).__name__}: {error}")
            if not isinstance(error, Mismatch | httpx.HTTPError | grpc.RpcError):
                traceback.print_exc()
        else:
            print(f"  ok   {name}: {summary}")

    def post(self, path: str, body: Any) -> Any:
        return read(self.http.post(path, json=body))

    def get(self, path: str) -> Any:
        return read(self.http.get(path))


class Mismatch(Exception):
    """Something came, and is not what it should be."""


class Skip(Exception):
    """Something that the tour needs is not installed."""


def read(reply: httpx.Response) -> Any:
    need(reply.is_success, f"status {reply.status_code}: {reply.text[:300]}")
    return reply.json()


def need(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Mismatch(otherwise)


def show(vector: Any) -> str:
    return f"[{', '.join(f'{x:+.4f}' for x in vector[:3])}, ...]"


# Operations


def live(tour: Tour) -> str:
    return str(tour.get("/livez"))


def ready(tour: Tour) -> str:
    return str(tour.get("/readyz"))


def info(tour: Tour) -> str:
    info = tour.get("/info")
    need(len(info["model_type"]) == 1, f"model_type has not one key: {info['model_type']}")
    return f"{info['model_id']}, {info['model_dtype']}, {info['model_type']}"


def models(tour: Tour) -> str:
    listed = tour.get("/v1/models")["data"]
    need({"encoder", "oscar-pair"} <= {model["kind"] for model in listed}, f"kinds: {listed}")
    return ", ".join(f"{model['id']} ({model['kind']})" for model in listed)


def report(tour: Tour) -> str:
    measured = tour.get("/v1/models/oscar-mini/report")
    card = tour.http.get("/v1/models/oscar-mini/report", params={"format": "markdown"})
    need(card.is_success and card.text.startswith("# oscar-mini"), f"card: {card.text[:80]}")
    for plot in measured["plots"]:
        picture = tour.http.get(f"/v1/models/oscar-mini/report/plots/{plot}.png")
        need(picture.content.startswith(b"\x89PNG"), f"{plot} is no picture")
    settings = measured["report"]["settings"]
    return f"version {measured['version']}, measured in {len(settings)} settings"


def metrics(tour: Tour) -> str:
    lines = tour.http.get("/metrics").text.splitlines()
    counted = [line for line in lines if line.startswith("condensery_requests_total{")]
    total = sum(float(line.rsplit(" ", 1)[1]) for line in counted)
    need(total > 0, "no request was counted")
    names = {line.split("{")[0].split()[0] for line in lines if line.startswith("condensery_")}
    return f"{len(names)} series names, {total:.0f} requests counted"


# Embeddings


def embed_openai_floats(tour: Tour) -> str:
    reply = tour.post("/v1/embeddings", {"input": TEXTS})
    tour.vectors["floats"] = np.asarray(
        [item["embedding"] for item in reply["data"]], dtype=np.float32
    )
    return f"{len(reply['data'])} vectors, {reply['usage']}, {show(tour.vectors['floats'][0])}"


def embed_openai_base64(tour: Tour) -> str:
    reply = tour.post("/v1/embeddings", {"input": TEXTS, "encoding_format": "base64"})
    rows = [base64.b64decode(item["embedding"]) for item in reply["data"]]
    vectors = np.asarray([np.frombuffer(row, "<f4") for row in rows])
    agree(vectors, tour.vectors["floats"])
    return f"{len(rows[0])} bytes a vector, equal to the floats"


def embed_openai_client(tour: Tour) -> str:
    if not importlib.util.find_spec("openai"):
        raise Skip("the package openai is not installed")
    from openai import OpenAI

    with OpenAI(base_url=f"{tour.url}/v1", api_key="none") as client:
        reply = client.embeddings.create(model="minilm-l6", input=TEXTS)
    agree(np.asarray([item.embedding for item in reply.data]), tour.vectors["floats"])
    return f"{len(reply.data)} vectors of {reply.model}"


def embed_tei(tour: Tour) -> str:
    vectors = np.asarray(tour.post("/embed", {"inputs": TEXTS}))
    agree(vectors, tour.vectors["floats"])
    return f"{vectors.shape}, equal to OpenAI's"


def embed_grpc(tour: Tour) -> str:
    stub = stubs.EmbeddingStub(tour.channel)
    reply = stub.EmbedBatch(pb.EmbedBatchRequest(texts=TEXTS))
    vectors = np.frombuffer(reply.vectors, "<f4").reshape(-1, reply.dims)
    agree(vectors, tour.vectors["floats"])
    alone = stub.EmbedBatch(pb.EmbedBatchRequest(texts=TEXTS[:1]))
    rest = tour.post("/v1/embeddings", {"input": TEXTS[0], "encoding_format": "base64"})
    same = base64.b64decode(rest["data"][0]["embedding"]) == alone.vectors
    need(same, "REST and gRPC give other bits for one text")
    return f"{vectors.shape} {reply.dtype} of {reply.model}; one text alone: REST's very bits"


def agree(vectors: Any, others: Any) -> None:
    need(vectors.shape == others.shape, f"shapes {vectors.shape} and {others.shape}")
    furthest = float(np.abs(vectors - others).max())
    need(furthest < ACROSS_BATCHES, f"vectors differ by {furthest}")


# Reranking


def rerank_tei(tour: Tour) -> str:
    ranks = tour.post("/rerank", {"query": QUESTION, "texts": TEXTS})
    tour.answers["ranking"] = str([rank["index"] for rank in ranks])
    return str(ranks)


def rerank_jina(tour: Tour) -> str:
    reply = tour.post(
        "/v1/rerank", {"query": QUESTION, "documents": TEXTS, "return_documents": True}
    )
    order = str([result["index"] for result in reply["results"]])
    need(order == tour.answers["ranking"], f"another order: {order}")
    best = reply["results"][0]
    return f"{best['relevance_score']:.4f} {best['document']['text']!r} first"


def rerank_grpc(tour: Tour) -> str:
    reply = stubs.RerankStub(tour.channel).Rerank(pb.RerankRequest(query=QUESTION, passages=TEXTS))
    order = str([result.index for result in reply.results])
    need(order == tour.answers["ranking"], f"another order: {order}")
    return ", ".join(f"{result.index}: {result.score:.4f}" for result in reply.results)


# Indexes


def index_rest(tour: Tour) -> str:
    path = f"/v1/indexes/{INDEX}"
    made = read(tour.http.put(path, json={}))
    written = tour.post(f"{path}/documents", {"documents": DOCUMENTS})
    hits = tour.post(f"{path}/query", {"query": "what makes dough rise?", "top_k": 1})["results"]
    need(hits[0]["document_id"] == "bread", f"found {hits}")
    need(hits[0]["metadata"] == {"kind": "food"}, f"metadata {hits[0]['metadata']}")
    counted = tour.post(f"{path}/documents/count", {})
    need(counted["documents"] == 2, f"counted {counted}")
    gone = tour.post(f"{path}/documents/delete", {"ids": ["bread"]})
    need(gone["deleted"] == 1, f"deleted {gone}")
    read(tour.http.delete(path))
    listed = [index["name"] for index in tour.get("/v1/indexes")["data"]]
    need(INDEX not in listed and "samples" in listed, f"listed {listed}")
    return (
        f"{made['kind']} of {made['encoder']}; wrote {written['passages']} passages, found"
        f" {hits[0]['id']} ({hits[0]['score']:.3f}), counted, deleted, dropped; left: {listed}"
    )


def index_grpc(tour: Tour) -> str:
    stub = stubs.IndexStub(tour.channel)
    stub.Create(pb.CreateIndexRequest(name=INDEX))
    documents = []
    for entry in DOCUMENTS:
        document = pb.Document(id=str(entry["id"]), text=str(entry["text"]))
        document.metadata.update(entry["metadata"])
        documents.append(document)
    written = stub.Upsert(pb.UpsertRequest(index=INDEX, documents=documents))
    hits = stub.Query(pb.QueryRequest(index=INDEX, query="what makes dough rise?", top_k=1)).hits
    need(hits[0].document_id == "bread", f"found {hits}")
    need(dict(hits[0].metadata) == {"kind": "food"}, f"metadata {hits[0].metadata}")
    counted = stub.Count(pb.CountRequest(index=INDEX))
    need(counted.documents == 2, f"counted {counted}")
    gone = stub.Delete(pb.DeleteRequest(index=INDEX, ids=["bread"]))
    need(gone.deleted == 1, f"deleted {gone}")
    stub.Drop(pb.DropIndexRequest(name=INDEX))
    listed = [index.name for index in stub.List(pb.ListIndexesRequest()).indexes]
    need(INDEX not in listed, f"listed {listed}")
    return f"wrote {written.passages} passages, found {hits[0].id} ({hits[0].score:.3f}), dropped"


# Answers


def answer_rest(tour: Tour) -> str:
    reply = tour.post("/v1/rag/answer", {"query": QUESTION, "index": {"name": "samples"}})
    block = reply["compression"]
    need(block["status"] == "applied", f"compression {block}")
    need(bool(reply["citations"]), f"citations {reply['citations']}")
    tour.answers["answer"] = reply["answer"]
    cited = ", ".join(f"{c['id']} {c['relevance_score'] or 0:.2f}" for c in reply["citations"])
    return (
        f"{reply['answer']!r} from {cited}; {block['tokens_in']} tokens became"
        f" {block['vectors_out']} vectors in {block['compress_ms']:.0f} ms"
    )


def answer_sse(tour: Tour) -> str:
    body = {"query": QUESTION, "index": {"name": "samples"}, "stream": True}
    events = []
    with tour.http.stream("POST", "/v1/rag/answer", json=body) as reply:
        if not reply.is_success:
            reply.read()
            read(reply)
        for chunk in "".join(reply.iter_text()).split("\n\n")[:-1]:
            name, data = (line.split(": ", 1)[1] for line in chunk.split("\n"))
            events.append((name, None if data == "[DONE]" else json.loads(data)))
    names = [name for name, _ in events]
    pieces = [
        part["payload"]["value"]
        for name, data in events
        if name == "message"
        for part in data["delta"]["content"]
    ]
    final = dict(events)["final_answer"]
    need("".join(pieces) == final["generated_answer"], f"pieces {pieces} of {final}")
    need(final["generated_answer"] == tour.answers["answer"], "another answer than the whole one")
    need(names[0] == "search_results" and names[-1] == "done", f"events {names}")
    return f"{len(pieces)} pieces, joined {''.join(pieces)!r}; events {sorted(set(names))}"


def answer_plain(tour: Tour) -> str:
    body = {"query": QUESTION, "documents": TEXTS, "compression": {"mode": "off"}}
    reply = tour.post("/v1/rag/answer", body)
    need(reply["compression"]["status"] == "off", f"compression {reply['compression']}")
    return f"{reply['answer']!r} from {reply['usage']['prompt_tokens']} plain tokens"


def answer_grpc(tour: Tour) -> str:
    request = pb.AnswerRequest(query=QUESTION, index="samples")
    reply = stubs.RagStub(tour.channel).Answer(request)
    need(reply.answer == tour.answers["answer"], f"REST said {tour.answers['answer']!r}")
    return f"{reply.answer!r}, {reply.usage.context_vectors} vectors read"


def answer_stream_grpc(tour: Tour) -> str:
    request = pb.AnswerRequest(query=QUESTION, index="samples")
    events = list(stubs.RagStub(tour.channel).AnswerStream(request))
    joined = "".join(event.delta for event in events if event.WhichOneof("event") == "delta")
    need(events[0].WhichOneof("event") == "retrieved", f"first {events[0]}")
    need(joined == events[-1].final.answer, f"pieces join to {joined!r}")
    need(joined == tour.answers["answer"], f"REST said {tour.answers['answer']!r}")
    return f"{len(events)} events, joined {joined!r}"


# Contexts: compressed once, answered from as often as one likes


def context_rest(tour: Tour) -> str:
    asked = {"query": QUESTION, "max_tokens": 16}
    whole = tour.post("/v1/rag/answer", {**asked, "documents": DOCUMENTS})
    made = tour.post("/v1/compress", {"query": QUESTION, "documents": DOCUMENTS, "ttl_s": 60})
    statuses = [(result["id"], result["status"]) for result in made["results"]]
    need(statuses == [("rhine", "applied"), ("bread", "applied")], f"results {made['results']}")
    later = tour.post("/v1/rag/answer", {**asked, "context": made["context"]})
    need(later["answer"] == whole["answer"], f"{later['answer']!r}, not {whole['answer']!r}")
    need(later["usage"] == whole["usage"], f"usage {later['usage']}, not {whole['usage']}")
    read(tour.http.delete(f"/v1/contexts/{made['context']}"))
    gone = tour.http.post("/v1/rag/answer", json={**asked, "context": made["context"]})
    need(gone.status_code == 404, f"a released handle gives {gone.status_code}")
    scores = ", ".join(
        f"{result['id']} {result['relevance_score']:.2f}" for result in made["results"]
    )
    return f"{scores}; {later['answer']!r} from {later['usage']['context_vectors']} vectors kept"


def context_grpc(tour: Tour) -> str:
    stub = stubs.RagStub(tour.channel)
    documents = [
        pb.Document(id=str(document["id"]), text=str(document["text"])) for document in DOCUMENTS
    ]
    whole = stub.Answer(pb.AnswerRequest(query=QUESTION, documents=documents, max_tokens=16))
    made = stub.Compress(pb.CompressRequest(query=QUESTION, documents=documents, ttl_s=60))
    asked = pb.AnswerRequest(query=QUESTION, context=made.context, max_tokens=16)
    need(stub.Answer(asked).answer == whole.answer, "another answer than from the documents")
    over_rest = {"query": QUESTION, "context": made.context, "max_tokens": 16}
    answer = tour.post("/v1/rag/answer", over_rest)["answer"]
    need(answer == whole.answer, f"REST said {answer!r}")
    stub.ReleaseContext(pb.ReleaseContextRequest(context=made.context))
    try:
        stub.Answer(asked)
    except grpc.RpcError as error:
        need(error.code() is grpc.StatusCode.NOT_FOUND, f"code {error.code()}")
    else:
        raise Mismatch("a released handle still answers")
    return f"{whole.answer!r} from {made.compression.vectors_out} vectors, at both doors; released"


def compare_rest(tour: Tour) -> str:
    body = {"query": QUESTION, "documents": TEXTS, "max_tokens": 16}
    both = tour.post("/v1/rag/compare", body)
    status = [both[way]["compression"]["status"] for way in ("compressed", "plain")]
    need(status == ["applied", "off"], f"statuses {status}")
    tour.answers["compared"] = str(both["agreement"]["f1"])
    return (
        f"{both['compressed']['answer']!r} and {both['plain']['answer']!r}, F1"
        f" {both['agreement']['f1']:.2f}; plain took {both['speedup']:.2f} times as long"
    )


def compare_grpc(tour: Tour) -> str:
    documents = [pb.Document(text=text) for text in TEXTS]
    request = pb.AnswerRequest(query=QUESTION, documents=documents, max_tokens=16)
    both = stubs.RagStub(tour.channel).Compare(request)
    need(str(both.agreement.f1) == tour.answers["compared"], f"agreement {both.agreement}")
    return f"F1 {both.agreement.f1:.2f}, cosine {both.agreement.cosine:.2f}, as over REST"


# gRPC's own


def models_grpc(tour: Tour) -> str:
    listed = stubs.ModelsStub(tour.channel).List(pb.ListModelsRequest()).models
    over_rest = [model["id"] for model in tour.get("/v1/models")["data"]]
    need([model.name for model in listed] == over_rest, f"REST lists {over_rest}")
    return ", ".join(model.name for model in listed)


def report_grpc(tour: Tour) -> str:
    asked = pb.GetReportRequest(model="oscar-mini", with_card=True)
    measured = stubs.ModelsStub(tour.channel).GetReport(asked)
    over_rest = tour.get("/v1/models/oscar-mini/report")
    need(json.loads(measured.report) == over_rest["report"], "REST has another report")
    return f"{len(measured.card)} characters of card, plots: {', '.join(measured.plots) or 'none'}"


def health_grpc(tour: Tour) -> str:
    if not importlib.util.find_spec("grpc_health"):
        raise Skip("the package grpcio-health-checking is not installed")
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    stub = health_pb2_grpc.HealthStub(tour.channel)
    status = stub.Check(health_pb2.HealthCheckRequest()).status
    name = health_pb2.HealthCheckResponse.ServingStatus.Name(status)
    need(name == "SERVING", name)
    return name


def reflection_grpc(tour: Tour) -> str:
    if not importlib.util.find_spec("grpc_reflection"):
        raise Skip("the package grpcio-reflection is not installed")
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    stub = reflection_pb2_grpc.ServerReflectionStub(tour.channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    (reply,) = stub.ServerReflectionInfo(iter([request]))
    names = [service.name for service in reply.list_services_response.service]
    need("condensery.v1.Rag" in names, f"services {names}")
    return ", ".join(names)


# Errors


def errors_agree(tour: Tour) -> str:
    reply = tour.http.post("/v1/embeddings", json={"input": "x", "model": "nobody"})
    need(reply.status_code == 404, f"status {reply.status_code}")
    body = reply.json()["error"]
    try:
        stubs.EmbeddingStub(tour.channel).EmbedBatch(
            pb.EmbedBatchRequest(texts=["x"], model="nobody")
        )
    except grpc.RpcError as error:
        need(error.code() is grpc.StatusCode.NOT_FOUND, f"code {error.code()}")
        need(error.details() == body["message"], f"details {error.details()}")
    else:
        raise Mismatch("gRPC took an unknown model")
    return f"404 and NOT_FOUND, {body['message']!r}"


STOPS: dict[str, list[tuple[str, Callable[[Tour], str]]]] = {
    "Operations": [
        ("GET /livez", live),
        ("GET /readyz", ready),
        ("GET /info", info),
        ("GET /v1/models", models),
        ("GET /v1/models/{name}/report", report),
        ("gRPC Models/List", models_grpc),
        ("gRPC Models/GetReport", report_grpc),
        ("gRPC health", health_grpc),
        ("gRPC reflection", reflection_grpc),
    ],
    "Embeddings": [
        ("POST /v1/embeddings, floats", embed_openai_floats),
        ("POST /v1/embeddings, base64", embed_openai_base64),
        ("the openai client", embed_openai_client),
        ("POST /embed", embed_tei),
        ("gRPC Embedding/EmbedBatch", embed_grpc),
    ],
    "Reranking": [
        ("POST /rerank, TEI's body", rerank_tei),
        ("POST /v1/rerank, Jina's body", rerank_jina),
        ("gRPC Rerank/Rerank", rerank_grpc),
    ],
    "Indexes": [
        ("/v1/indexes/**", index_rest),
        ("gRPC Index", index_grpc),
    ],
    "Answers": [
        ("POST /v1/rag/answer", answer_rest),
        ("POST /v1/rag/answer, streamed", answer_sse),
        ("POST /v1/rag/answer, not compressed", answer_plain),
        ("gRPC Rag/Answer", answer_grpc),
        ("gRPC Rag/AnswerStream", answer_stream_grpc),
    ],
    "Contexts": [
        ("POST /v1/compress, answered from", context_rest),
        ("gRPC Rag/Compress, answered from", context_grpc),
        ("POST /v1/rag/compare", compare_rest),
        ("gRPC Rag/Compare", compare_grpc),
    ],
    "Afterwards": [
        ("an unknown model", errors_agree),
        ("GET /metrics", metrics),
    ],
}


@contextlib.contextmanager
def touring(url: str, address: str) -> Iterator[Tour]:
    tour = Tour(url, address)
    try:
        yield tour
    finally:
        tour.http.close()
        tour.channel.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--grpc", default="127.0.0.1:8081", metavar="HOST:PORT")
    args = parser.parse_args()
    with touring(args.url, args.grpc) as tour:
        for title, stops in STOPS.items():
            print(title)
            for name, visit in stops:
                tour.stop(name, visit)
    made = sum(len(stops) for stops in STOPS.values())
    print(f"{made} stops, {len(tour.failed)} failed{': ' if tour.failed else ''}", end="")
    print(", ".join(tour.failed))
    return 1 if tour.failed else 0


if __name__ == "__main__":
    sys.exit(main())

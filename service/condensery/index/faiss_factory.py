"""The FAISS index of each kind."""

from typing import Any

import faiss
import numpy as np

from condensery.index import kinds
from condensery.index.kinds import Options
from condensery.values import Floats

METRICS = {"ip": faiss.METRIC_INNER_PRODUCT, "l2": faiss.METRIC_L2}


def make_untrained(kind: str, metric: str, dims: int, options: Options) -> Any:
    """Return an empty index: of kind ``ivf_pq`` a flat one, which it is until it is trained."""
    if kind != "hnsw":
        return faiss.IndexFlat(dims, METRICS[metric])
    graph = faiss.IndexHNSWFlat(dims, options.get("m", kinds.HNSW_LINKS), METRICS[metric])
    graph.hnsw.efConstruction = options.get("ef_construction", kinds.HNSW_BUILD_BREADTH)
    return graph


def train(metric: str, dims: int, options: Options, rows: int, sample: Floats) -> Any:
    """Return an empty IVF-PQ index for ``rows`` vectors, trained on a sample of them."""
    quantizer = faiss.IndexFlat(dims, METRICS[metric])
    cells = options.get("nlist", kinds.cells_for(rows))
    codes = options.get("pq_m", kinds.codes_for(dims))
    bits = options.get("pq_bits", kinds.PQ_BITS)
    index = faiss.IndexIVFPQ(quantizer, dims, cells, codes, bits, METRICS[metric])
    for clustering in (index.cp, index.pq.cp):
        clustering.niter = kinds.TRAINING_ROUNDS
        clustering.max_points_per_centroid = kinds.LEAST_A_CENTRE
    index.train(np.ascontiguousarray(sample))
    return index

"""The kinds of indexes: the options of each, and what follows from an index's size.

``flat`` compares a query with every vector. ``hnsw`` walks a graph (Malkov & Yashunin,
arXiv:1603.09320). ``ivf_pq`` looks into the nearest of ``nlist`` cells and compares codes of
``pq_m`` times ``pq_bits`` bits (Jégou, Douze & Schmid, TPAMI 2011), which takes a sixteenth of the
memory; what it finds is put in order by the vectors themselves, which SQLite has. Codes of 4 bits
are looked up in the processor's registers (André, Kermarrec & Le Scouarnec, VLDB 2015; FAISS's
"fast scan"), several times as fast as longer ones, and are compared less exactly.
"""

import math
from collections.abc import Mapping

from condensery.errors import InputError, shorten, shorten_name

# Each kind's options, from least to most. Of an IVF-PQ index `pq_m` divides the
# dimensions.
OPTIONS: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "flat": {},
    "hnsw": {"m": (4, 128), "ef_construction": (8, 4096), "ef_search": (8, 4096)},
    "ivf_pq": {
        "nlist": (1, 65_536),
        "nprobe": (1, 65_536),
        "pq_m": (1, 65_536),
        "pq_bits": (4, 8),
    },
}
KINDS = tuple(OPTIONS)

# HNSW: links a node, and the breadth of the search when building and when asking.
HNSW_LINKS = 32
HNSW_BUILD_BREADTH = 128
HNSW_SEARCH_BREADTH = 64

# IVF-PQ: vectors that k-means gets for each centre, the least that FAISS is content with, and its
# rounds. With 64 of them and 25 rounds training takes five times as long, and finds no more.
LEAST_A_CENTRE = 39
TRAINING_ROUNDS = 10
# Of a code: those that are looked up in registers; those of an index whose number of codes was set,
# since it was chosen for them, or that fast ones tell less of.
FAST_BITS, FULL_BITS = 4, 8
# Fast codes that a vector must have: where they have more bits in all than full ones would, since
# its features divide better; where they have as many. Of fewer up to 0.08 less is found.
LEAST_FAST_CODES, LEAST_EQUAL_FAST_CODES = 8, 32
# Bits that stand for a feature: 96 bytes of 1,536 at 384 dimensions.
BITS_A_FEATURE = 2
LEAST_CELLS = 16

Options = Mapping[str, int]


def check_options(kind: str, raw: object, dims: int) -> dict[str, int]:
    """Return an index's options, or refuse them by name.

    Args:
        kind: One of ``KINDS``.
        raw: An object; None is none. What is left out follows from the index's size.
        dims: Features of a vector.

    Raises:
        InputError: An option that this kind has not, or a value that it can't have.
    """
    if raw is None:
        raw = {}
    if not isinstance(raw, Mapping):
        raise InputError.at("options", f"{shorten(raw)} is not an object.", raw)
    known = OPTIONS[kind]
    for name, value in raw.items():
        field = f"options.{shorten_name(name)}"
        if name not in known:
            there = ", ".join(known) or "none"
            raise InputError.at(field, f"unknown option; kind {kind} has: {there}.", value)
        least, most = known[name]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise InputError.at(
                field, f"{shorten(value)} is not a whole number from {least} to {most}.", value
            )
    options: dict[str, int] = dict(raw)
    if dims % options.get("pq_m", 1):
        raise InputError.at(
            "options.pq_m", f"{options['pq_m']} does not divide {dims} dimensions.", options["pq_m"]
        )
    if "nlist" in options and options.get("nprobe", 1) > options["nlist"]:
        raise InputError.at(
            "options.nprobe",
            f"{options['nprobe']} is over nlist, {options['nlist']}.",
            options["nprobe"],
        )
    return options


def least_rows(options: Options) -> int:
    """Return how many vectors an IVF-PQ index needs before it is trained.

    As many as codes of 8 bits need, unless it was told others: fewer are soon compared one by one.
    """
    bits = options.get("pq_bits", FULL_BITS)
    return LEAST_A_CENTRE * max(options.get("nlist", LEAST_CELLS), 1 << bits)


def sample_size(options: Options, rows: int) -> int:
    """Return how many of so many vectors it is trained on."""
    cells = options.get("nlist", cells_for(rows))
    bits = options.get("pq_bits", FULL_BITS)  # which the sample itself may ask for
    return min(rows, LEAST_A_CENTRE * max(cells, 1 << bits))


def cells_for(rows: int) -> int:
    """Return an IVF index's cells without ``nlist``: a power of two near 4 * sqrt(rows)."""
    wanted = 4 * math.sqrt(rows)
    most = max(LEAST_CELLS, rows // LEAST_A_CENTRE)
    return int(2 ** math.floor(math.log2(max(LEAST_CELLS, min(wanted, most)))))


def probes_for(cells: int) -> int:
    """Return the cells to look into where ``nprobe`` is not set."""
    return min(cells, max(8, round(4 * math.sqrt(cells))))


def bits_for(options: Options, dims: int) -> int:
    """Return the bits of a code, as far as they follow from options and dimensions."""
    if "pq_bits" in options or "pq_m" in options:
        return options.get("pq_bits", FULL_BITS)
    fast, full = codes_for(dims, FAST_BITS), codes_for(dims, FULL_BITS)
    more = FAST_BITS * fast - FULL_BITS * full
    enough = (more > 0 and fast >= LEAST_FAST_CODES) or (
        more == 0 and fast >= LEAST_EQUAL_FAST_CODES
    )
    return FAST_BITS if enough else FULL_BITS


def codes_for(dims: int, bits: int) -> int:
    """Return the codes of a vector where ``pq_m`` is not set: the most that divide its features.

    But no more than give a feature ``BITS_A_FEATURE``.
    """
    most = max(1, dims * BITS_A_FEATURE // bits)
    return max(count for count in range(1, most + 1) if dims % count == 0)


def candidates_for(k: int, bits: int) -> int:
    """Return how many of the nearest by codes of so many bits may be compared by their vectors.

    Args:
        k: How many are wanted.
        bits: Of a code. Fast ones tell less, and to read more vectors takes less time than to
            compare longer codes.
    """
    least, most = (280, 2800) if bits == FAST_BITS else (100, 1000)
    return max(k, min(least // 10 * k, most), least)

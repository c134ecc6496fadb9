"""The service benchmark's tables, with what one must know to read them."""

from collections.abc import Mapping, Sequence
from typing import Any

from recording import tell_machine, tell_others, tell_versions

PAGE = """# The service over REST

Closed loop, `POST /v1/embeddings` (OpenAI's body and reply, floats), on {machine}, loopback.
Medians of {rounds} rounds of {seconds:g} s, the servers interleaved; the range over the rounds in
brackets. "Ours to it" is `condensery`'s requests a second over this server's: of the medians, and
in brackets the least and the most of a round.

{tables}

- naive is `benchmarks/naive_server.py`, plain FastAPI over sentence-transformers as people write it
  in ten lines: a sync endpoint, fp32, default `encode`, one uvicorn worker.
{infinity}
- All run with the thread counts that their libraries choose. `condensery` chooses its dtype by
  itself (bf16 where the CPU multiplies it); condensery int8 is the same with `--encoder-weights
  int8`, which rounds what is multiplied (docs/encodings.md).
- Foreign cores: what other processes of the machine used meanwhile, without the load generator; the
  more, the less the figures say. Over the whole run {others}.
- The load generator, `benchmarks/load_generator.py`, does {generator:,} req/s against a server that
  does nothing.
- {versions}.
- Made on {date} by `{command}`; each round is in `service.json`.
"""
TABLE = """## {title}

| clients | server | req/s | p50 / p95 ms | ours to it | cores | foreign cores |
|---|---|---|---|---|---|---|
{rows}

Where a request to `condensery` spends its time, ms in the mean; the parts add up (a long list is
tokenised while its beginning is read already: "else inside" is then less than nothing):

| clients | whole | tokenizing | queue | forward pass | else inside | reading, writing, sending |
|---|---|---|---|---|---|---|
{apart}

Vectors agree: least cosine {least_cosine:.5f} over {texts_compared} texts, in the same run{int8}.
{uneven}"""
UNEVEN = 1.3  # the highest of a server's rounds over the lowest, from which on it is told


def render(report: Mapping[str, Any]) -> str:
    """Return the page of a report as `service.py` makes it."""
    return PAGE.format(
        machine=tell_machine(report),
        rounds=report["rounds"],
        seconds=report["seconds"],
        tables="\n\n".join(map(render_table, report["tables"])),
        infinity=render_infinity(report["infinity"]),
        others=tell_others(report),
        generator=report["generator"]["requests_per_second"],
        versions=tell_versions(report),
        date=report["date"],
        command=report["command"],
    )


def servers_of(row: Mapping[str, Any]) -> list[str]:
    """Return the names of the servers that a row of results is of."""
    return [name for name, cell in row.items() if isinstance(cell, dict)]


def render_table(table: Mapping[str, Any]) -> str:
    results = table["results"]
    rows = [render_row(row, name) for row in results for name in servers_of(row)]
    apart = [
        f"| {row['concurrency']} | "
        + " | ".join(f"{value:.2f}" for value in row["condensery"]["apart"].values())
        + " |"
        for row in results
    ]
    int8 = ""
    if "least_cosine_int8" in table:
        int8 = f"; of condensery int8 {table['least_cosine_int8']:.4f}"
    filled = {"rows": "\n".join(rows), "apart": "\n".join(apart), "int8": int8}
    return TABLE.format(**{**table, **filled, "uneven": render_uneven(results)})


def render_row(row: Mapping[str, Any], name: str) -> str:
    cell = row[name]
    ratio = f"{cell['ratio']:.2f} ({cell['ratio_lowest']:.2f} to {cell['ratio_highest']:.2f})"
    rates = [format_rate(cell[key]) for key in ("requests_per_second", "lowest", "highest")]
    cells = [
        str(row["concurrency"]),
        name,
        f"{rates[0]} ({rates[1]} to {rates[2]})",
        f"{cell['p50_ms']:.1f} / {cell['p95_ms']:.1f}",
        ratio if cell["ratio"] != 1 else "",
        f"{cell['server_cores']:.2f}",
        f"{cell['foreign_cores']:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def format_rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def render_uneven(results: Sequence[Mapping[str, Any]]) -> str:
    """Name the servers whose rounds lie far apart: of those a median alone would mislead."""
    uneven = [
        f"{name} with {row['concurrency']} clients"
        for row in results
        for name in servers_of(row)
        if row[name]["highest"] > UNEVEN * row[name]["lowest"]
    ]
    return f"Rounds lie far apart of {', '.join(uneven)}." if uneven else ""


def render_infinity(versions: Mapping[str, str]) -> str:
    if not versions:
        return "- infinity was not installed here, so that it was not run."
    named = ", ".join(f"{name} {number}" for name, number in versions.items())
    return (
        f"- infinity runs in an environment of its own, with older packages ({named}):\n"
        "  its torch engine, without BetterTransformer (its wheel does not bring it) or a log of\n"
        "  requests."
    )

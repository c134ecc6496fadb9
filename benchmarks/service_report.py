"""The service benchmark's tables, with what one must know to read them."""

from typing import Any

from recording import tell_machine, tell_others, tell_versions

PAGE = """# Single queries over REST

Closed loop, one short question a request, `POST /embed`, on {machine}, loopback.
Medians of {rounds} rounds of {seconds:g} s, the two servers interleaved; the range over the rounds
in brackets. "Naive" is a plain FastAPI server over sentence-transformers, as people write it in
ten lines: what a service gains over that, and no measure of other serving engines.

| clients | condensery req/s | p50 / p95 ms | naive req/s | p50 / p95 ms | ratio | foreign cores |
|---|---|---|---|---|---|---|
{rows}

Each round, requests a second:

| clients | server | {numbers} | lowest / median / highest |
|---|---|{dashes}---|
{each}

- The naive server is `benchmarks/naive_server.py`: FastAPI with a sync endpoint, fp32,
  sentence-transformers' default `encode`, one uvicorn worker. Both servers run in the environment
  as it is, so with the thread counts that their libraries choose.
{uneven}- Vectors agree: least cosine {cosine:.5f} over {texts} texts, in the same run.
- Foreign cores: what other processes of the machine used meanwhile, without the load generator; the
  more, the less the figures say. Over the whole run {others}.
- The load generator, `benchmarks/load_generator.py`, does {generator:,} req/s against a server that
  does nothing.
- {versions}.
- Made on {date} by `{command}`; each round is in `service.json`.
"""
SERVERS = ("condensery", "naive")
UNEVEN = 1.3  # the highest of a server's rounds over the lowest, from which on it is told


def render(report: dict[str, Any]) -> str:
    results = report["results"]
    count = len(results[0]["naive"]["rounds"])
    return PAGE.format(
        machine=tell_machine(report),
        rounds=report["rounds"],
        seconds=report["seconds"],
        rows="\n".join(render_row(row) for row in results),
        numbers=" | ".join(str(number + 1) for number in range(count)),
        dashes="---|" * count,
        each="\n".join(render_rounds(row, name) for row in results for name in SERVERS),
        uneven=render_uneven(results),
        cosine=report["least_cosine"],
        texts=report["texts_compared"],
        others=tell_others(report),
        generator=report["generator"]["requests_per_second"],
        versions=tell_versions(report),
        date=report["date"],
        command=report["command"],
    )


def render_row(row: dict[str, Any]) -> str:
    ours, naive = row["condensery"], row["naive"]
    cells = [
        str(row["concurrency"]),
        *render_cell(ours),
        *render_cell(naive),
        f"{row['ratio']:.1f}x ({row['ratio_lowest']:.1f}x-{row['ratio_highest']:.1f}x)",
        f"{max(ours['foreign_cores'], naive['foreign_cores']):.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def render_cell(cell: dict[str, Any]) -> tuple[str, str]:
    rate = f"{cell['requests_per_second']:.0f} ({cell['lowest']:.0f}-{cell['highest']:.0f})"
    return rate, f"{cell['p50_ms']:.1f} / {cell['p95_ms']:.1f}"


def render_rounds(row: dict[str, Any], name: str) -> str:
    cell = row[name]
    rates = [f"{round_of['requests_per_second']:.0f}" for round_of in cell["rounds"]]
    whole = [f"{cell[key]:.0f}" for key in ("lowest", "requests_per_second", "highest")]
    return f"| {row['concurrency']} | {name} | {' | '.join(rates)} | {' / '.join(whole)} |"


def render_uneven(results: list[dict[str, Any]]) -> str:
    """Name the servers whose rounds lie far apart: of those a median alone would mislead."""
    uneven = [
        f"{name} with {row['concurrency']} clients ({row[name]['lowest']:.0f} to "
        f"{row[name]['highest']:.0f})"
        for row in results
        for name in SERVERS
        if row[name]["highest"] > UNEVEN * row[name]["lowest"]
    ]
    if not uneven:
        return ""
    return (
        f"- Rounds that lie far apart, so that the median says little: {', '.join(uneven)}. The\n"
        "  ratio's range, round by round, is in brackets behind it.\n"
    )

"""Queries and drawings of all panels, and what all rules read, by a Prometheus of a real server."""

import json
import math
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from deploy.draw_dashboards import (
    DASHBOARDS,
    WIDTH,
    box_of,
    draw,
    format_value,
    last_minutes,
    read_dashboards,
)
from PIL import Image
from tests.conftest import serving

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
PATIENCE_SECONDS = 120
SERIES = r"(?:\bup\b|\b(?:condensery[_:]|process_)[\w:]+)(?:\{[^}]*\})?"


def read_panels() -> Iterator[tuple[str, str]]:
    """Yield each query of each panel, under the dashboard's and the panel's title."""
    for dashboard in read_dashboards():
        for panel in dashboard.panels:
            for target in panel.targets:
                query = target.fill_in(30, dashboard.variables)
                yield f"{dashboard.name}: {panel.title}", query


def read_rules() -> Iterator[tuple[str, str]]:
    """Yield what each recording rule records, and each series that an alert's expression reads."""
    for name in ("rules.yaml", "alerts.yaml"):
        groups = yaml.safe_load((PROMETHEUS / name).read_text(encoding="utf-8"))["groups"]
        for rule in (rule for group in groups for rule in group["rules"]):
            if "record" in rule:
                labels = ",".join(f'{k}="{v}"' for k, v in rule.get("labels", {}).items())
                yield f"rule {rule['record']} {labels}", f"{rule['record']}{{{labels}}}"
                continue
            found = set(re.findall(SERIES, rule["expr"]))
            assert found, rule["alert"]
            for series in found:
                yield f"alert {rule['alert']}", series


def needs_gpu(title: str, query: str) -> bool:
    return ": GPU: " in title or re.search("condensery[_:]gpu_", query) is not None


def test_dashboards_have_names_of_their_own_and_panels_that_do_not_overlap() -> None:
    boards = [json.loads(path.read_text(encoding="utf-8")) for path in DASHBOARDS.glob("*.json")]
    assert len({board["uid"] for board in boards}) == len({board["title"] for board in boards}) == 4
    for board in boards:
        taken = set[tuple[int, int]]()
        for panel in board["panels"]:
            at = panel["gridPos"]
            cells = {(at["x"] + dx, at["y"] + dy) for dx in range(at["w"]) for dy in range(at["h"])}
            assert not cells & taken, panel["title"]
            assert at["x"] + at["w"] <= 24, panel["title"]
            taken |= cells


def test_values_are_written_in_their_panels_unit() -> None:
    written = {
        ("s", 0.0123): "12.3 ms",
        ("s", 0): "0 s",
        ("s", 75): "1.25 min",
        ("bytes", 2.5 * 2**30): "2.5 GiB",
        ("percentunit", -0.352): "-35.2%",
        ("reqps", 1.234): "1.23 req/s",
        ("short", 1_234_567): "1.23 Mil",
        ("short", 247): "247",
    }
    for (unit, value), text in written.items():
        assert format_value(unit, value) == text


@contextmanager
def prometheus(url: str, folder: Path) -> Iterator[httpx.Client]:
    """Run Prometheus on the shipped configuration, but for addresses and a scrape each second."""
    config = yaml.safe_load((PROMETHEUS / "prometheus.yaml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": [url.removeprefix("http://")]}]
    for name in config["rule_files"]:
        rules = yaml.safe_load((PROMETHEUS / name).read_text(encoding="utf-8"))
        for group in rules["groups"]:
            group.pop("interval", None)
        (folder / name).write_text(yaml.safe_dump(rules), encoding="utf-8")
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = ["prometheus", f"--config.file={folder / 'prometheus.yaml'}"]
    command += [f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address={address}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        with httpx.Client(base_url=f"http://{address}", timeout=60, trust_env=False) as client:
            yield client
    finally:
        process.terminate()
        process.wait(60)


def is_empty(reply: dict[str, Any]) -> bool:
    values = [float(row["value"][1]) for row in reply["data"]["result"]]
    return not any(map(math.isfinite, values))


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="needs prometheus, of Debian's package of that name"
)
def test_no_panel_and_no_rule_is_empty_under_a_small_load_and_all_panels_are_drawn(
    store_with_pair: Path, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    queries = {
        f"{title}: {query}": query
        for title, query in (*read_panels(), *read_rules())
        if not needs_gpu(title, query)
    }
    smoke = [sys.executable, str(ROOT / "deploy" / "smoke.py")]
    empty = dict(queries)
    (tmp_path / "server").mkdir()
    with (
        serving(store_with_pair, tmp_path / "server", "--shadow-share", "1") as server,
        prometheus(server.url, tmp_path) as asked,
    ):
        load = subprocess.Popen([*smoke, "--url", server.url, "--seconds", str(PATIENCE_SECONDS)])
        try:
            while empty and load.poll() is None:
                time.sleep(2)
                for title, query in list(empty.items()):
                    try:
                        reply = asked.get("/api/v1/query", params={"query": query})
                    except httpx.ConnectError:  # it starts
                        break
                    assert reply.status_code in (200, 503), f"{title}: {reply.text}"
                    if reply.status_code == 200 and not is_empty(reply.json()):
                        del empty[title]
            assert load.poll() in (None, 0), "the load failed"
            time.sleep(2)  # so that what came last is before the window's end
            window = last_minutes(3, scrape_seconds=1)
            boards = list(read_dashboards())
            drawn = [draw(one, asked, window, tmp_path / f"{one.name}.png") for one in boards]
        finally:
            load.send_signal(signal.SIGINT)
            load.wait(60)
    for title in queries:
        with subtests.test(title):
            assert title not in empty, "it shows nothing"
    for board, series in zip(boards, drawn, strict=True):
        with Image.open(tmp_path / f"{board.name}.png") as file:
            picture = file.convert("L")
        assert picture.width == WIDTH
        for panel in board.panels:
            with subtests.test(f"{board.name}: {panel.title}, drawn"):
                if not needs_gpu(f"{board.name}: {panel.title}", panel.targets[0].query):
                    assert series[panel.title] >= len(panel.targets)
                box = box_of(panel)
                for top, bottom in ((4, 30), (34, box.height - 4)):  # its title; what it shows
                    part = (box.x + 4, box.y + top, box.x + box.width - 4, box.y + bottom)
                    assert min(picture.crop(part).tobytes()) < 160

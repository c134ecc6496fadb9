"""Alert and recording rules: promtool's own tests, and what each alert refers to."""

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import yaml

from condensery.api.rest.errors import find_row
from condensery.errors import CondenseryError, DeadlineExceeded

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
RULES = yaml.safe_load((PROMETHEUS / "rules.yaml").read_text(encoding="utf-8"))
GROUPS = yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
ALERTS = [rule for group in GROUPS for rule in group["rules"]]

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs promtool, of Debian's package prometheus"
)


def promtool(*arguments: str) -> None:
    done = subprocess.run(
        ["promtool", *arguments], cwd=PROMETHEUS, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_promtool_reads_the_configuration_and_the_rules_without_a_complaint() -> None:
    promtool("check", "config", "--lint-fatal", "prometheus.yaml")


@needs_promtool
@pytest.mark.slow
def test_each_alert_fires_where_its_tests_say_and_nowhere_else() -> None:
    promtool("test", "rules", "tests.yaml")


def test_each_alert_has_a_case_that_fires_for_each_severity() -> None:
    tests = (PROMETHEUS / "tests.yaml").read_text(encoding="utf-8")
    fired = Counter(re.findall(r'alertname="(\w+)",severity="(\w+)"', tests))
    wanted = {(rule["alert"], rule["labels"]["severity"]) for rule in ALERTS}
    assert set(fired) == wanted


def test_each_alert_has_its_section_in_the_runbooks_and_each_section_its_alert() -> None:
    runbooks = (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (\w+)$", runbooks, re.MULTILINE)
    assert set(sections) == {rule["alert"] for rule in ALERTS}
    for rule in ALERTS:
        assert rule["annotations"]["runbook"] == f"docs/runbooks.md#{rule['alert'].lower()}"


def test_the_availability_objective_counts_exactly_the_faults_of_the_server() -> None:
    def family(kind: type[CondenseryError]) -> set[type[CondenseryError]]:
        return {kind}.union(*map(family, kind.__subclasses__()))

    faults = {
        kind.__name__
        for kind in family(CondenseryError)
        if find_row(kind).openai[0] >= 500 or find_row(kind).openai[0] == 424
        if kind.__module__ == CondenseryError.__module__ and not issubclass(kind, DeadlineExceeded)
    }
    never_of_a_request = {"CondenseryError", "StartError", "PortTaken", "DataDirTaken"}
    wanted = faults - never_of_a_request - {"SettingError"} | {"InternalError"}
    rules = [rule for group in RULES["groups"] for rule in group["rules"]]
    found = [
        set(match[1].split("|"))
        for rule in rules
        if (match := re.search(r'code=~"([^"]+)"', rule["expr"]))
    ]
    assert len(found) == 4
    assert all(names == wanted for names in found), wanted

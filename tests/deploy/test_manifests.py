"""Kubernetes' manifests against its schemas, and all of deploy/ against what the service has."""

import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from condensery.api.rest.routes import HEALTH_ROUTES
from condensery.metrics import Metrics
from condensery.settings import Settings, variable_of

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
VERSIONS = (
    "1.30",
    "1.37",
)  # of Kubernetes: the oldest that we mean, and the newest schemas there are
DEFAULTS = {name: field.default for name, field in Settings.model_fields.items()}
SETTINGS = {variable_of(name) for name in Settings.model_fields}


def read(path: Path) -> Iterator[Any]:
    yield from yaml.safe_load_all(path.read_text(encoding="utf-8"))


def build(folder: Path) -> list[Any]:
    """Return what `kubectl kustomize` would: resources, patches laid over them, namespaces set."""
    (kustomization,) = read(folder / "kustomization.yaml")
    objects: list[Any] = []
    for name in kustomization.get("resources", []):
        path = folder / name
        objects += build(path) if path.is_dir() else list(read(path))
    for patch in kustomization.get("patches", []):
        (change,) = read(folder / patch["path"])
        (index,) = (n for n, thing in enumerate(objects) if names(thing) == names(change))
        objects[index] = merge(objects[index], change)
    for generator in kustomization.get("configMapGenerator", []):
        data = {Path(f).name: (folder / f).read_text(encoding="utf-8") for f in generator["files"]}
        metadata = {"name": generator["name"], **kustomization["generatorOptions"]}
        del metadata["disableNameSuffixHash"]
        objects.append(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        )
    for thing in objects:
        if "namespace" in kustomization and thing["kind"] != "Namespace":
            thing["metadata"]["namespace"] = kustomization["namespace"]
    return objects


def names(thing: Any) -> tuple[str, str]:
    return thing["kind"], thing["metadata"]["name"]


def merge(old: Any, new: Any) -> Any:
    """Lay a strategic merge patch over an object: lists of things with names merge by these."""
    if isinstance(old, dict) and isinstance(new, dict):
        return old | {k: merge(old[k], v) if k in old else v for k, v in new.items()}
    if isinstance(old, list) and all(isinstance(v, dict) and "name" in v for v in (*old, *new)):
        merged = {v["name"]: v for v in old}
        for v in new:
            merged[v["name"]] = merge(merged.get(v["name"], {}), v)
        return list(merged.values())
    return new


def find(objects: list[Any], kind: str) -> Any:
    (found,) = (thing for thing in objects if thing["kind"] == kind)
    return found


@pytest.mark.parametrize("overlay", ["cpu", "gpu", "monitoring"])
def test_every_object_of_an_overlay_is_what_kubernetes_schemas_say(
    overlay: str, subtests: pytest.Subtests
) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    checked = 0
    for thing in build(KUBERNETES / overlay):
        if "." in thing["apiVersion"].partition("/")[0].removesuffix(".k8s.io"):
            continue  # of an operator: below
        for version in VERSIONS:
            with subtests.test(version=version, thing=names(thing)):
                kubernetes_validate.validate(thing, version, strict=True)
                checked += 1
    assert checked >= 2 * 4


def test_the_operators_objects_name_what_is_there() -> None:
    base, monitoring = build(KUBERNETES / "cpu"), build(KUBERNETES / "monitoring")
    services = [thing for thing in base if thing["kind"] == "Service"]
    monitor = find(monitoring, "ServiceMonitor")
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    (scraped,) = (s for s in services if wanted <= s["metadata"].get("labels", {}).items())
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in scraped["spec"]["ports"]}
    assert scraped["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "condensery"
    scaled = find(build(KUBERNETES / "scaling"), "ScaledObject")
    assert scaled["apiVersion"] == "keda.sh/v1alpha1"
    target = scaled["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == names(find(base, "StatefulSet"))
    tokens, answers = (trigger["metadata"] for trigger in scaled["spec"]["triggers"])
    assert float(tokens["threshold"]) < DEFAULTS["max_queue_tokens"]
    namespace = find(base, "Namespace")["metadata"]["name"]
    assert f'condensery_queue_tokens{{namespace="{namespace}"}}' in tokens["query"]
    assert f'condensery_sequences{{namespace="{namespace}",state="waiting"}}' in answers["query"]


def test_what_was_scaled_stays_when_the_manifests_are_applied_again() -> None:
    for overlay in ("cpu", "gpu"):
        assert "replicas" not in find(build(KUBERNETES / overlay), "StatefulSet")["spec"]


def test_the_operators_rules_are_prometheus_own() -> None:
    rules = runpy.run_path(str(KUBERNETES / "rules.py"))
    kept = (KUBERNETES / "monitoring" / "rules.yaml").read_text(encoding="utf-8")
    assert kept == rules["render"](), "make rules"
    (rule,) = yaml.safe_load_all(kept)
    groups = [
        group
        for name in ("rules.yaml", "alerts.yaml")
        for document in read(DEPLOY / "prometheus" / name)
        for group in document["groups"]
    ]
    assert rule["spec"]["groups"] == groups


@pytest.mark.parametrize("overlay", ["cpu", "gpu"])
def test_probes_ports_and_grace_are_the_servers(overlay: str) -> None:
    objects = build(KUBERNETES / overlay)
    pod = find(objects, "StatefulSet")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": DEFAULTS["port"], "grpc": DEFAULTS["grpc_port"]}
    health = {route.template for route in HEALTH_ROUTES}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] in health
        assert container[probe]["httpGet"]["port"] in ports
    start, ready = container["startupProbe"], container["readinessProbe"]
    start_seconds = start["periodSeconds"] * start["failureThreshold"]
    assert start_seconds > DEFAULTS["start_timeout_seconds"]
    assert ready["periodSeconds"] * ready["failureThreshold"] < DEFAULTS["settle_seconds"]
    grace = DEFAULTS["settle_seconds"] + DEFAULTS["grace_seconds"]
    assert pod["terminationGracePeriodSeconds"] > grace
    assert {variable["name"] for variable in container["env"]} <= SETTINGS
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    claims = find(objects, "StatefulSet")["spec"]["volumeClaimTemplates"]
    there = {volume["name"] for volume in (*pod["volumes"], *(c["metadata"] for c in claims))}
    assert mounted == there
    assert ("nvidia.com/gpu" in container["resources"]["limits"]) == (overlay == "gpu")


def test_what_compose_mounts_and_sets_is_there() -> None:
    (compose,) = read(DEPLOY / "compose.yaml")
    service = compose["services"]["condensery"]
    assert set(service["environment"]) <= SETTINGS
    seconds = float(service["stop_grace_period"].removesuffix("s"))
    assert seconds > DEFAULTS["settle_seconds"] + DEFAULTS["grace_seconds"]
    assert service["read_only"]
    for each in compose["services"].values():
        assert each["cap_drop"] == ["ALL"]
        for volume in each["volumes"]:
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), source
            else:
                assert source in compose["volumes"]


def test_every_metric_that_is_asked_for_is_one_that_the_service_has() -> None:
    families = Metrics(tei=False).registry.collect()
    there = {
        f"{family.name}{suffix}"
        for family in families
        for suffix in {
            "counter": ("_total",),
            "histogram": ("_bucket", "_count", "_sum"),
        }.get(family.type, ("",))
    }
    asked: set[str] = set()
    for path in (DEPLOY / "prometheus").glob("*.yaml"):
        asked |= set(re.findall(r"\bcondensery_\w+", path.read_text(encoding="utf-8")))
    for path in (DEPLOY / "grafana" / "dashboards").glob("*.json"):
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            for target in panel["targets"]:
                asked |= set(re.findall(r"\bcondensery_\w+", target["expr"]))
    assert len(asked) > 40
    assert asked <= there, asked - there

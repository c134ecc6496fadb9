"""What becomes of deployed models where Ray Serve fails, or is not heard; Serve is a stand-in."""

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_pair import write_base

from condensery.cluster import deployments
from condensery.cluster.config import ClusterConfig
from condensery.cluster.deployments import Application, Cluster
from condensery.cluster.loading import ClusterLoader
from condensery.cluster.messages import ModelId, ReplicaFacts
from condensery.errors import CondenseryError, ModelFault, Unavailable
from condensery.metrics import Metrics
from condensery.runtime.workers import WorkersByDevice
from condensery.store.manifest import Manifest
from condensery.store.store import ModelStore

A, B = ModelId("a", "1", "f"), ModelId("b", "1", "f")
READY_SECONDS = 50.0


class Serve(ModuleType):
    """``ray.serve``: what it was asked to run and to delete, and what it is to say.

    Attributes:
        deployed: Names, in order.
        deleted: The same.
        status_of: Given a name that was deployed, says its status, and why; may raise.
        heard: Whether an answer comes to who deploys.
        facts: What each replica holds.
    """

    def __init__(self) -> None:
        super().__init__("ray.serve")
        self.deployed: list[str] = []
        self.deleted: list[str] = []
        self.asked = 0
        self.status_of: Callable[[str], tuple[str, str]] = lambda name: ("RUNNING", "")
        self.heard = True
        self.facts = ReplicaFacts({}, {}, "")

    def start(self, **options: Any) -> None:
        """Start nothing."""

    def deployment(self, **options: Any) -> Callable[[type], Any]:
        return lambda replica: SimpleNamespace(bind=lambda *args: args)

    def RunTarget(self, bound: Any, *, name: str, **options: Any) -> str:
        return name

    def run_many(self, targets: list[str], **options: Any) -> None:
        self.deployed += targets
        if not self.heard:
            raise TimeoutError("nothing came")

    def delete(self, name: str, **options: Any) -> None:
        self.deleted.append(name)

    def status(self) -> Any:
        self.asked += 1
        return SimpleNamespace(
            applications={
                name: self._application(*self.status_of(name))
                for name in self.deployed
                if name not in self.deleted
            }
        )

    def get_app_handle(self, name: str) -> Any:
        answer = SimpleNamespace(result=lambda **options: self.facts)
        handle = SimpleNamespace(describe=SimpleNamespace(remote=lambda: answer))
        return SimpleNamespace(options=lambda **options: handle)

    def _application(self, status: str, message: str) -> Any:
        up = {"RUNNING": 1} if status == "RUNNING" else {}
        models = SimpleNamespace(replica_states=up, message="")
        return SimpleNamespace(
            status=SimpleNamespace(value=status), message=message, deployments={"models": models}
        )


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Serve:
    serve, ray = Serve(), ModuleType("ray")
    ray.serve = serve  # type: ignore[attr-defined]
    ray.init = ray.shutdown = lambda **options: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.serve", serve)
    monkeypatch.setattr(deployments, "POLL_SECONDS", 0.0)
    return serve


@pytest.fixture
def cluster(serve: Serve) -> Cluster:
    config = ClusterConfig(ready_seconds=READY_SECONDS)
    return Cluster(config, {}, "/store", max_requests=1, drain_seconds=1.0)


def deploy(cluster: Cluster, *models: ModelId, anew: bool = False) -> Application:
    return cluster.deploy(models, cluster.config.alone(models[0].name), anew=anew)


def test_a_groups_models_all_hear_at_once_why_its_replicas_failed(
    serve: Serve, cluster: Cluster
) -> None:
    serve.status_of = lambda name: ("DEPLOY_FAILED", "a: is broken")
    app = deploy(cluster, A, B)
    serve.asked = 0
    for _ in (A, B):
        with pytest.raises(ModelFault, match="a: is broken"):
            cluster.wait_ready(app)
    assert serve.asked == 1
    assert cluster.applications() == []
    for model in (A, B):  # it is deleted already
        app.close(model)
    assert serve.deleted == [app.name]


def test_replicas_that_are_late_are_deleted_and_none_of_their_models_waits_again(
    serve: Serve, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve.status_of = lambda name: ("DEPLOYING", "no node has the memory")
    app = deploy(cluster, A, B)
    now = app.ready_until + 1
    monkeypatch.setattr(deployments, "time", SimpleNamespace(monotonic=lambda: now))
    for _ in (A, B):
        with pytest.raises(ModelFault, match=r"not within 50 s .* no node has the memory"):
            cluster.wait_ready(app)
    assert serve.deleted == [app.name]


def test_an_application_says_why_it_cannot_be_called(serve: Serve, cluster: Cluster) -> None:
    app = deploy(cluster, A)
    with pytest.raises(Unavailable, match="No replica is up"):
        app.check()
    cluster.wait_ready(app)
    app.check()
    cluster.let_go(app.name)
    with pytest.raises(Unavailable, match="No replica is up"):
        app.check()


def test_what_was_perhaps_deployed_unheard_is_deleted_later(serve: Serve, cluster: Cluster) -> None:
    deploy(cluster, B)
    serve.heard = False
    with pytest.raises(Unavailable):
        deploy(cluster, A, anew=True)
    unheard = serve.deployed[-1]
    assert serve.deleted == []
    cluster.watch(lambda: None, lambda reason: None)
    try:
        while not serve.deleted:  # the test's timeout is its end
            time.sleep(0.01)
    finally:
        cluster.close()
    assert serve.deleted == [unheard]


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("status", "does not answer: ConnectionError: nobody hears"),
        ("facts", "its replicas hold other models"),
    ],
)
def test_a_model_that_cannot_be_loaded_leaves_no_replicas(
    serve: Serve, cluster: Cluster, tmp_path: Path, broken: str, reason: str
) -> None:
    def be_silent(name: str) -> tuple[str, str]:
        raise ConnectionError("nobody hears")

    if broken == "status":
        serve.status_of = be_silent
    files, store = write_base(tmp_path / "files"), ModelStore(None, tmp_path / "store")
    manifest = Manifest(name="tiny", kind="encoder", pooling="mean", max_tokens=64)
    stored = store.publish(files, manifest)
    here = torch.device("cpu")
    with ThreadPoolExecutor(1) as threads:
        loader = ClusterLoader(
            store=store,
            workers=WorkersByDevice(None),
            threads=threads,
            device=here,
            compressor=here,
            generator=here,
            dtype=torch.float32,
            metrics=Metrics(),
            cluster=cluster,
        )
        with pytest.raises(CondenseryError, match=reason):
            loader.open(stored)
    for thread in threading.enumerate():
        if thread.name == "ray-delete":
            thread.join(60)
    assert len(serve.deployed) == 1
    assert serve.deleted == serve.deployed
    assert cluster.applications() == []

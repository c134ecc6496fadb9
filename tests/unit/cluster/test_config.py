from pathlib import Path
from typing import Any

import pytest

from condensery.cluster.config import ClusterConfig, Group, Scaling, read_config
from condensery.cluster.loading import ClusterModels
from condensery.errors import SettingError
from condensery.metrics import Metrics
from condensery.settings import Settings


def read(folder: Path, text: str) -> ClusterConfig:
    path = folder / "ray.yaml"
    path.write_text(text)
    return read_config(path)


def test_an_empty_file_runs_every_model_in_one_replica(tmp_path: Path) -> None:
    config = read(tmp_path, "")
    assert config.names(["a", "b"]) == ["a", "b"]
    assert config.deployed(["a", "b"]) == [Group(models=("a", "b"))]
    assert config.alone("loaded later") == Group(models=("loaded later",))


def test_named_models_come_first_and_others_only_where_the_file_says_so(tmp_path: Path) -> None:
    named = "groups: [{models: [b, missing], gpus: 0.5}]"
    assert read(tmp_path, named).names(["a", "b"]) == ["b", "missing"]
    config = read(tmp_path, "groups: [{models: [b]}, {models: ['*'], cpus: 2}]")
    assert config.names(["a", "b"]) == ["b", "a"]
    groups = [Group(models=("b",)), Group(models=("a", "c"), cpus=2)]
    assert config.deployed(["b", "a", "c"]) == groups
    assert config.deployed(["b"]) == groups[:1]
    assert config.alone("loaded later").cpus == 2


def test_replicas_are_a_number_or_bounds(tmp_path: Path) -> None:
    config = read(tmp_path, "groups: [{models: [a], replicas: {min: 1, max: 3, tokens: 500}}]")
    assert config.groups[0].replicas == Scaling(min=1, max=3, tokens=500)


WRONG: dict[str, tuple[str, Any]] = {
    "groups: [{models: [a], replica: 2}]": ("groups.0.replica", "did you mean replicas"),
    "groups: [{models: [a], replicas: 0}]": ("groups.0.replicas", "1 to 1000"),
    "groups: [{models: [a], replicas: two}]": ("groups.0.replicas", "two"),
    "groups: [{models: [a], replicas: {min: 3, max: 2}}]": ("groups.0.replicas", "below min"),
    "groups: [{models: [a], replicas: {max: 0}}]": ("groups.0.replicas.max", "0"),
    "groups: [{models: [a], gpus: 1.5}]": ("groups.0.gpus", "whole number"),
    "groups: [{models: [a], gpus: -1}]": ("groups.0.gpus", "-1"),
    "groups: [{models: [a], cpus: .inf}]": ("groups.0.cpus", "inf"),
    "groups: [{models: [a]}, {models: [a]}]": (None, "'a' is named twice"),
    "groups: [{models: [a, '*']}]": ("groups.0.models", "stands alone"),
    "groups: [{models: []}]": ("groups.0.models", "at least 1"),
    "groups: []": ("groups", "at least 1"),
    "name: 'a b'": ("name", "a b"),
    "ready_seconds: 0": ("ready_seconds", "0"),
    "address: auto\nlocal_cpus: 4": (None, "local_cpus"),
    "[a, b]": ("CONFIG", "must hold fields"),
    "a: [": ("CONFIG", "no YAML"),
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_named_with_its_place_and_value(text: str, tmp_path: Path) -> None:
    field, part = WRONG[text]
    with pytest.raises(SettingError) as caught:
        read(tmp_path, text)
    assert caught.value.field == field
    assert part in caught.value.message
    assert str(tmp_path / "ray.yaml") in caught.value.message


def test_a_file_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="can't be read: No such file"):
        read_config(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"models": "a,b"}, "models: on a Ray cluster its file names them"),
        ({"generator_servers": "a=http://127.0.0.1:9"}, "generator_servers: pairs on a Ray"),
        ({"front_processes": 2}, "front_processes: on a Ray cluster"),
        ({"start_timeout_seconds": 60}, "ready_seconds 90 is not allowed: it must be below"),
    ],
)
async def test_what_a_server_cannot_do_on_a_cluster_is_refused_before_it_is_joined(
    wrong: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    models = ClusterModels(read(tmp_path, "ready_seconds: 90"))
    settings = Settings(data_dir=tmp_path, **wrong)
    with pytest.raises(SettingError, match=reason) as caught:
        await models.load(settings, Metrics(tei=False), lambda line: None, usual_umask=0o022)
    assert caught.value.field
    assert reason.startswith(caught.value.field)

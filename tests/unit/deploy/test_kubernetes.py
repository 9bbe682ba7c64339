"""The Kubernetes manifests against the API's own schemas, and against themselves."""

from pathlib import Path
from typing import Any

import pytest
import yaml

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="the test group has it")

KUBERNETES = Path(__file__).parents[3] / "deploy" / "kubernetes"
BASE, SERVING = KUBERNETES / "base", KUBERNETES / "serving"
API_VERSION = "1.37"

KUSTOMIZATION: dict[str, Any] = yaml.safe_load((BASE / "kustomization.yaml").read_text())
OBJECTS: list[dict[str, Any]] = [
    found
    for folder in (BASE, SERVING)
    for name in yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    for found in yaml.safe_load_all((folder / name).read_text())
]
WORKLOADS = [found for found in OBJECTS if "template" in found["spec"]]


def name_of(found: dict[str, Any]) -> str:
    return f"{found['kind']} {found['metadata']['name']}"


def pod_of(workload: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = workload["spec"]["template"]
    return pod


@pytest.mark.parametrize("folder", [BASE, SERVING], ids=lambda folder: str(folder.name))
def test_every_file_is_part_of_its_base(folder: Path) -> None:
    files = {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}

    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    assert files == set(listed)


@pytest.mark.parametrize("found", OBJECTS, ids=name_of)
def test_an_object_is_what_its_schema_says(found: dict[str, Any]) -> None:
    assert kubernetes_validate.validate(found, API_VERSION, strict=True) is not None


@pytest.mark.parametrize("workload", WORKLOADS, ids=name_of)
def test_pods_run_as_nobody_in_particular_and_write_where_they_may(
    workload: dict[str, Any],
) -> None:
    pod = pod_of(workload)["spec"]

    assert pod["securityContext"]["runAsNonRoot"]
    assert not pod["automountServiceAccountToken"]
    for container in [*pod.get("initContainers", ()), *pod["containers"]]:
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert not container["securityContext"]["allowPrivilegeEscalation"]
        assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("workload", WORKLOADS, ids=name_of)
def test_what_is_mounted_is_there(workload: dict[str, Any]) -> None:
    pod = pod_of(workload)["spec"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    claims = workload["spec"].get("volumeClaimTemplates", ())
    volumes |= {claim["metadata"]["name"] for claim in claims}
    mounted = {
        mount["name"]
        for container in [*pod.get("initContainers", ()), *pod["containers"]]
        for mount in container["volumeMounts"]
    }

    assert mounted == volumes


def test_services_and_budgets_select_pods_and_name_their_ports() -> None:
    labels = [pod_of(workload)["metadata"]["labels"] for workload in WORKLOADS]
    for found in OBJECTS:
        if found["kind"] == "Service":
            selector = found["spec"]["selector"]
            (workload,) = [w for w in WORKLOADS if pod_of(w)["metadata"]["labels"] == selector]
            (container,) = pod_of(workload)["spec"]["containers"]
            ports = {port["name"] for port in container["ports"]}
            assert {port["targetPort"] for port in found["spec"]["ports"]} <= ports
        if found["kind"] == "PodDisruptionBudget":
            assert found["spec"]["selector"]["matchLabels"] in labels


def test_sizes_agree() -> None:
    (job,) = KUSTOMIZATION["configMapGenerator"]
    settings = dict(literal.split("=", 1) for literal in job["literals"])
    by_name = {name_of(found): found["spec"] for found in WORKLOADS}

    assert settings["PARAMFLEET_COORDINATOR__SERVER_PROCESSES"] == str(
        by_name["StatefulSet pserver"]["replicas"]
    )
    assert settings["PARAMFLEET_COORDINATOR__WORKER_NUM"] == str(
        by_name["Job worker"]["parallelism"]
    )

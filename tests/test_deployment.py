"""What the page about deployment and the manifest say fits the service, and Kubernetes' own schemas."""

import re
from importlib.metadata import version
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from app import create_app
from app.settings import PREFIX, Settings
from docs.settings import PAGE

ROOT = Path(__file__).parents[1]
OBJECTS = {one["kind"]: one for one in yaml.safe_load_all((ROOT / "deploy" / "kubernetes.yaml").read_text())}
POD = OBJECTS["Deployment"]["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
DEFAULTS = Settings.model_construct()


@pytest.mark.parametrize("kind", OBJECTS)
def test_an_object_fits_the_schema_of_kubernetes(kind):
    kubernetes_validate.validate(OBJECTS[kind], kubernetes_validate.latest_version(), strict=True)


def test_objects_mean_the_same_pods():
    labels = OBJECTS["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert OBJECTS["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert OBJECTS["Service"]["spec"]["selector"] == labels
    assert OBJECTS["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    assert OBJECTS["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    target = OBJECTS["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", OBJECTS["Deployment"]["metadata"]["name"])
    assert {POD["containers"][0]["ports"][0]["name"]} == {
        OBJECTS["Service"]["spec"]["ports"][0]["targetPort"],
        OBJECTS["NetworkPolicy"]["spec"]["ingress"][0]["ports"][0]["port"],
        *(CONTAINER[probe]["httpGet"]["port"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")),
    }


def test_the_container_is_that_of_the_dockerfile_and_needs_no_right():
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert CONTAINER["image"] == f"seewhy:{version('seewhy')}"
    assert f"EXPOSE {CONTAINER['ports'][0]['containerPort']}\n" in dockerfile
    assert f"USER {POD['securityContext']['runAsUser']}\n" in dockerfile
    assert POD["securityContext"]["runAsNonRoot"]
    assert CONTAINER["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {mount["mountPath"] for mount in CONTAINER["volumeMounts"]} == {"/tmp"}


def test_what_runs_may_finish_before_a_pod_is_killed():
    given = {one["name"]: one["value"] for one in CONTAINER["env"]}
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    assert {name for name in given if name.startswith(PREFIX)} <= known
    pause = int(CONTAINER["lifecycle"]["preStop"]["exec"]["command"][1])
    assert POD["terminationGracePeriodSeconds"] > float(given["SEEWHY_DEADLINE"]) + pause
    assert float(given["SEEWHY_DEADLINE"]) == DEFAULTS.deadline


def test_probes_ask_routes_that_there_are():
    routes = {str(rule) for rule in create_app(DEFAULTS).url_map.iter_rules()}
    assert {
        CONTAINER[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")
    } <= routes


def test_nginx_takes_the_uploads_that_the_service_takes_and_waits_longer_than_it():
    text = PAGE.read_text(encoding="utf-8")
    (size,) = re.findall(r"client_max_body_size (\d+)m;", text)
    (seconds,) = re.findall(r"proxy_read_timeout (\d+)s;", text)
    assert int(size) * 2**20 == DEFAULTS.max_upload_bytes
    assert int(seconds) > DEFAULTS.deadline


def test_a_busy_container_is_not_killed_for_being_busy():
    probe = CONTAINER["livenessProbe"]
    assert probe["periodSeconds"] * (probe["failureThreshold"] - 1) > DEFAULTS.deadline


def test_a_pod_takes_no_more_than_its_share():
    limits, requests = CONTAINER["resources"]["limits"], CONTAINER["resources"]["requests"]
    assert set(limits) == set(requests) == {"cpu", "memory"}
    assert limits["memory"] == "2Gi"
    (volume,) = POD["volumes"]
    assert volume["emptyDir"]["sizeLimit"]


def test_a_pod_can_do_nothing_to_its_node_or_cluster():
    assert POD["automountServiceAccountToken"] is False
    assert POD["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(POD)


def test_no_service_of_the_cluster_sets_a_setting():
    assert f"{OBJECTS['Service']['metadata']['name'].upper()}_PORT" == f"{PREFIX}PORT"
    assert POD["enableServiceLinks"] is False


def test_requests_come_from_the_ingress_alone_and_nothing_is_asked_of_others():
    policy = OBJECTS["NetworkPolicy"]["spec"]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    (rule,) = policy["ingress"]
    (source,) = rule["from"]
    assert source["namespaceSelector"]["matchLabels"]
    assert [port["protocol"] for port in rule["ports"]] == ["TCP"]
    assert policy["egress"] == []


def test_pods_become_more_under_load_and_never_too_few():
    scaling = OBJECTS["HorizontalPodAutoscaler"]["spec"]
    assert 2 <= scaling["minReplicas"] < scaling["maxReplicas"]
    (metric,) = scaling["metrics"]
    assert metric["resource"]["name"] == "cpu"
    assert metric["resource"]["target"]["averageUtilization"] < 100
    assert "replicas" not in OBJECTS["Deployment"]["spec"]  # which would undo the scaling with each deployment
    assert OBJECTS["Deployment"]["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert OBJECTS["PodDisruptionBudget"]["spec"]["maxUnavailable"] < scaling["minReplicas"]


def test_a_check_looks_for_dangerous_code_and_known_holes():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = text.partition("\ncheck:")[2].partition("\n\n")[0]
    for one in ("ruff check .", "ruff format --check .", "mypy\n", "bandit "):
        assert f"\t$(BIN)/{one}" in recipe, one
    assert "\t@$(AUDIT) --format json" in recipe
    assert "$(BIN)/pip-audit " in text.partition("\nAUDIT = ")[2].partition("\n\n")[0]
    assert "\nmake check\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")

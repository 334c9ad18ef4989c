"""What is deployed (nginx, compose.yaml, the manifest) fits the service, and Kubernetes' own schemas."""

import re
from importlib.metadata import version
from pathlib import Path

import kubernetes_validate
import promql_parser
import pytest
import yaml

from seewhy.app import create_app
from seewhy.app.server.configuration import DRAIN_SECONDS, KEEPALIVE_SECONDS, Server
from seewhy.app.settings import PREFIX, Settings

ROOT = Path(__file__).parents[1]
OBJECTS = {entry["kind"]: entry for entry in yaml.safe_load_all((ROOT / "deploy" / "kubernetes.yaml").read_text())}
POD = OBJECTS["Deployment"]["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
DEFAULTS = Settings.model_construct()
NGINX = (ROOT / "deploy" / "nginx.conf").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
ANNOTATION = "nginx.ingress.kubernetes.io/"


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


def test_the_image_gets_all_that_the_package_is_made_of():
    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    paths = {path for line in copies for path in line.split()}
    context = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert context[0] == "*"
    assert paths <= {line.removeprefix("!") for line in context if line.startswith("!")}
    links = {path.readlink().name for path in (ROOT / "seewhy").iterdir() if path.is_symlink()}
    assert paths >= links | {"seewhy", "pyproject.toml", "README.md", "LICENSE"}


def test_what_runs_may_finish_before_a_pod_is_killed():
    variables = {entry["name"]: entry["value"] for entry in CONTAINER["env"]}
    settings = {PREFIX + name.upper() for name in Settings.model_fields}
    assert {name for name in variables if name.startswith(PREFIX)} <= settings
    pause = int(CONTAINER["lifecycle"]["preStop"]["exec"]["command"][1])
    assert POD["terminationGracePeriodSeconds"] > float(variables["SEEWHY_DEADLINE"]) + pause + DRAIN_SECONDS
    assert Server(DEFAULTS).cfg.graceful_timeout == DEFAULTS.deadline + DRAIN_SECONDS
    assert variables["SEEWHY_TRUSTED_PROXIES"] == "1"
    assert float(variables["SEEWHY_DEADLINE"]) == DEFAULTS.deadline


def test_probes_ask_routes_that_there_are():
    routes = {str(rule) for rule in create_app(DEFAULTS).url_map.iter_rules()}
    assert {
        CONTAINER[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")
    } <= routes


def directives(name):
    """Return what nginx.conf says for a directive, each time."""
    return re.findall(rf"^\s*{name}\s+([^;]+);", NGINX, flags=re.MULTILINE)


def test_nginx_takes_the_uploads_that_the_service_takes_and_waits_longer_than_it():
    most, *of_probes = directives("client_max_body_size")
    assert int(most.removesuffix("m")) * 2**20 == DEFAULTS.max_upload_bytes
    assert of_probes == ["1k"] * 2  # nobody counts them, so they are to leave nothing in files
    assert [int(limit.removesuffix("s")) > DEFAULTS.deadline for limit in directives("proxy_read_timeout")] == [True]


def test_nginx_has_slow_clients_wait_and_repeats_nothing():
    (connections,) = directives("worker_connections")
    assert int(connections) >= 2 * 2_000  # thousands of silent clients, and what it forwards for them
    upstream = NGINX.partition("upstream seewhy {")[2].partition("}")[0]
    (seconds,) = re.findall(r"keepalive_timeout (\d+)s;", upstream)  # it lets go of one before the service does
    assert int(seconds) < KEEPALIVE_SECONDS == Server(DEFAULTS).cfg.keepalive
    assert directives("proxy_request_buffering") == directives("proxy_buffering") == ["on"]
    assert directives("proxy_ignore_client_abort") == ["off"]
    assert directives("proxy_next_upstream") == ["error timeout"]  # without non_idempotent
    connect, again, read = (
        int(directives(f"proxy_{name}_timeout")[0].removesuffix("s")) for name in ("connect", "next_upstream", "read")
    )
    assert 2 * connect < again < read  # other replicas are tried, but what is slow is not repeated
    assert {"client_header_timeout", "client_body_timeout", "send_timeout"} <= set(re.findall(r"\w+", NGINX))
    (most,) = directives("limit_conn addresses")
    assert int(most) > DEFAULTS.threads  # behind one address there may be many people


def test_the_ingress_says_what_nginx_conf_says():
    annotations = {
        name.removeprefix(ANNOTATION): value for name, value in OBJECTS["Ingress"]["metadata"]["annotations"].items()
    }
    for name in ("request-buffering", "buffering", "buffer-size", "max-temp-file-size", "next-upstream"):
        assert [annotations[f"proxy-{name}"]] == directives(f"proxy_{name.replace('-', '_')}")
    for name in ("connect", "send", "read", "next-upstream"):
        assert [f"{annotations[f'proxy-{name}-timeout']}s"] == directives(f"proxy_{name.replace('-', '_')}_timeout")
    assert annotations["proxy-body-size"] == directives("client_max_body_size")[0]
    assert [annotations["limit-connections"]] == directives("limit_conn addresses")
    (rule,) = OBJECTS["Ingress"]["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert path["backend"]["service"]["name"] == OBJECTS["Service"]["metadata"]["name"]
    assert path["backend"]["service"]["port"]["name"] == OBJECTS["Service"]["spec"]["ports"][0]["name"]


def test_compose_runs_the_service_behind_this_nginx_and_publishes_nothing_else():
    assert set(COMPOSE) == {"services"}
    proxy, service = (COMPOSE["services"][name] for name in ("proxy", "seewhy"))
    (mount,) = proxy["volumes"]
    source, target, mode = mount.split(":")
    assert (ROOT / source).read_text(encoding="utf-8") == NGINX
    assert target in proxy["command"]
    assert mode == "ro"
    (published,) = proxy["ports"]
    assert published.rpartition(":")[2] == directives("listen")[0]
    assert published.startswith("127.0.0.1:")  # others are let in on purpose
    assert "ports" not in service
    (port,) = service["expose"]
    assert directives("server")[0] == f"seewhy:{port} max_fails=0"
    assert f"EXPOSE {port}\n" in (ROOT / "Dockerfile").read_text(encoding="utf-8")
    # nginx resolves the service's name once: it starts anew where the service does.
    assert proxy["depends_on"] == {"seewhy": {"condition": "service_healthy", "restart": True}}
    assert re.fullmatch(r"docker\.io/library/nginx:[\d.]+-alpine@sha256:[0-9a-f]{64}", proxy["image"])
    assert proxy["healthcheck"]["test"][:2] == ["CMD", "wget"]  # which alpine's busybox has


def megabytes(size):
    """Return what nginx or Docker takes a size for, in MB of 2**20 bytes."""
    return int(size[:-1]) * {"m": 1, "g": 2**10}[size[-1]]


def test_one_address_cannot_fill_the_proxy():
    """Neither with uploads that do not end nor with answers that it does not read."""
    sizes = {}
    for entry in COMPOSE["services"]["proxy"]["tmpfs"]:
        place, _, options = entry.partition(":")
        sizes[place] = megabytes(dict(option.split("=") for option in options.split(","))["size"])
    (uploads,) = directives("client_body_temp_path")
    (requests,), (large,) = directives("limit_conn addresses"), directives("limit_conn large")
    (upload, *_), (answer,) = directives("client_max_body_size"), directives("proxy_max_temp_file_size")
    (digits,) = re.findall(r'"~\^:\\d\{0,(\d)\}\$" "";', NGINX)
    most_of_small = 10 ** int(digits) / 2**20
    largest = int(large) * megabytes(upload) + (int(requests) - int(large)) * most_of_small
    assert largest < sizes[f"/tmp/{uploads}"]
    assert int(requests) * (megabytes(answer) + 1) < sizes["/tmp"]


def test_compose_gives_the_service_what_the_manifest_gives_it():
    service = COMPOSE["services"]["seewhy"]
    settings = {PREFIX + name.upper() for name in Settings.model_fields}
    variables = service["environment"]
    assert {name for name in variables if name.startswith(PREFIX)} <= settings
    assert variables["SEEWHY_TRUSTED_PROXIES"] == "1"
    assert float(variables["SEEWHY_DEADLINE"]) == DEFAULTS.deadline
    assert int(variables["SEEWHY_MAX_UPLOAD_BYTES"]) == DEFAULTS.max_upload_bytes
    assert int(service["stop_grace_period"].removesuffix("s")) > DEFAULTS.deadline + DRAIN_SECONDS
    assert service["image"] == CONTAINER["image"]
    assert (service["cpus"], service["mem_limit"]) == (2, "2g")
    for container in COMPOSE["services"].values():
        assert container["read_only"] is True
        assert container["cap_drop"] == ["ALL"]
        assert container["security_opt"] == ["no-new-privileges:true"]
        assert any(place.startswith("/tmp") for place in container["tmpfs"])


def test_a_pod_takes_its_share_and_can_do_nothing_to_its_node_or_cluster():
    probe = CONTAINER["livenessProbe"]  # a busy container is not killed for being busy
    assert probe["periodSeconds"] * (probe["failureThreshold"] - 1) > DEFAULTS.deadline
    limits, requests = CONTAINER["resources"]["limits"], CONTAINER["resources"]["requests"]
    assert set(limits) == set(requests) == {"cpu", "memory"}
    assert limits["memory"] == "2Gi"
    (volume,) = POD["volumes"]
    assert volume["emptyDir"]["sizeLimit"]
    assert POD["automountServiceAccountToken"] is False
    assert POD["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(POD)
    assert f"{OBJECTS['Service']['metadata']['name'].upper()}_PORT" == f"{PREFIX}PORT"
    assert POD["enableServiceLinks"] is False  # which would set this setting


def test_requests_come_from_the_ingress_and_prometheus_alone_and_nothing_is_asked_of_others():
    policy = OBJECTS["NetworkPolicy"]["spec"]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    names = []
    for rule in policy["ingress"]:
        (source,) = rule["from"]
        names += source["namespaceSelector"]["matchLabels"].values()
        assert [port["protocol"] for port in rule["ports"]] == ["TCP"]
    assert names == ["ingress-nginx", "monitoring"]
    assert policy["egress"] == []


def test_pods_become_more_under_load_and_never_too_few():
    scaling = OBJECTS["HorizontalPodAutoscaler"]["spec"]
    assert 2 <= scaling["minReplicas"] < scaling["maxReplicas"]
    assert "replicas" not in OBJECTS["Deployment"]["spec"]  # which would undo the scaling with each deployment
    assert OBJECTS["Deployment"]["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert OBJECTS["PodDisruptionBudget"]["spec"]["maxUnavailable"] < scaling["minReplicas"]


def test_pods_become_more_when_pictures_wait():
    (metric,) = OBJECTS["HorizontalPodAutoscaler"]["spec"]["metrics"]
    name, target = metric["pods"]["metric"]["name"], metric["pods"]["target"]
    assert 0 < int(target["averageValue"]) < DEFAULTS.queue_size / 2  # before requests are refused
    assert int(target["averageValue"]) == DEFAULTS.max_batch
    assert f"\n# TYPE {name} gauge\n" in create_app(DEFAULTS).test_client().get("/metrics").text
    (rule,) = yaml.safe_load((ROOT / "deploy" / "prometheus-adapter.yaml").read_text())["rules"]["custom"]
    vector = promql_parser.parse(rule["seriesQuery"])
    assert vector.name == name
    assert {matcher.name for matcher in vector.matchers.matchers} == set(rule["resources"]["overrides"])
    query = rule["metricsQuery"].replace("<<.Series>>", name).replace("<<.GroupBy>>", "pod")
    promql_parser.parse(query.replace("<<.LabelMatchers>>", 'namespace="default"'))


def test_a_check_looks_for_dangerous_code_and_known_holes():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = text.partition("\ncheck:")[2].partition("\n\n")[0]
    for command in ("ruff check .", "ruff format --check .", "mypy\n", "bandit "):
        assert f"\t$(BIN)/{command}" in recipe, command
    assert "\t@$(AUDIT) --format json" in recipe
    assert "$(BIN)/pip-audit " in text.partition("\nAUDIT = ")[2].partition("\n\n")[0]
    assert "\nmake check\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")

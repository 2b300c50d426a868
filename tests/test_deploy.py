"""The files for deployments name routes, settings and times that the server really has. Nothing is built or started in a cluster."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from inference_server.__main__ import GRACE_S
from inference_server.api.access import OPEN_ROUTES
from inference_server.config import Settings
from inference_server.engine.async_engine import _STEP_LIMIT_S
from inference_server.observability.batch_writer import CLOSE_S

ROOT = Path(__file__).parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
VARIABLES_OF_OTHERS = {"HOME", "HF_HOME", "HF_TOKEN", "PATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"}
VARIABLES_OF_OTHERS |= {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}
LAST_WRITES_S = 3 * CLOSE_S  # telemetry, timeline and spans


def parsed(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / name).read_text())
    return found


def assigned_for_modal(name: str) -> Any:
    """The value that the example for Modal assigns to a name. The example cannot be imported without Modal's package."""
    tree = ast.parse((ROOT / "deploy/modal_app.py").read_text())
    (node,) = [node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name]
    return ast.literal_eval(node.value)


@pytest.fixture(scope="module")
def pod() -> dict[str, Any]:
    deployment, service = yaml.safe_load_all((ROOT / "deploy/kubernetes.yaml").read_text())
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"] == labels
    spec: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return spec


def test_probes_ask_routes_that_need_no_key(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["path"] in OPEN_ROUTES
        assert container[probe]["httpGet"]["port"] == container["ports"][0]["name"]
    assert "/health/live" in OPEN_ROUTES & set(re.findall(r"/health/live", DOCKERFILE))


def test_the_termination_period_fits_the_drain(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    pause_s = float(container["lifecycle"]["preStop"]["exec"]["command"][-1])
    drain_s = float(environment["DRAIN_TIMEOUT_S"])
    assert pod["terminationGracePeriodSeconds"] >= pause_s + drain_s + _STEP_LIMIT_S + GRACE_S + LAST_WRITES_S


def test_only_settings_that_exist_are_set(pod: dict[str, Any]) -> None:
    in_image = {name for line in re.findall(r"^ENV (.*)$", DOCKERFILE, re.M) for name in re.findall(r"(\w+)=", line)}
    in_pod = {entry["name"] for entry in pod["containers"][0]["env"]}
    in_compose = set(parsed("docker-compose.yml")["services"]["server"]["environment"])
    on_cuda = set(parsed("deploy/docker-compose.cuda.yml")["services"]["server"]["environment"])
    on_modal = assigned_for_modal("SETTINGS")
    named = (in_image | in_pod | in_compose | on_cuda | set(on_modal)) - VARIABLES_OF_OTHERS
    assert named <= {name.upper() for name in Settings.model_fields}
    Settings(_env_file=None, **{name.lower(): value for name, value in on_modal.items()})  # type: ignore[call-arg]


def test_both_run_as_the_same_user_and_write_only_to_volumes(pod: dict[str, Any]) -> None:
    (user,) = re.findall(r"^USER (\d+)$", DOCKERFILE, re.M)
    assert pod["securityContext"]["runAsUser"] == int(user) > 0
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def test_the_image_s_health_check_fails_when_nobody_listens() -> None:
    (command,) = re.findall(r"HEALTHCHECK.*\\\n\s+CMD (\[.*\])", DOCKERFILE)
    python, *rest = json.loads(command)
    assert python == "python"
    failed = subprocess.run([sys.executable, *rest], env={"PORT": "1"}, capture_output=True, timeout=20)
    assert failed.returncode == 1


def test_what_the_image_copies_is_let_into_the_build() -> None:
    allowed = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {name for line in re.findall(r"^COPY (?!--)(.*) \S+$", DOCKERFILE, re.M) for name in line.split()}
    assert copied == allowed
    assert all((ROOT / name).exists() for name in allowed)


def test_the_example_for_modal_copies_what_the_project_is_built_from() -> None:
    copied = {name for line in re.findall(r"^COPY (?!--)(.*) \./$", DOCKERFILE, re.M) for name in line.split()}
    assert set(assigned_for_modal("PROJECT_FILES")) == copied


def test_an_image_for_each_kind_of_device_ends_in_the_same_stage() -> None:
    stages = re.findall(r"^FROM (\S+)(?: AS (\S+))?$", DOCKERFILE, re.M)
    assert {name for _, name in stages if name} == {"build", "base-cpu", "base-cuda"}
    assert stages[-1] == ("base-${DEVICE}", "")
    assert DOCKERFILE.index("ARG DEVICE=cpu") < DOCKERFILE.index("FROM ")
    assert parsed("deploy/docker-compose.cuda.yml")["services"]["server"]["build"]["args"] == {"DEVICE": "cuda"}


def test_one_compose_file_brings_the_server_and_who_watches_it() -> None:
    compose, watchers = parsed("docker-compose.yml"), parsed("monitoring/docker-compose.yml")
    services = compose["services"]
    assert set(services) == {"server", *watchers["services"]}
    assert {name: service["extends"] for name, service in services.items() if name != "server"} == {
        name: {"file": "monitoring/docker-compose.yml", "service": name} for name in watchers["services"]
    }
    volumes = [volume for service in [*services.values(), *watchers["services"].values()] for volume in service.get("volumes", ())]
    assert {volume.split(":")[0] for volume in volumes if not volume.startswith(".")} == set(compose["volumes"])
    drain_s = Settings.model_fields["drain_timeout_s"].default
    assert float(services["server"]["stop_grace_period"].removesuffix("s")) >= drain_s + _STEP_LIMIT_S + GRACE_S + LAST_WRITES_S
    assert set(services["server"]["build"]["args"]) <= set(re.findall(r"^ARG (\w+)", DOCKERFILE, re.M))


@pytest.mark.parametrize(
    ("compose", "folder", "host"),
    [("docker-compose.yml", ".", "server"), ("monitoring/docker-compose.yml", "monitoring", "host.docker.internal")],
)
def test_prometheus_finds_its_target_in_either_compose_file(compose: str, folder: str, host: str) -> None:
    (scrape,) = parsed("monitoring/prometheus/prometheus.yml")["scrape_configs"]
    ((where,),) = [config["files"] for config in scrape["file_sd_configs"]]
    mounted, pattern = where.rsplit("/", 1)
    prometheus = parsed(compose)["services"]["prometheus"]
    (source,) = [volume.split(":")[0] for volume in prometheus["volumes"] if volume.split(":")[1] == mounted]
    (targets,) = [yaml.safe_load(path.read_text()) for path in (ROOT / folder / source).glob(pattern)]
    assert targets == [{"targets": [f"{host}:8000"]}]


def test_every_alert_is_explained() -> None:
    rules = [rule["alert"] for group in parsed("monitoring/prometheus/alerts.yml")["groups"] for rule in group["rules"]]
    explained = re.findall(r"^\| `(InferenceServer\w+)` \|", (ROOT / "docs/operations.md").read_text(), re.M)
    assert explained == rules

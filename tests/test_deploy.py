"""The files of a deployment name routes, settings and times that the server really has. Nothing is built or started in a cluster here."""

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
from inference_server.observability.telemetry import CLOSE_S

ROOT = Path(__file__).parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
VARIABLES_OF_OTHERS = {"HOME", "HF_HOME", "PATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"}


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
    assert pod["terminationGracePeriodSeconds"] >= pause_s + drain_s + _STEP_LIMIT_S + GRACE_S + CLOSE_S


def test_only_settings_that_exist_are_set(pod: dict[str, Any]) -> None:
    in_image = {name for line in re.findall(r"^ENV (.*)$", DOCKERFILE, re.M) for name in re.findall(r"(\w+)=", line)}
    in_pod = {entry["name"] for entry in pod["containers"][0]["env"]}
    assert (in_image | in_pod) - VARIABLES_OF_OTHERS <= {name.upper() for name in Settings.model_fields}


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

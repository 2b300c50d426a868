"""Ray Serve and KubeRay accept `deploy/fleet.yaml`: it fits Serve's own schema, and what it names can be built. Opt in with -m fleet."""

from pathlib import Path

import pytest
import yaml

pytest.importorskip("ray")

from ray._common.utils import import_attr
from ray.serve.schema import ServeApplicationSchema, ServeDeploySchema

pytestmark = [pytest.mark.fleet, pytest.mark.filterwarnings("ignore")]

FILE = yaml.safe_load((Path(__file__).parents[2] / "deploy" / "fleet.yaml").read_text())


def test_serve_reads_every_word_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_NAME", "google/gemma-3-1b-it")
    schema = ServeDeploySchema.model_validate(FILE)
    (described,), (application,) = FILE["applications"], schema.applications
    assert set(FILE) <= set(ServeDeploySchema.model_fields)
    assert set(described) <= set(ServeApplicationSchema.model_fields), "Serve would pass over what it does not know"
    built = import_attr(application.import_path)(application.args)
    replicas = built._bound_deployment.init_args[0]._bound_deployment
    assert built._bound_deployment.name == "Ingress"
    assert (replicas.name, replicas.init_args[0].model_name) == ("Replica", "google/gemma-3-1b-it")
    assert replicas.ray_actor_options == {"num_cpus": described["args"]["num_cpus"], "num_gpus": described["args"]["num_gpus"]}


def test_kuberay_takes_the_applications_alone() -> None:
    assert ServeDeploySchema.model_validate({"applications": FILE["applications"]}).applications


def test_an_unknown_option_is_refused() -> None:
    (application,) = FILE["applications"]
    with pytest.raises(TypeError, match="replcas"):
        import_attr(application["import_path"])({"replcas": 2})

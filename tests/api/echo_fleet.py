"""The echo model behind the ingress of a fleet: the fleet's counterpart of `api_server.running`. Needs a Ray with Serve's proxy."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from echo_model import MODEL_NAME, EchoBackend, load_echo
from ray import serve

from control_plane.deployment import fleet
from control_plane.options import FleetOptions
from inference_server.config import Settings
from inference_server.core.prefix_journal import PrefixJournal
from inference_server.engine.loaded_model import LoadedModel

MakeBackend = Callable[[], EchoBackend]
LoadModel = Callable[[Settings, EchoBackend], LoadedModel]


@contextmanager
def running_fleet(
    proxy: str, make_backend: MakeBackend = EchoBackend, load_model: LoadModel = load_echo, replicas: int = 1, **settings: Any
) -> Iterator[str]:
    """Run a fleet. Yields its address, below that of `proxy`."""
    name = f"echo-{secrets.token_hex(4)}"
    configured = Settings(_env_file=None, served_model_name=MODEL_NAME, **settings)  # type: ignore[call-arg]
    application = fleet(configured, FleetOptions(replicas), partial(_load, make_backend, load_model))
    serve.run(application, name=name, route_prefix=f"/{name}")
    try:
        yield f"{proxy}/{name}"
    finally:
        serve.delete(name)


def _load(make_backend: MakeBackend, load_model: LoadModel, settings: Settings, journal: PrefixJournal) -> LoadedModel:
    return load_model(settings, make_backend())

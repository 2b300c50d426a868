"""A server process for the tests of signals: `app` for plain uvicorn, and `main` for what `python -m inference_server` does."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "api"))

from echo_model import EchoBackend, load_echo

from inference_server import __main__, server
from inference_server.config import Settings
from inference_server.core.errors import ModelLoadError
from inference_server.core.plan import StepResult
from inference_server.engine.loaded_model import LoadedModel

SETTINGS = Settings.from_cli()


def load(settings: Settings, journal: object = None) -> LoadedModel:
    if settings.served_model_name == "broken":
        raise ModelLoadError("the model is broken in one line")
    if settings.served_model_name == "slow":
        time.sleep(60)
    backend = EchoBackend(step_s=0.02)
    if settings.served_model_name == "hanging":
        backend.gate.clear()
    if settings.served_model_name == "dying":
        backend.sample = die
    return load_echo(settings, backend)


def die(step: StepResult, masks: object = None) -> None:
    raise MemoryError("a failure that is not the step's own")


server.load_model = load
app = server.create_app(SETTINGS)

if __name__ == "__main__":
    __main__.main()

"""The server on Modal, one GPU a container, which comes when there are requests and goes when there are none.

From the root of a checkout, once there is a secret with the clients' keys and, for gated models, a Hugging Face token:
    modal secret create inference-server API_KEYS=KEY1,KEY2 HF_TOKEN=...
    modal deploy deploy/modal_app.py
"""

import subprocess
import time
import urllib.error
import urllib.request

import modal

LOAD_LIMIT_S = 20 * 60  # the first start downloads the model
STOP_LIMIT_S = 25  # Modal kills a container 30 s after it has asked it to stop
SETTINGS = {
    "MODEL_NAME": "google/gemma-4-E2B-it",
    "HOST": "0.0.0.0",
    "PORT": "8000",
    "LOG_FORMAT": "json",
    "DRAIN_TIMEOUT_S": "10",
    "MAX_QUEUE_SIZE": "128",
    "MODEL_CACHE_DIR": "/cache/models",
}
PORT = int(SETTINGS["PORT"])
PROJECT_FILES = ("pyproject.toml", "requirements.lock", "README.md", "LICENSE", "NOTICE")

image = modal.Image.debian_slim(python_version="3.12").apt_install("gcc", "libc6-dev")  # Triton compiles with it
for name in PROJECT_FILES:
    image = image.add_local_file(name, f"/project/{name}", copy=True)
image = image.add_local_dir("src", "/project/src", copy=True)
image = image.run_commands("pip install -c /project/requirements.lock '/project[otel]'").env(SETTINGS | {"HF_HOME": "/cache/huggingface"})

app = modal.App("inference-server")


@app.cls(
    image=image,
    gpu="H100",
    secrets=[modal.Secret.from_name("inference-server")],
    volumes={"/cache": modal.Volume.from_name("inference-server-cache", create_if_missing=True)},
    scaledown_window=300,
    timeout=LOAD_LIMIT_S,
)
@modal.concurrent(max_inputs=192)  # MAX_BATCH_SIZE and MAX_QUEUE_SIZE; Modal starts another container above it
class Server:
    """One process of the server, which ends with its container."""

    @modal.enter()
    def start(self) -> None:
        """Start it and wait until it takes requests: its port is open before that, and answers 503."""
        self.process = subprocess.Popen(["python", "-m", "inference_server"])
        while not _ready():
            if self.process.poll() is not None:
                raise SystemExit(f"the server ended with status {self.process.returncode}")
            time.sleep(1)

    @modal.web_server(PORT, startup_timeout=LOAD_LIMIT_S)
    def serve(self) -> None:
        """What listens on the port is already there."""

    @modal.exit()
    def stop(self) -> None:
        """Let it drain."""
        self.process.terminate()
        try:
            self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()


def _ready() -> bool:
    try:
        return bool(urllib.request.urlopen(f"http://127.0.0.1:{PORT}/ready", timeout=5).status == 200)
    except (urllib.error.URLError, OSError):
        return False

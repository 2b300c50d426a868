"""`python -m control_plane --replicas 3`: a fleet on this machine. All flags of `python -m inference_server` may follow."""

import argparse
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

import ray
from ray import serve
from ray.serve.config import HTTPOptions

from control_plane.deployment import fleet
from control_plane.options import FleetOptions
from inference_server.config import Settings

OBJECT_STORE_BYTES = 256 * 2**20  # what passes through it are a tokenizer and large bodies


def main(argv: Sequence[str]) -> None:
    """Serve until a signal ends the process; replicas then drain."""
    parser = argparse.ArgumentParser(prog="control_plane", description=__doc__)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--num-gpus", type=float, default=0.0, help="for each replica")
    parser.add_argument("--policy", default="prefix", choices=["prefix", "least_loaded", "round_robin"])
    args, rest = parser.parse_known_args(argv)
    settings = Settings.from_cli(rest)
    try:
        options = FleetOptions(replicas=args.replicas, num_gpus=args.num_gpus, policy=args.policy)
    except ValueError as error:
        parser.error(str(error))
    ray.init(include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # in place of Ray's, which aborts
    try:
        serve.start(http_options=HTTPOptions(host=settings.host, port=settings.port))
        with suppress(KeyboardInterrupt):
            serve.run(fleet(settings, options), blocking=True)
    finally:
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])

"""Compares this server with vLLM on one GPU and the same model folder. vLLM is installed in a Python of its own.

    python scripts/bench/vllm_head_to_head.py /models/gemma-4-e2b --vllm-python /opt/vllm/bin/python --out head_to_head

Each has the whole GPU in its turn, and turns alternate, so that a card that slows down affects both. The same batches go through the
interface of each without HTTP (`offline_batch.py`), and as streams from the server of each to a client of raw sockets
(`http_load/light_client.py`; for that the folder needs a tokenizer). The client's share of a core is printed, to show that it held nobody
up. The best turn counts. Prints tokens a second and ratios, which are above 1 where this server is faster. After each level, the results so
far are written as a plot and as JSON, beside the logs of both.
"""

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from http_load.light_client import completion, stream_all
from http_over_engine import LOOK_EVERY_S
from matplotlib.figure import Figure
from offline_batch import measure
from peers_cpu import OURS, Peer, start
from tqdm import tqdm

from inference_server.engine.outbox import MERGE_ABOVE

VLLM = "vLLM"
Turn = Callable[[], list[float]]  # runs one side, and returns the tokens a second of each batch
OFFLINE = Path(__file__).with_name("offline_batch.py")


@dataclass(frozen=True, slots=True)
class Row:
    """The output tokens a second of both for one batch."""

    level: str
    label: str
    ours: float
    vllm: float

    @property
    def ratio(self) -> float:
        return self.ours / self.vllm

    def __str__(self) -> str:
        return f"{self.level:6} {self.label:32} {self.ours:10.1f} {self.vllm:10.1f} {self.ratio:7.2f}"


def offline(python: str, engine: str, job: dict[str, Any], log: Path) -> list[float]:
    """Tokens a second of each batch through the engine's own interface. Raises RuntimeError, with the last line of the log, if it fails."""
    with log.open("a") as said:
        done = subprocess.run(
            [python, str(OFFLINE), engine], input=json.dumps(job), stdout=subprocess.PIPE, stderr=said, text=True, check=False
        )
    if done.returncode:
        raise RuntimeError(f"{engine}: {log.read_text(errors='replace').strip().rpartition(chr(10))[2][:300]}")
    rates: list[float] = json.loads(done.stdout)
    return rates


def over_http(peer: Peer, job: dict[str, Any], startup_s: float, log: Path) -> list[float]:
    """Tokens a second of each batch over HTTP. Starts and stops the server. Raises RuntimeError if the server or a request fails."""
    shares: dict[int, float] = {}
    with ExitStack() as stack:
        url = start(peer, peer.command, {}, startup_s, stack, log).url

        def generate(prompts: list[list[int]], max_tokens: int) -> int:
            begin, worked = time.perf_counter(), time.process_time()
            requests = [completion(url, ids, max_tokens) for ids in prompts]
            streams = stream_all(url, requests, every_s=LOOK_EVERY_S if len(prompts) > MERGE_ABOVE else 0.0)
            shares[len(prompts)] = (time.process_time() - worked) / (time.perf_counter() - begin)
            return sum(stream.num_tokens for stream in streams)

        rates = measure(job, generate)
    taken = ", ".join(f"{share:.0%} for {rows}" for rows, share in sorted(shares.items()))
    tqdm.write(f"the client of {peer.name} took of a core: {taken} rows", file=sys.stderr)
    return rates


def alternate(level: str, labels: Sequence[str], turns: int, run_ours: Turn, run_vllm: Turn) -> list[Row]:
    """Let both sides run in turn, `turns` times each. Returns the best of each."""
    mine, theirs = [0.0] * len(labels), [0.0] * len(labels)
    for _ in tqdm(range(turns), desc=level, unit="turn"):
        mine = list(map(max, mine, run_ours()))
        theirs = list(map(max, theirs, run_vllm()))
    return [Row(level, *figures) for figures in zip(labels, mine, theirs, strict=True)]


def engine_turns(args: argparse.Namespace, job: dict[str, Any]) -> tuple[Turn, Turn]:
    ours, vllm = args.out.with_suffix(".engine-ours.log"), args.out.with_suffix(".engine-vllm.log")
    return partial(offline, sys.executable, "ours", job, ours), partial(offline, args.vllm_python, "vllm", job, vllm)


def http_turns(args: argparse.Namespace, job: dict[str, Any]) -> tuple[Turn, Turn]:
    rows, tokens = str(job["max_batch_size"]), str(args.max_batched_tokens)
    common = ("--port", "{port}", "--load-format", args.load_format, "--max-model-len", str(args.max_model_len))
    ours = (sys.executable, "-m", "inference_server", "--model-name", str(args.folder), *common, "--log-level", "warning")
    ours_limits = ("--max-batch-size", rows, "--max-queue-size", rows, "--max-batched-tokens", tokens)
    vllm = (args.vllm_python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(args.folder), *common)
    vllm_limits = ("--max-num-seqs", rows, "--max-num-batched-tokens", tokens)
    return (
        partial(over_http, Peer(OURS, (*ours, *ours_limits), "/ready"), job, args.startup_s, args.out.with_suffix(".http-ours.log")),
        partial(over_http, Peer(VLLM, (*vllm, *vllm_limits, *args.vllm_args)), job, args.startup_s, args.out.with_suffix(".http-vllm.log")),
    )


LEVELS = {"engine": engine_turns, "http": http_turns}


def what_to_do(args: argparse.Namespace) -> dict[str, Any]:
    config = json.loads((args.folder / "config.json").read_text())
    batches = [tuple(map(int, batch.split("x"))) for batch in args.batches]
    return {
        "folder": str(args.folder),
        "load_format": args.load_format,
        "vocab_size": config.get("vocab_size") or config["text_config"]["vocab_size"],
        "max_model_len": args.max_model_len,
        "max_batched_tokens": args.max_batched_tokens,
        "max_batch_size": max(rows for rows, _, _ in batches),
        "batches": batches,
        "rounds": args.rounds,
    }


def draw(rows: Sequence[Row], title: str, path: Path) -> None:
    figure = Figure(figsize=(10, 1 + 0.45 * len(rows)), layout="constrained")
    axes = figure.subplots()
    places = range(len(rows))
    axes.barh(places, [row.ratio for row in rows], color=["tab:green" if row.ratio >= 1 else "tab:red" for row in rows])
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(places, [f"{row.level}: {row.label}" for row in rows])
    for place, row in zip(places, rows, strict=True):
        axes.annotate(f" {row.ratio:.2f} ({row.ours:,.0f} / {row.vllm:,.0f} tok/s)", (row.ratio, place), va="center", fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.35)
    axes.set(title=title, xlabel="tokens a second over vLLM's")
    figure.savefig(path, dpi=130)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--vllm-python", required=True, help="the Python in which vLLM is installed")
    parser.add_argument("--vllm-args", type=shlex.split, default="--no-enable-prefix-caching", help="flags of vLLM's server, as one word")
    parser.add_argument("--levels", nargs="+", choices=LEVELS, default=list(LEVELS))
    parser.add_argument("--load-format", default="auto", help="dummy for random weights in both")
    parser.add_argument("--max-model-len", type=int, default=16384)
    parser.add_argument("--batches", nargs="+", default=["1x128x257", "8x128x257", "32x128x257", "256x128x257"], metavar="ROWSxINxOUT")
    parser.add_argument("--max-batched-tokens", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=2, help="rounds in a turn, after one that warms up")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--startup-s", type=float, default=900)
    parser.add_argument("--out", type=Path, default=Path("head_to_head"), help="path of all files, without suffix")
    return parser.parse_args()


def main() -> None:
    args = parse()
    job, rows = what_to_do(args), list[Row]()
    labels = [f"{n} rows, {num_in} in, {num_out} out" for n, num_in, num_out in job["batches"]]
    print(f"{'level':6} {'tokens/s':32} {'ours':>10} {VLLM:>10} {'ratio':>7}")
    for level in args.levels:
        of_level = alternate(level, labels, args.turns, *LEVELS[level](args, job))
        print(*of_level, sep="\n", flush=True)
        rows += of_level
        draw(rows, f"{args.folder.name}, {args.load_format} weights", args.out.with_suffix(".png"))
        args.out.with_suffix(".json").write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()

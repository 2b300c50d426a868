"""This server beside vLLM on one GPU, with the same model folder, where vLLM is installed in a Python of its own.

    python scripts/bench/vllm_head_to_head.py /models/gemma-4-e2b --vllm-python /opt/vllm/bin/python --out head_to_head

Each has the whole GPU in its turn, and turns alternate, so that a card that slows down meets both. Two levels: `engine`, batches through
each one's interface without HTTP (`offline_batch.py`), and `http`, N clients that each stream a completion, read by the same client
(`peers_cpu.py`; the folder needs a tokenizer). The best turn counts. Prints tokens a second and ratios, above 1 where this server is
faster, and writes them as a plot and as JSON.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from peers_cpu import OURS, Peer, measure, start
from tqdm import tqdm

VLLM = "vLLM"
Turn = Callable[[], list[float]]  # runs one side; tokens a second of each contest
OFFLINE = Path(__file__).with_name("offline_batch.py")


@dataclass(frozen=True, slots=True)
class Row:
    """Output tokens a second of both."""

    level: str
    label: str
    ours: float
    vllm: float

    @property
    def ratio(self) -> float:
        return self.ours / self.vllm

    def __str__(self) -> str:
        return f"{self.level:6} {self.label:32} {self.ours:10.1f} {self.vllm:10.1f} {self.ratio:7.2f}"


def offline(python: str, engine: str, job: dict[str, Any]) -> list[float]:
    """Tokens a second of each batch. Raises RuntimeError with the last line of what the engine said."""
    done = subprocess.run([python, str(OFFLINE), engine], input=json.dumps(job), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{engine}: {done.stderr.strip().rpartition(chr(10))[2][:300]}")
    rates: list[float] = json.loads(done.stdout.strip().rpartition("\n")[2])
    return rates


def over_http(peer: Peer, args: argparse.Namespace) -> list[float]:
    """Tokens a second by number of clients, of a server that is started for it and stopped. Raises RuntimeError."""
    with ExitStack() as stack:
        server = start(peer, peer.command, {}, args.startup_s, stack)
        failed = measure([server], args.clients, args.max_tokens, args.rounds)
    if failed:
        raise RuntimeError(f"{peer.name}: {failed[peer.name]}")
    return [server.best[n] for n in args.clients]


def alternate(level: str, labels: Sequence[str], turns: int, run_ours: Turn, run_vllm: Turn) -> list[Row]:
    """The best of each side's turns, which take turns."""
    mine, theirs = [0.0] * len(labels), [0.0] * len(labels)
    for _ in tqdm(range(turns), desc=level, unit="turn"):
        mine = list(map(max, mine, run_ours()))
        theirs = list(map(max, theirs, run_vllm()))
    return [Row(level, *figures) for figures in zip(labels, mine, theirs, strict=True)]


def engine_rows(args: argparse.Namespace) -> list[Row]:
    config = json.loads((args.folder / "config.json").read_text())
    batches = [tuple(map(int, batch.split("x"))) for batch in args.batches]
    job = {
        "folder": str(args.folder),
        "load_format": args.load_format,
        "vocab_size": config.get("vocab_size") or config["text_config"]["vocab_size"],
        "max_model_len": args.max_model_len,
        "max_batched_tokens": args.max_batched_tokens,
        "max_batch_size": max(rows for rows, _, _ in batches),
        "batches": batches,
        "rounds": args.rounds,
    }
    labels = [f"{rows} rows, {num_in} in, {num_out} out" for rows, num_in, num_out in batches]
    ours, vllm = partial(offline, sys.executable, "ours", job), partial(offline, args.vllm_python, "vllm", job)
    return alternate("engine", labels, args.turns, ours, vllm)


def http_rows(args: argparse.Namespace) -> list[Row]:
    rows, tokens = str(max(args.clients)), str(args.max_batched_tokens)
    common = ("--port", "{port}", "--load-format", args.load_format, "--max-model-len", str(args.max_model_len))
    ours = (sys.executable, "-m", "inference_server", "--model-name", str(args.folder), "--max-batch-size", rows, *common)
    vllm = (args.vllm_python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(args.folder), "--max-num-seqs", rows, *common)
    peers = (
        Peer(OURS, (*ours, "--max-batched-tokens", tokens, "--log-level", "warning"), "/ready"),
        Peer(VLLM, (*vllm, "--max-num-batched-tokens", tokens, *args.vllm_args)),
    )
    labels = [f"{n} clients, {args.max_tokens} out" for n in args.clients]
    return alternate("http", labels, args.turns, *(partial(over_http, peer, args) for peer in peers))


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


LEVELS = {"engine": engine_rows, "http": http_rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--vllm-python", required=True, help="the Python in which vLLM is installed")
    parser.add_argument("--vllm-args", nargs="*", default=["--no-enable-prefix-caching"], help="flags of vLLM's server besides")
    parser.add_argument("--levels", nargs="+", choices=LEVELS, default=list(LEVELS))
    parser.add_argument("--load-format", default="auto", help="dummy: random weights in both")
    parser.add_argument("--max-model-len", type=int, default=16384)
    parser.add_argument("--batches", nargs="+", default=["1x128x257", "8x128x257", "32x128x257", "256x128x257"], metavar="ROWSxINxOUT")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--max-batched-tokens", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=2, help="in a turn, after one that warms up")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--startup-s", type=float, default=900)
    parser.add_argument("--out", type=Path, default=Path("head_to_head"), help="path of both files, without suffix")
    args = parser.parse_args()
    rows = [row for level in args.levels for row in LEVELS[level](args)]
    print(f"{'level':6} {'tokens/s':32} {'ours':>10} {VLLM:>10} {'ratio':>7}", *rows, sep="\n")
    draw(rows, f"{args.folder.name}, {args.load_format} weights", args.out.with_suffix(".png"))
    args.out.with_suffix(".json").write_text(
        json.dumps([{"level": r.level, "label": r.label, "ours": r.ours, "vllm": r.vllm} for r in rows], indent=1) + "\n"
    )


if __name__ == "__main__":
    main()

"""Put load on a server that speaks the OpenAI API, and find how much it carries.

    python scripts/bench/load.py open --rate 2 --workload chat         # Poisson arrivals, whatever the server does
    python scripts/bench/load.py closed --clients 8                    # a fixed number of clients, one request each at a time
    python scripts/bench/load.py sweep --rates 0.5 1 2 4 --out stick   # throughput against latency: stick.png, stick.html
    python scripts/bench/load.py capacity                              # the highest rate within the bars

Prints exact percentiles, refusals and other failures, and what the client itself cost. `--records` keeps each request as a line of JSON.
"""

import argparse
import asyncio
import json
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from http_load.capacity import Bars, highest_rate
from http_load.client import LoadClient, model_name
from http_load.openai_stream import USAGE
from http_load.run import Record, Run, Target, closed_loop, open_loop
from http_load.stats import Summary, summarise
from http_load.workloads import MIXES
from tqdm import tqdm

BAR = "{desc} {bar} {n:.0f}/{total:.0f} s {postfix}"


class Bench:
    """Runs against one server, one after the other, each with a progress bar. records: where requests are written as lines of JSON."""

    def __init__(self, args: argparse.Namespace, records: TextIO | None) -> None:
        self._args = args
        self._records = records
        self._client = LoadClient(args.url, args.api_key, args.timeout_s)
        self._body: dict[str, Any] = {"model": args.model or model_name(args.url, args.api_key), "temperature": 0, **USAGE}
        self._runs = 0
        if not args.stop_at_eos:
            self._body["ignore_eos"] = True

    def open(self, rate: float) -> Summary:
        return asyncio.run(self._summary(f"{rate:.3g}/s", partial(open_loop, rate=rate)))

    def closed(self, clients: int) -> Summary:
        return asyncio.run(self._summary(f"{clients} clients", partial(closed_loop, clients=clients)))

    async def _summary(self, label: str, loop: Any) -> Summary:
        args, self._runs = self._args, self._runs + 1
        with tqdm(
            total=args.warmup + args.duration, desc=label, unit="s", bar_format="{desc} {bar} {n:.0f}/{total:.0f} s {postfix}"
        ) as bar:
            done = [0, 0]

            def on_record(record: Record) -> None:
                done[record.error is not None] += 1

            target = Target(self._client, self._body, on_record)
            seed = f"{args.seed} {self._runs}"  # no run repeats the prompts of another, since a prefix cache would hold them
            run = asyncio.create_task(loop(target, MIXES[args.workload], warmup_s=args.warmup, duration_s=args.duration, seed=seed))
            ticks = asyncio.create_task(_tick(bar, done))
            try:
                result: Run = await run
            finally:
                ticks.cancel()
        self._keep(label, result)
        return summarise(result)

    def _keep(self, label: str, run: Run) -> None:
        if self._records is not None:
            for record in run.records:
                self._records.write(json.dumps({"run": label, "warmup": record.due < run.begin, **record.json()}) + "\n")
            self._records.flush()


async def _tick(bar: Any, done: Sequence[int]) -> None:
    """Move the bar with the time. After the last arrival it stays full until the last answers end."""
    while True:
        bar.set_postfix_str(f"{done[0]} answered, {done[1]} refused or failed", refresh=False)
        bar.update(min(0.5, bar.total - bar.n))
        bar.refresh()
        await asyncio.sleep(0.5)


def sweep(bench: Bench, args: argparse.Namespace, bars: Bars) -> None:
    """Do one run for each rate, and plot them all."""
    from http_load.plot import draw

    points = []
    for rate in args.rates:
        points.append(bench.open(rate))
        print(points[-1], flush=True)
    draw(points, args.title or f"{args.workload}, {args.duration:g} s a rate", bars, args.out)
    print(f"{args.out.with_suffix('.png')} {args.out.with_suffix('.html')}")


def capacity(bench: Bench, args: argparse.Namespace, bars: Bars) -> None:
    served = {}

    def keeps(rate: float) -> bool:
        broken = bars.broken_by(summary := bench.open(rate))
        served[rate] = summary.served_rate
        print(f"{rate:.3g}/s: {'; '.join(broken) or 'kept'}\n{summary}", flush=True)
        return not broken

    rate = highest_rate(keeps, args.rate, args.tolerance)
    found = f"{rate:.3g} requests/s of {args.workload} due, {served.get(rate, 0):.3g}/s served"
    print(f"capacity: {found}, p99 ITL under {args.itl_ms:g} ms and p99 TTFT under {args.ttft_ms:g} ms")


def parse() -> argparse.Namespace:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--url", default="http://127.0.0.1:8000", help="the server's address, without /v1")
    common.add_argument("--model", help="default: the first that the server names")
    common.add_argument("--api-key", default="none")
    common.add_argument("--workload", choices=MIXES, default="mixed")
    common.add_argument("--duration", type=float, default=60, help="seconds in which requests count")
    common.add_argument("--warmup", type=float, default=10, help="seconds before that, in which they do not count")
    common.add_argument("--seed", type=int, default=0, help="the same seed sends the same prompts, which a server may have cached")
    common.add_argument("--timeout-s", type=float, default=600)
    common.add_argument("--stop-at-eos", action="store_true", help="do not send ignore_eos; the model then decides how long answers are")
    common.add_argument("--records", type=Path, help="write every request as a line of JSON")
    common.add_argument("--itl-ms", type=float, default=50, help="bar for the 99th percentile")
    common.add_argument("--ttft-ms", type=float, default=2000, help="bar for the 99th percentile")
    common.add_argument("--refused", type=float, default=0, help="bar for the share of refused requests")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("open", parents=[common]).add_argument("--rate", type=float, required=True, help="requests a second")
    commands.add_parser("closed", parents=[common]).add_argument("--clients", type=int, required=True)
    swept = commands.add_parser("sweep", parents=[common])
    swept.add_argument("--rates", type=float, nargs="+", required=True)
    swept.add_argument("--out", type=Path, default=Path("hockey_stick"), help="path of both files, without suffix")
    swept.add_argument("--title")
    found = commands.add_parser("capacity", parents=[common])
    found.add_argument("--rate", type=float, default=1, help="where the search begins")
    found.add_argument("--tolerance", type=float, default=0.05)
    return parser.parse_args()


def main() -> None:
    args = parse()
    bars = Bars(args.itl_ms / 1e3, args.ttft_ms / 1e3, args.refused)
    with args.records.open("w", encoding="utf-8") if args.records else nullcontext() as records:
        try:
            bench = Bench(args, records)
        except RuntimeError as error:
            raise SystemExit(str(error)) from None
        match args.command:
            case "open":
                print(bench.open(args.rate))
            case "closed":
                print(bench.closed(args.clients))
            case "sweep":
                sweep(bench, args, bars)
            case "capacity":
                capacity(bench, args, bars)


if __name__ == "__main__":
    main()

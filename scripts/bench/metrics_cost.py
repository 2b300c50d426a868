"""What the sinks of the engine's records cost in a step: processor time of the tally and of every sink, by the number of rows.

Rows that decode together have the same time since their last token, and the engine stores equal times once, with a count. `distinct` is
how many different times a step has: one in a batch that decodes, a few after a preemption.

    PYTHONPATH=src python scripts/bench/metrics_cost.py
"""

import argparse
import time
from collections import Counter
from collections.abc import Sequence

from inference_server.core.plan import StepKind
from inference_server.core.records import RecordSink, StepRecord
from inference_server.observability.prometheus import PrometheusSink
from inference_server.observability.request_log import RequestLog
from inference_server.observability.tracker import MetricsTracker


def microseconds_a_step(num_rows: int, num_distinct: int, num_steps: int) -> float:
    """Processor time of this thread in a step, as the least of five runs."""
    sinks: tuple[RecordSink, ...] = (MetricsTracker(time.monotonic), PrometheusSink("model"), RequestLog())
    gaps = [0.01 + 0.001 * (row % num_distinct) for row in range(num_rows)]
    return min(_run(sinks, gaps, num_steps) for _ in range(5))


def _run(sinks: Sequence[RecordSink], gaps: list[float], num_steps: int) -> float:
    num_rows = len(gaps)
    started = time.thread_time()
    for step in range(num_steps):
        end_time = 1000 + 0.01 * step
        record = StepRecord(step, StepKind.DECODE, end_time - 0.01, end_time, num_rows, num_rows, num_rows, 0, Counter(gaps))
        for sink in sinks:
            sink.on_step(record)
    return 1e6 * (time.thread_time() - started) / num_steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    for num_rows in (1, 64, 256):
        for num_distinct in (1, 4):
            cost = microseconds_a_step(num_rows, num_distinct, options.steps)
            print(f"{num_rows:4d} rows, {num_distinct} distinct: {cost:6.1f} us a step")


if __name__ == "__main__":
    main()

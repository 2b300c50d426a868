"""Where the time of a decode step goes, by the profiler's trace of the device: busy time by kernel, gaps within steps and between them.

A step begins with the kernel that places its tokens. Launches that overlap count twice in the busy time, and tracing slows short
kernels down, so read only shares here, and take times from `engine.py` without `--profile`.
"""

from collections import defaultdict
from itertools import pairwise
from statistics import median
from typing import Any

from torch.profiler import ProfilerActivity, profile

from inference_server.core.request import ScheduledRequest
from inference_server.engine.engine import Engine

_FIRST_KERNEL = "_place_kernel"
_SHOWN = 25

Span = tuple[float, float, str]  # begin and end in µs, name


def print_profile(name: str, engine: Engine, requests: list[ScheduledRequest], warm_steps: int, traced_steps: int) -> None:
    """Trace `traced_steps` steps and print where their time goes. The `warm_steps` before bring the requests to the state of interest."""
    for request in requests:
        engine.add(request)
    for _ in range(warm_steps):
        engine.step()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as trace:
        for _ in range(traced_steps):
            engine.step()
    while engine.has_work:
        engine.step()
    spans = sorted(_device_spans(trace))
    starts = [i for i, (_, _, kernel) in enumerate(spans) if kernel.startswith(_FIRST_KERNEL)]
    steps = [spans[a:b] for a, b in pairwise(starts)][1:]
    if not steps:
        print(f"{name}: the trace shows no steps ({len(spans)} kernels)")
        return
    busy = median(sum(end - begin for begin, end, _ in step) for step in steps)
    within = median(sum(max(0.0, b[0] - a[1]) for a, b in pairwise(step)) for step in steps)
    between = median(max(0.0, b[0][0] - a[-1][1]) for a, b in pairwise(steps))
    period = median(b[0][0] - a[0][0] for a, b in pairwise(steps))
    print(f"{name}, traced: a step every {period:.0f} µs, {len(steps[0])} kernels; busy {busy:.0f} µs, gaps within {within:.0f} µs,")
    print(f"  between the last kernel and the next step's first {between:.1f} µs ({between / period:.1%})")
    by_kernel: dict[str, list[float]] = defaultdict(list)
    for begin, end, kernel in (span for step in steps for span in step):
        by_kernel[kernel].append(end - begin)
    ranked = sorted(by_kernel.items(), key=lambda item: -sum(item[1]))
    for kernel, times in ranked[:_SHOWN]:
        print(f"  {sum(times) / len(steps):8.1f} µs  {len(times) / len(steps):5.1f} x  {kernel[:100]}")
    rest = sum(sum(times) for _, times in ranked[_SHOWN:]) / len(steps)
    print(f"  {rest:8.1f} µs  in {max(0, len(ranked) - _SHOWN)} other kernels", flush=True)


def _device_spans(trace: Any) -> list[Span]:
    """The spans of kernels, in order. Copies between host and device do not count: they frame the steps, and are not their work."""
    events = trace.profiler.kineto_results.events()
    return [
        (event.start_ns() / 1e3, (event.start_ns() + event.duration_ns()) / 1e3, event.name())
        for event in events
        if str(event.device_type()).endswith("CUDA") and not event.name().startswith(("Memcpy", "Memset"))
    ]

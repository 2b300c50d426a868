"""Measure how much of what chats send again is still in the prefix cache, by the size of the pool. No forward runs.

As many chats as --sessions take turns; each prompt is all of its chat so far. The layer groups are those of Gemma 3 270M: three full
layers, and fifteen with a window of 512. A pool of factor 1 has the bytes of the full layers' KV of all chats at their end, and of
one window for each chat.
"""

import argparse
import random
import time

from inference_server.core.kv_layout import KVLayout, LayerGroup
from inference_server.core.options import CacheOptions, SchedulerOptions
from inference_server.core.plan import StepResult
from inference_server.core.request import ScheduledRequest
from inference_server.core.sampling_params import SamplingParams
from inference_server.kv_cache.factory import create_cache
from inference_server.scheduler.continuous_batching import ContinuousBatchScheduler

FULL, WINDOW = LayerGroup((0, 1, 2), 1, 256, 2), LayerGroup(tuple(range(3, 18)), 1, 256, 2, window=512)
BLOCK_SIZE = 16


MAX_BATCH, CHUNK = 4, 512


def run_dry(scheduler: ContinuousBatchScheduler, rng: random.Random, most_used_bytes: int) -> None:
    while (plan := scheduler.schedule(time.monotonic())) is not None:
        assert scheduler.cache_stats().used_bytes <= most_used_bytes, "blocks that left the window are still in use"
        scheduler.update(plan, StepResult(plan.step_id, [rng.randrange(1 << 18) for _ in plan.requests]), {})


def round_robin(
    factor: float, policy: str, num_sessions: int, num_turns: int, turn_tokens: int, output_tokens: int, keeps_answers: bool
) -> str:
    length = num_turns * turn_tokens + output_tokens * (num_turns if keeps_answers else 1)
    session_bytes = length * FULL.token_bytes + min(length, 512) * WINDOW.token_bytes
    probe = KVLayout.from_bytes((FULL, WINDOW), BLOCK_SIZE, int(factor * num_sessions * session_bytes))
    cache = create_cache(KVLayout((FULL, WINDOW), BLOCK_SIZE, probe.num_slabs + 1), CacheOptions(eviction_policy=policy))
    scheduler = ContinuousBatchScheduler(cache, SchedulerOptions(max_batch_size=MAX_BATCH, prefill_chunk_size=CHUNK))
    # In the window layers, a row needs the blocks that its chunk reads, the first and the last of them perhaps in part.
    row_bytes = length * FULL.token_bytes + min(length, 512 + CHUNK) * WINDOW.token_bytes
    most_used_bytes = MAX_BATCH * (row_bytes + 2 * BLOCK_SIZE * (FULL.token_bytes + WINDOW.token_bytes))
    rng, resent = random.Random(0), 0
    chats: list[list[int]] = [[] for _ in range(num_sessions)]
    for turn in range(num_turns):
        for session, chat in enumerate(chats):
            prompt = chat + [rng.randrange(1 << 18) for _ in range(turn_tokens)]
            request = ScheduledRequest(f"{turn}/{session}", prompt, SamplingParams(max_tokens=output_tokens), arrival_time=float(turn))
            resent += len(chat)
            scheduler.add(request)
            chats[session] = request.token_ids if keeps_answers else prompt.copy()
        run_dry(scheduler, rng, most_used_bytes)
    stats = scheduler.cache_stats()
    rate = stats.hit_tokens / resent
    return f"{factor:.1f}x, {policy:>8}: {rate:6.1%} of {resent} re-sent tokens were hits, {stats.evicted_blocks} blocks evicted"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--factors", type=float, nargs="+", default=[2.0, 1.2, 0.8])
    parser.add_argument("--policies", nargs="+", default=["lru", "sink_lru"])
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--turn-tokens", type=int, default=400)
    parser.add_argument("--output-tokens", type=int, default=100)
    parser.add_argument(
        "--drop-answers", action="store_true", help="let the next prompt repeat only the prompts, as if answers were thoughts"
    )
    args = parser.parse_args()
    for factor in args.factors:
        for policy in args.policies:
            print(round_robin(factor, policy, args.sessions, args.turns, args.turn_tokens, args.output_tokens, not args.drop_answers))


if __name__ == "__main__":
    main()

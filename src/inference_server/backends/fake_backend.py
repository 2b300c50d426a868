"""`FakeBackend`: a model without weights or torch whose tokens prove that the book-keeping is right.

A token's "KV" is a number made from its id, its position and two earlier numbers, read back through the block table of each
group as attention would; the next token is a hash of all that the last position can read. So a wrong block, a block that left
the window too early, a missed copy or a wrong id from the step before all change the text. `expected_tokens` is the same model
run straight, without blocks. Sampling parameters are ignored, masks are not.
"""

import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from zlib import crc32

from inference_server.core.kv_layout import KVLayout, LayerGroup
from inference_server.core.model_spec import ModelSpec
from inference_server.core.plan import StepPlan, StepResult, TokenMasks
from inference_server.core.request import ScheduledRequest

PRINTABLE_ASCII = range(32, 127)
FULL_AND_WINDOW = (LayerGroup((0,), 1, 1, 2), LayerGroup((1, 2), 1, 1, 2, window=32))

_POISON = -1
_PRIME = 2**61 - 1


@dataclass(frozen=True, slots=True)
class FakeStep:
    """A launched step. The lists run in parallel with the plan's rows. draws: what picks each row's token, -1 where it does not sample."""

    step_id: int
    slots: tuple[int, ...]
    draws: list[int]
    token_ids: list[int] = field(default_factory=list)


class FakeBackend:
    """An `InferenceBackend[FakeStep]`.

    alphabet: the ids it can produce; the default is text for the byte tokenizer and never ends by itself.
    step_time_s: seconds that `collect` sleeps, by `sleep`.
    """

    def __init__(
        self,
        groups: tuple[LayerGroup, ...] = FULL_AND_WINDOW,
        *,
        vocab_size: int = 258,
        alphabet: Sequence[int] = PRINTABLE_ASCII,
        max_model_len: int = 4096,
        free_bytes: int = 1 << 20,
        supports_mixed: bool = True,
        supports_overlap: bool = False,
        step_time_s: float = 0.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._spec = ModelSpec(
            architecture="fake",
            vocab_size=vocab_size,
            max_model_len=max_model_len,
            groups=groups,
            device="cpu",
            dtype="int64",
            num_parameters=0,
            free_bytes=free_bytes,
            supports_mixed=supports_mixed,
            supports_overlap=supports_overlap,
        )
        self._alphabet = alphabet
        self._step_time_s = step_time_s
        self._sleep = sleep
        self._token_by_slot: dict[int, int] = {}
        self._place_by_slot: dict[int, tuple[str, int]] = {}  # whose token that is, and its position
        self._keys: list[array[int]] = []  # one a group, [num_blocks * block_size]
        self._slab_group: list[int] = []

    def load(self) -> ModelSpec:
        return self._spec

    def allocate(self, layout: KVLayout) -> None:
        self._layout = layout
        self._blocks_per_slab = [layout.blocks_per_slab(g) for g in range(len(layout.groups))]
        self._keys = [array("q", [_POISON]) * (layout.num_blocks(g) * layout.block_size) for g in range(len(layout.groups))]
        self._slab_group = [-1] * layout.num_slabs

    def launch(self, plan: StepPlan) -> FakeStep:
        """Computes everything at once. Raises ValueError when the plan breaks its contract."""
        self._check(plan)
        for group, src, dst in plan.block_copies:
            self._copy_block(group, src, dst)
        draws = []
        for request, start, count, samples in zip(plan.requests, plan.starts, plan.num_new_tokens, plan.samples, strict=True):
            for position in range(start, start + count):
                self._write(request, position)
            draws.append(self._draw(request, start + count) if samples else -1)
            if samples:
                self._place_by_slot[request.slot] = request.request_id, start + count
        return FakeStep(plan.step_id, tuple(request.slot for request in plan.requests), draws)

    def sample(self, step: FakeStep, masks: TokenMasks | None = None) -> None:
        masks = masks or {}
        step.token_ids[:] = [self._choose(draw, masks.get(row)) if draw >= 0 else -1 for row, draw in enumerate(step.draws)]
        self._token_by_slot.update((slot, token) for slot, token in zip(step.slots, step.token_ids, strict=True) if token >= 0)

    def collect(self, step: FakeStep) -> StepResult:
        if self._step_time_s:
            self._sleep(self._step_time_s)
        return StepResult(step.step_id, step.token_ids)

    def close(self) -> None:
        self._keys.clear()

    def poison(self, group: int, blocks: Iterable[int]) -> None:
        """Forget what the blocks hold, as a test does with blocks that are free."""
        size = self._layout.block_size
        blank = array("q", [_POISON]) * size
        for block in blocks:
            self._keys[group][block * size : (block + 1) * size] = blank

    def expected_tokens(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """What this model generates after the prompt."""
        return expected_tokens(prompt, num_tokens, [g.window for g in self._spec.groups], self._alphabet)

    def _check(self, plan: StepPlan) -> None:
        counts = plan.num_new_tokens
        if counts != sorted(counts, key=lambda count: count > 1):
            raise ValueError("rows of a single token must come first")
        if len({request.slot for request in plan.requests}) != len(plan) or any(request.slot < 0 for request in plan.requests):
            raise ValueError("slots are missing or shared")
        for request, start, count, samples in zip(plan.requests, plan.starts, counts, plan.samples, strict=True):
            # The token that this step samples already counts in num_tokens.
            end = request.num_tokens - 1
            reaches_end = start + count == end and request.num_inflight_tokens > 0
            if count < 1 or start + count > end or samples != reaches_end:
                raise ValueError(f"{request.request_id}: cannot compute {count} tokens from {start} of {request.num_tokens}")
        for request, start, samples in zip(plan.requests[: plan.num_decodes], plan.starts, plan.samples, strict=False):
            if not samples or self._place_by_slot.get(request.slot) != (request.request_id, start):
                raise ValueError(f"{request.request_id}: does not go on from what slot {request.slot} sampled")

    def _write(self, request: ScheduledRequest, position: int) -> None:
        known = request.token_ids
        token = known[position] if position < len(known) else self._token_by_slot[request.slot]
        size = self._layout.block_size
        for group, layers in enumerate(self._layout.groups):
            block = request.block_tables[group].block_ids[position // size]
            if position % size == 0:
                self._claim_slab(group, block)
                self.poison(group, [block])
            previous, distant = (self._read(request, group, p) for p in _read_positions(position, layers.window))
            self._keys[group][block * size + position % size] = _key(token, position, previous, distant)

    def _claim_slab(self, group: int, block: int) -> None:
        """The groups share the bytes of a slab: what one writes there destroys what another had."""
        slab = block // self._blocks_per_slab[group]
        if self._slab_group[slab] != group:
            self._slab_group[slab] = group
            for other, per_slab in enumerate(self._blocks_per_slab):
                self.poison(other, range(slab * per_slab, (slab + 1) * per_slab))

    def _copy_block(self, group: int, src: int, dst: int) -> None:
        self._claim_slab(group, dst)
        size = self._layout.block_size
        keys = self._keys[group]
        keys[dst * size : (dst + 1) * size] = keys[src * size : (src + 1) * size]

    def _read(self, request: ScheduledRequest, group: int, position: int | None) -> int:
        if position is None:
            return 0
        size = self._layout.block_size
        return self._keys[group][request.block_tables[group].block_ids[position // size] * size + position % size]

    def _choose(self, draw: int, mask: bytes | None) -> int:
        """A token of the alphabet; where a mask allows none of it, any that it allows."""
        if mask is None:
            return self._alphabet[draw % len(self._alphabet)]
        allowed = _allowed(self._alphabet, mask) or _allowed(range(self._spec.vocab_size), mask)
        return allowed[draw % len(allowed)]

    def _draw(self, request: ScheduledRequest, num_tokens: int) -> int:
        """What picks the token that follows the first `num_tokens`."""
        size = self._layout.block_size
        digests = []
        for group, layers in enumerate(self._layout.groups):
            begin = _window_start(num_tokens, layers.window)
            digest = 0
            with memoryview(self._keys[group]) as keys:
                for index in range(begin // size, -(-num_tokens // size)):
                    base = request.block_tables[group].block_ids[index] * size
                    low, high = max(begin - index * size, 0), min(num_tokens - index * size, size)
                    digest = crc32(keys[base + low : base + high], digest)
            digests.append(digest)
        return _draw(digests)


def expected_tokens(
    prompt: Sequence[int],
    num_tokens: int,
    windows: Sequence[int | None],
    alphabet: Sequence[int] = PRINTABLE_ASCII,
) -> list[int]:
    """The straight run: one sequence, no blocks. windows: that of each layer group, None for full attention."""
    tokens: list[int] = []
    keys = [array("q") for _ in windows]
    for position in range(len(prompt) + num_tokens - 1):
        token = prompt[position] if position < len(prompt) else tokens[-1]
        for window, own in zip(windows, keys, strict=True):
            previous, distant = (0 if p is None else own[p] for p in _read_positions(position, window))
            own.append(_key(token, position, previous, distant))
        if position >= len(prompt) - 1:
            digests = [crc32(own[_window_start(position + 1, window) :]) for window, own in zip(windows, keys, strict=True)]
            tokens.append(alphabet[_draw(digests) % len(alphabet)])
    return tokens


def _window_start(num_tokens: int, window: int | None) -> int:
    """First position that the last of `num_tokens` tokens attends to."""
    return 0 if window is None else max(0, num_tokens - window)


def _read_positions(position: int, window: int | None) -> tuple[int | None, int | None]:
    """The earlier positions that a token's key depends on: the one before, and the far end of what it attends to."""
    distant = position // 2 if window is None else _window_start(position + 1, window)
    return (position - 1 if position and window != 1 else None), (distant if distant < position else None)


def _key(token: int, position: int, previous: int, distant: int) -> int:
    return (token * 1_000_003 + position * 8_191 + previous * 31_337 + distant * 65_537 + 12_345) % _PRIME


def _allowed(token_ids: Sequence[int], mask: bytes) -> list[int]:
    return [token for token in token_ids if mask[token // 8] >> token % 8 & 1]


def _draw(digests: Sequence[int]) -> int:
    return crc32(array("Q", digests))

"""`PagedBackend`: the hand-written models over the paged KV arena, on CUDA, MPS or the CPU.

It owns the weights and the arena and counts the memory that steps will take. A step is: block copies, the runner's forward, the choice of
tokens, and their way back. What a row computes is decided by the plan, how it is computed by the model.
"""

import logging
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from inference_server.backends.block_mass import BlockMass
from inference_server.backends.cuda_graph_pool import GraphSizes
from inference_server.backends.device import free_bytes, select_device, step_errors, use_available_cores
from inference_server.backends.input_batch import InputBatch
from inference_server.backends.kv_tensors import KVTensors
from inference_server.backends.model_loading import OpenCheckpoint, PagedModel, load_paged_model
from inference_server.backends.model_runner import ModelRunner
from inference_server.backends.null_plan import null_plan
from inference_server.backends.staging import ReturnedIds, Returns
from inference_server.core.errors import EngineDeadError, ModelLoadError
from inference_server.core.kv_layout import KVLayout
from inference_server.core.model_spec import ModelSpec
from inference_server.core.options import ModelOptions
from inference_server.core.plan import StepPlan, StepResult, TokenMasks
from inference_server.sampling import logprobs, token_rows

_TRIAL_BLOCK_SIZE = 16
_GRAPHS_BYTES = 1 << 30  # what the driver keeps of all captured launches, at most

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class PagedStep:
    """A launched step. rows: the indices in the plan of the rows that sample; sampling: the same rows for the sampler.

    prompt_scores: of prompt tokens, by row of the plan; scores: of the sampled tokens; replayed: whether the forward was a graph's.
    """

    step_id: int
    num_rows: int
    rows: list[int]
    sampling: token_rows.SamplingRows
    prompt_scores: dict[int, list[logprobs.Scores]]
    replayed: bool
    scores: logprobs.Scores | None = None
    block_mass: torch.Tensor | None = None
    returned: ReturnedIds | None = None


class PagedBackend:
    """An `InferenceBackend` for the architectures of `models.registry`."""

    def __init__(self, options: ModelOptions, folder: Path, open_checkpoint: OpenCheckpoint, sampler: token_rows.TokenSampling) -> None:
        self._options = options
        self._folder = folder
        self._open_checkpoint = open_checkpoint
        self._sampler = sampler
        self._device = torch.device("cpu")
        self._model: PagedModel | None = None
        self._kv: KVTensors | None = None
        self._runner: ModelRunner | None = None
        self._block_mass: BlockMass | None = None
        self._sampling: token_rows.SamplingRows | None = None  # of the latest step

    def load(self) -> ModelSpec:
        self._device = device = select_device(self._options.device)
        if device.type == "cpu":
            use_available_cores()
        self._model = model = load_paged_model(self._options, self._folder, self._open_checkpoint, device)
        self._returns = Returns(self._options.max_batch_size, device)
        return ModelSpec(
            architecture=model.architecture,
            vocab_size=model.vocab_size,
            max_model_len=model.own_max_model_len,
            groups=model.groups,
            device=str(device),
            dtype=str(model.dtype).removeprefix("torch."),
            num_parameters=model.num_parameters,
            free_bytes=max(0, free_bytes(device) - self._reserved_bytes(model)),
            supports_overlap=device.type == "cuda",
            supports_prompt_logprobs=True,
        )

    def allocate(self, layout: KVLayout) -> None:
        """On CUDA this captures the graphs. Raises ModelLoadError when the arena does not fit."""
        self._prepare(layout)
        for count in (1, 2):  # so that no request waits for a library's first call or a kernel's compiler
            self._run(null_plan([count], layout))
        if self._device.type == "cuda":
            self._capture()

    def launch(self, plan: StepPlan) -> PagedStep:
        runner, kv = self._prepared()
        with step_errors(), torch.inference_mode():
            kv.copy_blocks(plan.block_copies)
            if self._block_mass is not None:
                self._block_mass.clear_reused(plan)
            num_captured = runner.num_captured_steps
            prompt_scores = runner.launch(plan)
        rows = [*range(plan.num_decodes), *(row for row in plan.prefill_rows if plan.samples[row])]
        sampling = self._sampling = token_rows.SamplingRows.of(plan, rows, self._sampling)
        return PagedStep(plan.step_id, len(plan), rows, sampling, prompt_scores, replayed=runner.num_captured_steps > num_captured)

    def sample(self, step: PagedStep, masks: TokenMasks | None = None) -> None:
        runner, _ = self._prepared()
        with step_errors(), torch.inference_mode():
            token_ids, step.scores = runner.sample(step.sampling.masked(step.rows, masks))
            step.block_mass = None if self._block_mass is None else self._block_mass.after_step()
            step.returned = self._returns.enqueue(token_ids)  # scores and mass, enqueued before, arrive no later

    def collect(self, step: PagedStep) -> StepResult:
        assert step.returned is not None, "sample comes first"
        with step_errors():
            token_ids = self._returns.wait(step.returned)
        if len(token_ids) < step.num_rows:
            by_row = dict(zip(step.rows, token_ids, strict=True))
            token_ids = [by_row.get(row, -1) for row in range(step.num_rows)]
        of_sampled = logprobs.values_by_row(step.scores, step.sampling.requests, step.rows)
        of_prompts = {row: [value for part in parts for value in part.values()] for row, parts in step.prompt_scores.items()}
        block_mass = None if step.block_mass is None else step.block_mass.tolist()
        return StepResult(step.step_id, token_ids, of_sampled, of_prompts, block_mass, step.replayed)

    @property
    def graph_hits(self) -> tuple[int, int]:
        """Forwards since `allocate` that were replayed as graphs, and all of them."""
        runner, _ = self._prepared()
        return runner.num_captured_steps, runner.num_steps

    def close(self) -> None:
        self._model = self._kv = self._runner = None
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _prepare(self, layout: KVLayout) -> None:
        model, options, device = self._model, self._options, self._device
        assert model is not None, "load comes first"
        try:
            self._kv = KVTensors(layout, model.dtype, device)
        except (RuntimeError, MemoryError) as error:
            raise ModelLoadError(f"a KV arena of {layout.arena_bytes / 2**30:.1f} GiB does not fit on {device}") from error
        max_tokens = max(options.max_batched_tokens, model.max_model_len)  # a prompt that is computed whole may exceed the budget
        mass = self._block_mass = BlockMass(layout, device) if options.block_mass else None
        batch = InputBatch(
            layout, options.max_batch_size, max_tokens, model.max_model_len, device, model.ops, None if mass is None else mass.values
        )
        self._runner = ModelRunner(model.model, self._kv, batch, self._sampler)

    def _prepared(self) -> tuple[ModelRunner, KVTensors]:
        if self._runner is None or self._kv is None:
            raise EngineDeadError("the backend has no KV arena: it was not allocated, or it was closed")
        return self._runner, self._kv

    def _capture(self) -> None:
        runner, _ = self._prepared()
        options = self._options
        sizes = GraphSizes.choose(options.max_batch_size, options.max_batched_tokens, options.cuda_graph_sizes)
        started, free = time.perf_counter(), free_bytes(self._device)
        with torch.inference_mode():
            runner.capture(sizes)
        taken = (free - free_bytes(self._device)) / 2**30
        logger.info("captured CUDA graphs in %.1f s, in %.2f GiB", time.perf_counter() - started, taken)

    def _reserved_bytes(self, model: PagedModel) -> int:
        """What steps take beside weights and KV: measured by running the largest one in the null block.

        It scores its prompts, so that every token passes through every layer. Its activations count twice, for the memory of the graphs
        and for steps outside of graphs, which do not share any.
        """
        if self._device.type != "cuda":
            return 0
        layout = KVLayout(model.groups, _TRIAL_BLOCK_SIZE, num_slabs=1)
        max_rows = self._options.max_batch_size
        self._prepare(layout)
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        row = min(self._options.max_batched_tokens // max_rows, model.max_model_len)
        self._run(null_plan([row] * max_rows, layout, prompt_logprobs=1))
        peak = torch.cuda.max_memory_allocated(self._device) - before
        self._runner = self._kv = None
        torch.cuda.empty_cache()
        return 2 * peak + _GRAPHS_BYTES

    def _run(self, plan: StepPlan) -> None:
        step = self.launch(plan)
        self.sample(step)
        self.collect(step)

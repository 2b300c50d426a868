"""`ModelRunner`: runs a plan's forward, then chooses the tokens of its sampling rows; each as a captured launch if one fits.

The forward leaves `hidden` for the choice: the model's output for the last token of each sampling row. The chosen ids stay on the device,
by slot, for the forward of the next step.
"""

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from inference_server.backends.cuda_graph_pool import CudaGraphPool, GraphSizes, fit
from inference_server.backends.input_batch import InputBatch, ModelInputs
from inference_server.backends.staged_rows import StepShape
from inference_server.backends.token_choice import TokenChoice
from inference_server.core.plan import StepPlan
from inference_server.models.attention import LayerKV
from inference_server.models.registry import Model
from inference_server.sampling.logprobs import Scores, score_prompts, scores_prompts
from inference_server.sampling.token_rows import Sampled, SamplingRows, TokenSampling

_NO_GRAPHS = GraphSizes((), ())
_FEW_SAMPLED = 16  # up to this many, the kernels for few rows make padding nearly free; and prompts mostly end one by one


class ModelRunner:
    """num_steps, num_captured_steps: forwards so far, and how many of them were replayed."""

    def __init__(self, model: Model, kv: LayerKV, batch: InputBatch, sampler: TokenSampling) -> None:
        self.num_steps = self.num_captured_steps = 0
        self._model = model
        self._kv = kv
        self._batch = batch
        self._choice = TokenChoice(model, batch, sampler)
        self._hidden: Tensor | None = None  # [max_rows, hidden_size], from the first forward on
        self._sizes = _NO_GRAPHS
        self._graphs: CudaGraphPool | None = None

    def launch(self, plan: StepPlan) -> dict[int, list[Scores]]:
        """Enqueue the forward. Returns the scores of prompt tokens by row of the plan, for the requests that want them."""
        self.num_steps += 1
        scored = scores_prompts(plan)
        shape = None if scored else self._captured_shape(plan)  # a captured forward keeps only the hidden states that are sampled from
        if shape is not None and self._graphs is not None:
            self._batch.stage(plan, shape)
            self._graphs.replay(shape)
            self.num_captured_steps += 1
            return {}
        shape = self._exact_shape(plan, drops_unsampled=self._model.drops_unsampled and not scored)
        self._batch.stage(plan, shape)
        hidden = self._forward(self._batch.inputs(shape, plan))
        return score_prompts(plan, hidden, self._model.compute_logits)

    def sample(self, rows: SamplingRows) -> Sampled:
        """Enqueue the choice of a token for each sampling row of the last launch. The ids are valid until the next call."""
        assert self._hidden is not None, "a forward comes first"
        return self._choice(self._hidden, rows, self._graphs)

    def capture(self, sizes: GraphSizes) -> None:
        """Capture forwards and choices of these sizes. Call it after a first step."""
        assert self._hidden is not None, "a forward comes first"
        graphs, max_rows = CudaGraphPool(), self._batch.max_rows
        shapes = [self._mixed_shape(tokens, num_sampled) for tokens in reversed(sizes.tokens) for num_sampled in (max_rows, 0)]
        shapes += [StepShape(rows, rows, only_singles=True) for rows in reversed(sizes.rows)]
        launches: dict[Hashable, Callable[[], None]] = {shape: self._padding_forward(shape) for shape in shapes}
        launches.update(self._choice.launches(self._hidden, sizes.rows))
        graphs.capture(launches)
        self._graphs, self._sizes = graphs, sizes

    def _captured_shape(self, plan: StepPlan) -> StepShape | None:
        num_rows, num_tokens = len(plan), plan.num_tokens
        if num_rows == num_tokens:
            rows = fit(self._sizes.rows, num_rows)
            return None if rows is None else StepShape(rows, rows, only_singles=True)
        tokens = fit(self._sizes.tokens, num_tokens)
        return None if tokens is None else self._mixed_shape(tokens, sum(plan.samples))

    def _mixed_shape(self, num_tokens: int, num_sampled: int) -> StepShape:
        """The captured shape for steps of `num_tokens` tokens, `num_sampled` of which are sampled from."""
        num_rows = min(num_tokens, self._batch.max_rows)
        if not self._model.drops_unsampled:
            return StepShape(num_tokens, num_rows, only_singles=False)
        few = min(_FEW_SAMPLED, num_rows)
        return StepShape(num_tokens, num_rows, only_singles=False, num_sampled=few if num_sampled <= few else num_rows)

    def _exact_shape(self, plan: StepPlan, drops_unsampled: bool) -> StepShape:
        only_singles = plan.num_tokens == len(plan)
        num_sampled = sum(plan.samples) if drops_unsampled and not only_singles else None
        return StepShape(plan.num_tokens, len(plan), only_singles, num_sampled)

    def _forward(self, inputs: ModelInputs) -> Tensor:
        self._batch.place(inputs)
        hidden = self._model.forward(inputs.places.input_ids, inputs.places.positions, inputs.metadata, self._kv)
        if self._hidden is None:
            self._hidden = hidden.new_zeros(self._batch.max_rows, hidden.shape[1])
        if inputs.metadata.sampled is None:
            torch.index_select(hidden, 0, inputs.sampled_tokens, out=self._hidden[: len(inputs.sampled_tokens)])
        else:
            self._hidden[: len(hidden)] = hidden
        return hidden

    def _padding_forward(self, shape: StepShape) -> Callable[[], None]:
        """A forward to capture, whose rows are all padding. It reads the batch's memory, so a replay computes what was staged before it."""

        def launch() -> None:
            if not torch.cuda.is_current_stream_capturing():
                self._batch.stage(StepPlan(-1), shape)
            self._forward(self._batch.inputs(shape))

        return launch

"""What every route needs, in one value handed over by the composition root, and how a route gets hold of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from inference_server.api.rate_limit import TokenSpending
from inference_server.core.clock import Clock
from inference_server.core.errors import ModelNotFoundError
from inference_server.core.options import ApiOptions
from inference_server.engine.async_engine import AsyncEngine
from inference_server.observability.prometheus import PrometheusSink
from inference_server.observability.request_log import RequestLog
from inference_server.observability.tracker import MetricsTracker
from inference_server.simulator.simulator import LoadSimulator
from inference_server.tokenization.base import TokenizerLike


@dataclass(frozen=True, slots=True)
class ApiContext:
    """clock: the engine's clock, in monotonic seconds. wall_clock: seconds since the epoch, only for `created` fields.

    spending: the tokens that each key has used, for the rate limit in tokens. simulator: None if it is switched off.
    """

    engine: AsyncEngine
    options: ApiOptions
    tracker: MetricsTracker
    prometheus: PrometheusSink
    clock: Clock
    wall_clock: Callable[[], float]
    started_at: int
    spending: TokenSpending
    request_log: RequestLog
    simulator: LoadSimulator | None = None

    @property
    def tokenizer(self) -> TokenizerLike:
        """The tokenizer of the loaded model."""
        model = self.engine.model
        assert model is not None, "a request was let in before the model was loaded"
        return model.tokenizer

    def check_model_name(self, name: str | None) -> None:
        """Raises ModelNotFoundError when a request names a model that is not served here."""
        if name is not None and name != self.options.served_model_name:
            raise ModelNotFoundError(f"the model '{name[:128]}' does not exist", param="model")


async def _context(request: Request) -> ApiContext:
    context: ApiContext = request.app.state.context
    return context


Context = Annotated[ApiContext, Depends(_context)]

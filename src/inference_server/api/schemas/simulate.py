"""Body of `/simulate/start`."""

from pydantic import Field, model_validator

from inference_server.api.schemas.base import RequestBody
from inference_server.simulator.options import REALISTIC, Bucket, SimulationOptions


class Weights(RequestBody):
    """Relative frequencies of the buckets of prompts."""

    short: float = Field(REALISTIC[Bucket.SHORT], ge=0, le=1000)
    medium: float = Field(REALISTIC[Bucket.MEDIUM], ge=0, le=1000)
    long: float = Field(REALISTIC[Bucket.LONG], ge=0, le=1000)

    @model_validator(mode="after")
    def _draws_something(self) -> "Weights":
        if self.short + self.medium + self.long <= 0:
            raise ValueError("at least one weight should be greater than 0")
        return self


class StartBody(RequestBody):
    """Every field may be left out. Times in seconds."""

    num_users: int = Field(8, ge=1, le=256)
    weights: Weights = Weights()
    seed: int = Field(0, ge=0, lt=2**31)
    think_time_s: float = Field(1.0, ge=0, le=60)
    max_turns: int = Field(3, ge=1, le=10)
    max_tokens: int = Field(96, ge=1, le=4096)
    duration_s: float = Field(300.0, gt=0, le=3600)

    def options(self) -> SimulationOptions:
        fields = self.model_dump(exclude={"weights"})
        return SimulationOptions(weights={Bucket(name): weight for name, weight in self.weights.model_dump().items()}, **fields)

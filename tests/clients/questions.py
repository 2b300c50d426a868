"""What the clients ask, and the model of pydantic that some want their answer as."""

from pydantic import BaseModel

QUESTION = "What is the capital of France?"
DESCRIBE = f"{QUESTION} Describe it as JSON."
ANSWER = "Paris"


class Place(BaseModel):
    """A city to put on a map."""

    city: str
    country: str
    population: int
    sights: list[str]

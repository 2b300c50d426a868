"""What the clients ask, and the model of pydantic that some want their answer as."""

from typing import Annotated

from pydantic import BaseModel, Field

SHORT, LONG = 12, 60  # tokens: for an answer with the city's name in it, and for one that fits the model below
QUESTION = "What is the capital of France?"
DESCRIBE = f"{QUESTION} Describe it as JSON."
ANSWER = "Paris"


class Place(BaseModel):
    """A city to put on a map."""

    city: Annotated[str, Field(max_length=20)]
    is_capital: bool

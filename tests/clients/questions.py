"""What the clients ask, and the pydantic model in which some want the answer."""

from typing import Annotated

from pydantic import BaseModel, Field

SHORT, LONG = 12, 60  # tokens of an answer that names the city, and of one that fits the model below
QUESTION = "What is the capital of France?"
DESCRIBE = f"{QUESTION} Describe it as JSON."
ANSWER = "Paris"


class Place(BaseModel):
    """A city to put on a map."""

    city: Annotated[str, Field(max_length=20)]
    is_capital: bool

"""The base of what events are made of."""

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """A piece of an event: like events, it ignores what a later version added."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

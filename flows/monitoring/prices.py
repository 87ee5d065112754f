"""What this machine costs: the run's prices, over which the machine's own environment goes."""

import os
from collections.abc import Mapping

from pydantic import ValidationError

from flows.config import ConfigError
from flows.settings import Cost

PREFIX = "POPULORA_COST_"


def of_machine(rule: Cost | None = None, environment: Mapping[str, str] = os.environ) -> Cost:
    """Return the run's prices with this machine's own over them. Raises ConfigError for a variable that cannot be used."""
    values = {} if rule is None else rule.model_dump()
    own = {name: text for name in Cost.model_fields if (text := environment.get(f"{PREFIX}{name.upper()}", ""))}
    try:
        return Cost.model_validate(values | own)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        raise ConfigError(f"{PREFIX}{name.upper()}={own.get(name, '')}: {first['msg']}") from error

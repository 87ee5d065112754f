"""What no page can answer."""


class BadRequest(ValueError):
    """The address requests something that does not exist, such as an unknown column."""

"""Addresses of destinations without what is secret in them: user, password and query."""

from urllib.parse import unquote


def without_secrets(address: str) -> str:
    """Return an address without its user info and its query: `mlflow:postgresql://host/db`. One without `://` is unchanged."""
    scheme, _, _, place, _ = _parts(address)
    return f"{scheme}://{place}" if "://" in address else address


def has_password(address: str) -> bool:
    """Return whether an address has a password, in its user info or its query."""
    _, _, password, _, query = _parts(address)
    return "://" in address and bool(password or "password" in query.lower())


def hidden(text: str, address: str) -> str:
    """Return a text, such as a library's error, in which `***` stands for each secret of the address."""
    _, user, password, _, query = _parts(address)
    for secret in (f"{user}:{password}" if password else user, password, query):
        for form in (secret, unquote(secret)):
            text = text.replace(form, "***") if form else text
    return text


def _parts(address: str) -> tuple[str, str, str, str, str]:
    """Return scheme, user, password, the rest and the query. A password may contain any character, so the last @ ends it."""
    scheme, _, rest = address.partition("://")
    info, _, place = rest.rpartition("@")
    user, _, password = info.partition(":")
    place, _, query = place.partition("?")
    return scheme, user, password, place, query

"""Culling: how many members of a role an evolution event replaces."""


def replaced_members(members: int, gamma: float) -> int:
    """Return how many of a role's members an event replaces: a share `gamma`, at least one, and never the last one."""
    return min(max(1, int(members * gamma)), members - 1) if gamma and members > 1 else 0

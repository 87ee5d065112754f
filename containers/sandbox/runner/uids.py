"""Which user ids programs get: ids that this user namespace maps. Rootless and remapped Docker map 65,536 of them, as a rule."""


def first_mapped(wanted: int, count: int, path: str = "/proc/self/uid_map") -> int | None:
    """The first of `count` mapped ids in a row: `wanted` where these are mapped, else another that follows from it.

    None where there are not so many in a row above the first 1,000, which belong to the system.
    """
    with open(path) as file:
        mapped = [(int(first), int(size)) for first, _, size in (line.split() for line in file)]
    if any(first <= wanted and wanted + count <= first + size for first, size in mapped):
        return wanted
    rooms = [(max(first, 1_000), first + size) for first, size in mapped]
    first, end = max(rooms, key=lambda room: room[1] - room[0], default=(0, 0))
    places = (end - first) // count
    return first + wanted // count % places * count if places > 0 else None

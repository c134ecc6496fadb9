"""Names that lead to other names: how an alias is followed to its end."""

from collections.abc import Mapping


def walk(targets: Mapping[str, str], name: str) -> list[str]:
    """Return each name on the way from one, itself first; of a circle, the first one twice."""
    way, seen = [name], set[str]()
    while name not in seen and name in targets:
        seen.add(name)
        name = targets[name]
        way.append(name)
    return way


def circles(way: list[str]) -> bool:
    """Tell whether a way leads in a circle."""
    return way[-1] in way[:-1]


def follow(targets: Mapping[str, str], name: str) -> str:
    """Return the name at the end of the way from one; of what leads nowhere, itself."""
    return walk(targets, name)[-1]

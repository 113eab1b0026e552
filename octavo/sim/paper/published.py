"""What the paper has for a row of a figure."""

from typing import NamedTuple


class Published(NamedTuple):
    """One number; the lowest and the highest of several; or the highest alone (``is_most``)."""

    low: float
    high: float | None = None
    is_most: bool = False


def published_columns(published: Published | None) -> dict[str, object]:
    """``published``: the number, or words where it is not just one; ``published_range``: from and to, to be drawn."""
    if published is None:
        return {"published": None, "published_range": None}
    low, high, is_most = published
    if high is not None:
        return {"published": f"{low:g}-{high:g}", "published_range": [low, high]}
    return {"published": f"up to {low:g}" if is_most else low, "published_range": [low, low]}

"""Draws the pictures of the docs (``make pictures``): plain SVG, no library, the same bytes on every machine."""

from pathlib import Path

HERE = Path(__file__).parent
CELL = 34
COLOURS = {"A": "#4c78a8", "B": "#f58518", "shared": "#54a24b", "free": "#e8e8e8"}

Block = tuple[str, int]
"""Colour name and how many of a block's four slots hold a token."""

POOL: dict[int, Block] = {1: ("B", 4), 2: ("shared", 4), 4: ("A", 2), 5: ("shared", 4), 7: ("B", 3)}
TABLES = {"A": [5, 2, 4], "B": [5, 2, 1, 7]}
NUM_BLOCKS = 8
SLOTS = 4


def text(x: float, y: float, words: str, size: int = 14, anchor: str = "start", weight: str = "normal") -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" '
        f'font-family="sans-serif" fill="#222">{words}</text>'
    )


def box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{colour}" stroke="#fff"/>'


def tokens_of(name: str, x: float, y: float) -> list[str]:
    """One sequence as its user sees it: its tokens in a row, coloured by the block that holds their keys and values."""
    parts = [text(x, y - 10, f"sequence {name}", weight="bold")]
    place = 0
    for block_id in TABLES[name]:
        colour, filled = POOL[block_id]
        for _ in range(filled):
            parts.append(box(x + place * 16, y, 16, 22, COLOURS[colour]))
            place += 1
    return parts


def table_of(name: str, x: float, y: float) -> list[str]:
    """The block table of one sequence: logical block -> physical block."""
    parts = [text(x, y - 10, f"block table {name}")]
    for index, block_id in enumerate(TABLES[name]):
        colour = COLOURS[POOL[block_id][0]]
        parts.append(box(x + index * CELL, y, CELL, 26, colour))
        parts.append(text(x + index * CELL + CELL / 2, y + 18, str(block_id), anchor="middle", weight="bold"))
    return parts


def line(start: tuple[float, float], end: tuple[float, float], colour: str) -> str:
    (x1, y1), (x2, y2) = start, end
    middle = (x1 + x2) / 2
    return (
        f'<path d="M {x1:g} {y1:g} C {middle:g} {y1:g}, {middle:g} {y2:g}, {x2:g} {y2:g}" '
        f'fill="none" stroke="{colour}" stroke-width="1.5"/>'
    )


def pool(x: float, y: float) -> list[str]:
    """The KV memory: every block the same size, each slot filled or free."""
    parts = [text(x, y - 10, "KV memory: one pool of equal blocks")]
    for block_id in range(NUM_BLOCKS):
        colour, filled = POOL.get(block_id, ("free", 0))
        top = y + block_id * 30
        parts.append(text(x - 8, top + 17, str(block_id), size=12, anchor="end"))
        slots = [COLOURS[colour]] * filled + [COLOURS["free"]] * (SLOTS - filled)
        parts += [box(x + slot * CELL, top, CELL, 24, slot_colour) for slot, slot_colour in enumerate(slots)]
        if colour == "shared":
            parts.append(text(x + SLOTS * CELL + 10, top + 17, "shared, ref_count 2", size=12))
        if colour == "free":
            parts.append(text(x + SLOTS * CELL + 10, top + 17, "free", size=12))
    return parts


def paged() -> str:
    """Two sequences with a common prefix, their tables, and the blocks in the pool."""
    parts: list[str] = []
    for name, top in (("A", 70), ("B", 200)):
        parts += tokens_of(name, 20, top)
        parts += table_of(name, 300, top)
        for index, block_id in enumerate(TABLES[name]):
            start = (300 + index * CELL + CELL / 2, top + (26 if name == "A" else 0))
            parts.append(line(start, (530, 40 + block_id * 30 + 12), COLOURS[POOL[block_id][0]]))
    parts += pool(550, 40)
    body = "\n  ".join(parts)
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 830 300" width="830" height="300">\n'
        f'  <rect width="830" height="300" fill="#fff"/>\n  {body}\n</svg>\n'
    )


PICTURES = {"paged.svg": paged}


def main() -> None:
    for name, draw in PICTURES.items():
        (HERE / name).write_text(draw(), encoding="utf-8")
        print(f"drew {name}")


if __name__ == "__main__":
    main()

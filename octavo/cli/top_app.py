"""``octavo top`` on a terminal: the map of the pool, the queues and rates, by textual (extra ``tui``)."""

from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widget import Widget
from textual.widgets import DataTable, Footer, Static

from octavo.cli.top_map import PINNED, Sign, blocks_per_cell, rows_of, sign_of, tally
from octavo.cli.top_reader import PoolReader, Reading
from octavo.cli.top_screen import figures
from octavo.core.errors import OctavoError

BAR_WIDTH = 24
COLUMNS = ("REQUEST", "STATE", "PROMPT", "CACHED", "OUT", "BLOCKS", "CACHED ▒  PROMPT █  TO COMPUTE ·  ANSWER ▓")
PLACES = {"prefix": "for prefix", "family": "for prompt"}


def bar(request: Sequence[Any], longest: int) -> Text:
    """What a choice is made of: cached, computed and uncomputed prompt, and answer; ``longest`` tokens are a whole
    bar."""
    prompt, cached, computed, generated = request[5:9]
    cached = min(cached, prompt)
    computed = max(cached, min(computed, prompt))
    parts = (
        (cached, "▒", "#56b4e9"),
        (computed - cached, "█", "#4ba3e3"),
        (prompt - computed, "·", "#8a8270"),
        (generated, "▓", "#cc79a7"),
    )
    text, end, drawn = Text(), 0, 0
    for tokens, character, colour in parts:
        end += tokens
        upto = round(BAR_WIDTH * end / longest)
        text.append(character * (upto - drawn), colour)
        drawn = upto
    return text


class PoolMap(Widget, can_focus=True):
    """The arrow keys move from cell to cell."""

    class Moved(Message):
        """Another block is looked at."""

        def __init__(self, block: int) -> None:
            super().__init__()
            self.block = block

    BINDINGS: ClassVar[list[BindingType]] = [
        ("left", "move(-1, 0)", "Block"),
        ("right", "move(1, 0)", ""),
        ("up", "move(0, -1)", ""),
        ("down", "move(0, 1)", ""),
    ]
    blocks = b""
    cursor = 0

    def show(self, blocks: bytes) -> None:
        self.blocks = blocks
        self.cursor = min(self.cursor, max(0, len(blocks) - 1))
        self.refresh()

    @property
    def per_cell(self) -> int:
        return blocks_per_cell(len(self.blocks), self.size.width, self.size.height)

    def render(self) -> Text:
        text, width, per_cell = Text(no_wrap=True), max(1, self.size.width), self.per_cell
        at = self.cursor // per_cell
        for number, row in enumerate(rows_of(self.blocks, width, per_cell)):
            text.append("\n" if number else "")
            for column, sign in enumerate(row):
                is_here = self.has_focus and number * width + column == at
                text.append(sign.character, f"{sign.colour} reverse" if is_here else sign.colour)
        return text

    def action_move(self, columns: int, rows: int) -> None:
        target = self.cursor + self.per_cell * (columns + rows * max(1, self.size.width))
        if 0 <= target < len(self.blocks):
            self.cursor = target
            self.refresh()
            self.post_message(self.Moved(target))


class TopApp(App[None]):
    """``interval``: seconds between two looks."""

    TITLE = "octavo top"
    CSS = """
    #figures { height: auto; padding: 0 1 }
    PoolMap { height: 2fr; min-height: 4; margin: 0 1; border: round $foreground 30% }
    PoolMap:focus { border: round $accent }
    #legend, #block { height: 1; padding: 0 1 }
    DataTable { height: 3fr; margin: 0 1 }
    #foot { height: 1 }
    """
    BINDINGS: ClassVar[list[BindingType]] = [("q", "quit", "Quit"), ("p", "pause", "Pause")]

    def __init__(self, reader: PoolReader, interval: float) -> None:
        super().__init__()
        self._reader = reader
        self._interval = interval
        self._before: Reading | None = None
        self._is_paused = False
        self._is_looking = False

    def compose(self) -> ComposeResult:
        yield Static("connecting", id="figures", markup=False)
        yield PoolMap()
        yield Static(id="legend")
        yield Static(id="block", markup=False)
        yield DataTable(cursor_type="row", zebra_stripes=True)
        with Horizontal(id="foot"):
            yield Footer()

    def on_mount(self) -> None:
        self.query_one(DataTable).add_columns(*COLUMNS)
        self.set_interval(self._interval, self._look_again)
        self._look_again()

    def action_pause(self) -> None:
        self._is_paused = not self._is_paused
        self.sub_title = "paused" if self._is_paused else ""

    def _look_again(self) -> None:
        """One at a time, however slow the server is."""
        if not self._is_paused and not self._is_looking:
            self._is_looking = True
            self._look()

    @work(thread=True, group="look")
    def _look(self) -> None:
        try:
            reading, pool = self._reader.read(), self._reader.read_pool()
        except OctavoError as error:
            self.call_from_thread(self._end_look, self.query_one("#figures", Static).update, str(error))
            return
        self.call_from_thread(self._end_look, self.show, reading, pool)

    def _end_look(self, show: Callable[..., object], *what: object) -> None:
        self._is_looking = False
        show(*what)

    @work(thread=True, exclusive=True, group="block")
    def _ask(self, block: int) -> None:
        try:
            told = _told(self._reader.read_block(block))
        except OctavoError as error:
            told = str(error)
        self.call_from_thread(self.query_one("#block", Static).update, told)

    def on_pool_map_moved(self, moved: PoolMap.Moved) -> None:
        self._ask(moved.block)

    def show(self, reading: Reading, pool: dict[str, Any] | None) -> None:
        """``pool``: as GET /debug/pool tells it; None: the key does not allow it."""
        lines = "\n".join(figures(self._before or reading, reading))
        self._before = reading
        self.query_one("#figures", Static).update(f"{reading.model} at {self._reader.url}\n{lines}")
        if pool is None:
            self.query_one("#block", Static).update(f"The pool is not shown: {reading.refusal}")
            return
        blocks = b64decode(pool["blocks"])
        self.query_one(PoolMap).show(blocks)
        self.query_one("#legend", Static).update(_legend(tally(blocks)))
        self._show_requests(pool["requests"])

    def _show_requests(self, requests: Sequence[Sequence[Any]]) -> None:
        table = self.query_one(DataTable)
        at = table.cursor_row
        table.clear()
        longest = max((request[5] + request[8] for request in requests), default=1)
        for request in requests:
            identity, choice, place = request[:3]
            numbers = (str(request[index]) for index in (5, 6, 8, 9))
            name = Text(f"…{identity[-8:]}/{choice}")  # a plain string would be read as markup
            table.add_row(name, PLACES.get(place, place), *numbers, bar(request, longest))
        table.move_cursor(row=min(at, max(0, len(requests) - 1)))


def _legend(counts: dict[Sign, int]) -> Text:
    text = Text()
    for sign, count in counts.items():
        text.append(f"{sign.character} ", sign.colour).append(f"{sign.name} {count:,}   ")
    return text


def _told(block: dict[str, Any]) -> str:
    """A line about a block, as GET /debug/pool/blocks tells it."""
    others = block["references"] - block["pins"]
    is_only_pinned = block["pins"] and not others
    state = PINNED if is_only_pinned else sign_of(2 * min(others, 3) + block["in_prefix_cache"])
    holders = ", ".join(f"…{each['request'][-8:]}/{each['choice']}" for each in block["holders"][:4])
    text = f": {block['text']!r}" if block["text"] else ""  # a terminal acts on nothing in it
    return f"block {block['id']}: {state.name}, {block['filled']} slots filled, {holders or 'nobody has it'}{text}"

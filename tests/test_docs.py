"""What the docs say of files, commands and pictures is so."""

import re
import runpy
from pathlib import Path

import pytest

from octavo.server import admin, completions, embeddings, openapi, system, tokenize
from octavo.server.chat import routes as chat
from octavo.server.messages import routes as messages
from octavo.server.responses import routes as responses

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    lost = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert lost == []


def sections_of(page: Path) -> set[str]:
    """As the anchors of links name them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_section_that_is_linked_is_there(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text(encoding="utf-8"))
    lost = [link for link in links if link[1] not in sections_of(page.parent / link[0] if link[0] else page)]
    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_command_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {"install", "serve", "test"} <= targets
    named = set(re.findall(r"`make ([a-z]+)`|^    make ([a-z]+)", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert {one or other for one, other in named} <= targets


def test_pictures_of_pages_are_small() -> None:
    for picture in (ROOT / "docs" / "pictures").glob("*.png"):
        assert picture.stat().st_size < 200_000, picture


def test_the_pictures_are_those_that_the_script_draws() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "pictures" / "draw.py"))
    assert script["PICTURES"]
    for name, draw in script["PICTURES"].items():
        assert (ROOT / "docs" / "pictures" / name).read_text(encoding="utf-8") == draw()


def test_the_readme_gives_the_two_commands_and_ci_runs_one_of_them() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "\n    make serve " in readme
    assert "\n    make test " in readme
    assert "\nmake test " in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_the_readme_names_every_route() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    families = (system, completions, chat, messages, responses, embeddings, tokenize, admin)
    paths = {route.path.split("/{")[0] for family in families for route in family.endpoints.routes}
    assert "/v1/chat/completions" in paths
    assert {path for path in paths if f"`{path}`" not in readme} == set()


def test_the_page_of_endpoints_names_every_route() -> None:
    text = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
    table = text[: text.index("## Clients")]
    paths = {re.sub(r"/\{\w+\}", "", route.path) for route in openapi.ROUTES}
    assert {path for path in paths if path not in table} == set()

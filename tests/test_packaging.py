"""The wheel, built and installed into an environment of its own, works from any folder."""

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from octavo import __version__
from tests.support.models import rand_model

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


def call(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def copy_of_sources(target: Path) -> Path:
    """What a build reads, without what earlier builds left."""
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        target.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, target)
    shutil.copytree(ROOT / "octavo", target / "octavo", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return target


def build_wheel(folder: Path, env: dict[str, str] | None = None) -> Path:
    sources = copy_of_sources(folder / "sources")
    flags = ("--no-deps", "--no-build-isolation", "--wheel-dir", folder / "dist")
    call(sys.executable, "-m", "pip", "wheel", ".", *flags, cwd=sources, env=env)
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


@dataclass(frozen=True)
class Environment:
    """A fresh virtual environment that holds Octavo's wheel and borrows every other package from this one."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.folder / "lib" / version / "site-packages"

    def run(self, code: str, cwd: Path, env: dict[str, str] | None = None) -> str:
        return call(self.python, "-I", "-c", code, cwd=cwd, env=env)


def environment_with(wheel: Path, folder: Path) -> Environment:
    venv.create(folder, with_pip=False)
    environment = Environment(folder)
    # A .pth line puts this environment's packages on the path but not what their own .pth files add (such as an
    # editable Octavo), so octavo can only come from the wheel.
    (environment.site_packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = (sys.executable, "-m", "pip", "--python", environment.python)
    call(*pip, "install", "--no-deps", "--no-index", "--ignore-installed", wheel, cwd=folder)
    return environment


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return environment_with(wheel, tmp_path_factory.mktemp("environment") / "venv")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rand_model(tmp_path_factory.mktemp("model"))


def test_the_wheel_serves_every_python_3_and_holds_what_it_should(wheel: Path) -> None:
    assert re.fullmatch(rf"octavo-{re.escape(__version__)}-py3-none-\w+\.whl", wheel.name)
    assert "none-any" not in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    files = (file for file in (ROOT / "octavo" / "data").rglob("*") if file.is_file())
    data = {file.relative_to(ROOT).as_posix() for file in files}
    assert {"octavo/kernels/_native.so", "octavo/py.typed", "octavo/cli/main.py", *data} <= set(names)
    assert f"octavo-{__version__}.dist-info/licenses/LICENSE" in names
    foreign = [name for name in names if not name.startswith(("octavo/", "octavo-")) or name.endswith((".cpp", ".h"))]
    assert foreign == []


def test_the_wheel_is_manylinux_compatible(wheel: Path, tmp_path: Path) -> None:
    shown = call(sys.executable, "-m", "auditwheel", "show", "--json", wheel, cwd=tmp_path)
    # Which manylinux it is follows from the C library of the machine that builds; none means a foreign library.
    assert json.loads(shown)["overall_tag"].startswith("manylinux_2_"), shown


def test_it_imports_from_the_wheel_and_finds_its_library(installed: Environment, tmp_path: Path) -> None:
    code = (
        "import octavo; from octavo.kernels.registry import select_ops; print(octavo.__file__, select_ops('cpu').name)"
    )
    origin, backend = installed.run(code, tmp_path).split()
    assert Path(origin).is_relative_to(installed.site_packages)
    assert backend == "cpu"


def test_the_command_runs(installed: Environment, tmp_path: Path) -> None:
    assert call(installed.folder / "bin" / "octavo", "--version", cwd=tmp_path) == f"octavo {__version__}\n"


GENERATE = """
from octavo import LLM, SamplingParams

llm = LLM(model={!r}, num_blocks=16)
(output,) = llm.generate([[5, 6, 7]], SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))
print(len(output.outputs[0].token_ids))
"""


def test_it_generates(installed: Environment, model: Path, tmp_path: Path) -> None:
    assert installed.run(GENERATE.format(str(model)), tmp_path).strip() == "5"


def test_without_a_compiler_it_installs_and_runs_on_the_reference(model: Path, tmp_path: Path) -> None:
    env = {"PATH": "/usr/bin:/bin", "CC": "/nowhere/cc", "CXX": "/nowhere/c++"}
    wheel = build_wheel(tmp_path, env)
    assert "octavo/kernels/_native.so" not in zipfile.ZipFile(wheel).namelist()
    environment = environment_with(wheel, tmp_path / "venv")
    assert environment.run(GENERATE.format(str(model)), tmp_path).strip() == "5"

"""What importing Octavo costs and drags in, in fresh processes."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import octavo
from tests.support.models import rand_model

ROOT = Path(octavo.__file__).parent
HEAVY = ("torch", "numpy", "transformers", "starlette", "zmq")


def run_fresh(code: str) -> str:
    """Standard output of ``code`` in a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT.parent)
    return done.stdout


def modules_of(*packages: str) -> list[str]:
    """Dotted names of every module in these packages of Octavo's."""
    files = [path for package in packages for path in sorted((ROOT / package).rglob("*.py"))]
    names = [".".join(("octavo", *path.relative_to(ROOT).with_suffix("").parts)) for path in files]
    return [name.removesuffix(".__init__") for name in names]


def test_import_octavo_is_quick_and_light() -> None:
    code = (
        "import sys, time; start = time.perf_counter(); import octavo; "
        f"print(time.perf_counter() - start, [name for name in {HEAVY} if name in sys.modules])"
    )
    answers = [run_fresh(code).split(" ", 1) for _ in range(3)]
    assert {heavy.strip() for _, heavy in answers} == {"[]"}
    assert min(float(seconds) for seconds, _ in answers) < 0.3


def test_async_llm_imports_no_http_server() -> None:
    heavy = ("starlette", "pydantic", "uvicorn", "torch")
    code = f"import sys, octavo; octavo.AsyncLLM; print([name for name in {heavy} if name in sys.modules])"
    assert run_fresh(code).strip() == "[]"


@pytest.mark.parametrize("package", ["core", "engine", "sim", "doctor"])
def test_bookkeeping_imports_no_tensor_library(package: str) -> None:
    modules = modules_of(package)
    assert f"octavo.{package}" in modules
    code = (
        f"import importlib, sys; [importlib.import_module(name) for name in {modules}]; "
        "print([name for name in ('torch', 'numpy') if name in sys.modules])"
    )
    assert run_fresh(code).strip() == "[]"


def test_the_library_of_grammars_is_loaded_when_the_first_one_is_asked_for() -> None:
    code = "import sys, octavo.build, octavo.server.run; print('llguidance' in sys.modules)"
    assert run_fresh(code) == "False\n"


def test_inspecting_a_model_imports_no_torch(smollm2_path: Path, tmp_path: Path) -> None:
    """A GGUF file, and a folder of safetensors."""
    for model in (smollm2_path, rand_model(tmp_path, "qwen2")):
        code = (
            "import sys; from octavo.cli.main import octavo; "
            f"octavo(['inspect', {str(model)!r}], standalone_mode=False); print('torch' in sys.modules)"
        )
        *told, has_torch = run_fresh(code).splitlines()
        assert has_torch == "False"
        assert any(line.startswith("blocks that fit") for line in told)


def test_core_imports_the_standard_library_only() -> None:
    foreign = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (ROOT / "core").rglob("*.py")
        for name in imported_names(path)
        if name.split(".")[0] not in sys.stdlib_module_names and not name.startswith("octavo.core")
    }
    assert foreign == set()


@pytest.mark.parametrize("clock", ["time", "datetime", "random", "secrets", "uuid"])
def test_core_reads_no_clock_and_no_random_source(clock: str) -> None:
    users = [path.name for path in (ROOT / "core").rglob("*.py") if clock in imported_names(path)]
    assert users == []


def imported_names(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or ".")
    return names


def test_every_export_resolves() -> None:
    assert sorted(octavo.__all__) == dir(octavo)
    for name in octavo.__all__:
        assert getattr(octavo, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'octavo' has no attribute 'Nothing'"):
        _ = octavo.Nothing

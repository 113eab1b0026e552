"""Files in the cache folder that others may open at any time: whole, or not there."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO

_LEFT_OVER_SECONDS = 3600
"""A part of a file that nobody has written to for so long is of a process that was killed."""


def write_whole(path: Path, write: Callable[[IO[bytes]], None]) -> None:
    """Have ``write`` fill a file beside ``path``, which takes that place when it is on the disk. The last of several
    who write at once wins; who has the older one open keeps it.

    Raises:
        OSError: the disk refuses; nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for part in path.parent.glob(f"{path.name}.*.part"):
        if time.time() - part.stat().st_mtime > _LEFT_OVER_SECONDS:
            part.unlink(missing_ok=True)
    with NamedTemporaryFile(dir=path.parent, prefix=f"{path.name}.", suffix=".part", delete=False) as file:
        try:
            write(file)
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).replace(path)
        finally:
            Path(file.name).unlink(missing_ok=True)

"""From what a user writes after ``octavo serve`` to files on this machine."""

import re
from pathlib import Path

from octavo.core.errors import ConfigurationError
from octavo.loading.pull import BUILTIN_MODELS, pull

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "LICENSE*", "NOTICE*"]


def resolve_model(name: str) -> Path:
    """The folder or .gguf file of a model, fetched first if need be.

    ``name`` is, in this order: an existing folder or .gguf file, a name of the built-in list, a hub name ("org/name").

    Raises:
        ConfigurationError: none of these, or it cannot be fetched.
    """
    try:
        path = Path(name).expanduser()
        is_folder, is_file = path.is_dir(), path.is_file()
    except (OSError, RuntimeError) as error:  # RuntimeError: ~ of a user that there is not
        raise ConfigurationError(f"{name:.200} cannot be looked up: {error!s:.100}; give another path") from error
    if is_folder:
        return path
    if is_file:
        if path.suffix == ".gguf":
            return path
        raise ConfigurationError(f"{name} is a file but not a .gguf file; give a .gguf file or a folder of safetensors")
    if name in BUILTIN_MODELS:
        return pull(name)
    if _HUB_NAME.fullmatch(name) and path.suffix != ".gguf":
        return _fetch_from_hub(name)
    if "/" in name or "\\" in name or path.suffix in {".gguf", ".safetensors"}:
        raise ConfigurationError(f"{name} does not exist; give a folder of safetensors or a .gguf file that does")
    known = ", ".join(sorted(BUILTIN_MODELS))
    raise ConfigurationError(
        f"no model is named {name!r}: give a folder, a .gguf file, a hub name (org/name) or one of {known}"
    )


def _fetch_from_hub(name: str) -> Path:
    # Imported late: it is slow to import, and only hub names need it.
    from httpx import HTTPError
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_FILES))
    except LocalEntryNotFoundError as error:
        raise ConfigurationError(
            f"{name} is no folder here, and the hub cannot be reached to fetch it: give a local folder or .gguf file, "
            "or try again where there is a network"
        ) from error
    except HfHubHTTPError as error:
        raise ConfigurationError(f"the hub refused {name}: {str(error).strip().splitlines()[-1]}") from error
    except (HTTPError, OSError) as error:
        raise ConfigurationError(f"{name} could not be fetched from the hub: {error}") from error

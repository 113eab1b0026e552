"""Opening GGUF files: the ``gguf`` package's reader, made quick on the long arrays of a vocabulary."""

import struct
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFValueType, ReaderTensor

from octavo.core.errors import ConfigurationError

# What the package's reader raises on bytes that are no GGUF file, or only its beginning.
_BROKEN = (ValueError, IndexError, KeyError, TypeError, OverflowError, struct.error, MemoryError)


class QuickReader(GGUFReader):  # type: ignore[misc]  # the package is not typed
    """Reads an array in one go; the package's own loop makes several arrays an element (8 s for 49,152 tokens)."""

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[np.ndarray[Any, Any]], list[int], list[GGUFValueType]]:
        if raw_type != GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)  # type: ignore[no-any-return]
        element, count = GGUFValueType(self._get(orig_offs, np.uint32)[0]), self._get(orig_offs + 4, np.uint64)
        start = orig_offs + 12
        if element is GGUFValueType.STRING:
            strings, size = self._strings(start, int(count[0]))
        elif element is GGUFValueType.ARRAY:
            raise ValueError("arrays of arrays are not supported")
        else:
            strings = [self._get(start, self.gguf_scalar_to_np[element], count[0])]
            size = strings[0].nbytes
            if len(strings[0]) != count[0]:
                raise ValueError("an array ends past the end of the file")
        return 12 + size, strings, list(range(len(strings))), [GGUFValueType.ARRAY, element]

    def _strings(self, start: int, count: int) -> tuple[list[np.ndarray[Any, Any]], int]:
        """``count`` strings with 8-byte lengths from byte ``start`` on, and the bytes that they take."""
        flat = np.asarray(self.data)
        unpack = struct.Struct("<Q" if self.byte_order == "I" else ">Q").unpack_from
        strings, offset = [], start
        for _ in range(count):
            (length,) = unpack(flat.data, offset)
            strings.append(flat[offset + 8 : offset + 8 + length])
            offset += 8 + length
        if offset > len(flat):
            raise ValueError("a string ends past the end of the file")
        return strings, offset - start


class GGUFFile:
    """The header of a GGUF file: metadata and tensors (whose data stay on disk until read).

    Raises:
        ConfigurationError: the file is missing, is no GGUF file, is cut short, or is one part of several.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._reader = QuickReader(path)
            self.tensors: dict[str, ReaderTensor] = {tensor.name: tensor for tensor in self._reader.tensors}
        except FileNotFoundError as error:
            raise ConfigurationError(f"{path} does not exist; give a .gguf file that does") from error
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
        except _BROKEN as error:
            raise ConfigurationError(
                f"{path} is not a GGUF file or is cut short ({_one_line(error)}); fetch it again"
            ) from error
        if self.metadata.get("split.count", 1) > 1:
            raise ConfigurationError(
                f"{path} is one of {self.metadata['split.count']} parts of a split GGUF file; "
                "merge them into one file first (llama-gguf-split --merge)"
            )

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """Scalars, strings and lists by key, the vocabulary included."""
        try:
            return {key: field.contents() for key, field in self._reader.fields.items()}
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{self.path}: its metadata are not UTF-8 text; fetch the file again") from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__

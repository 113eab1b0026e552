"""Opening GGUF files: the ``gguf`` package's reader, made quick on the long arrays of a vocabulary."""

import struct
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFValueType, ReaderField, ReaderTensor

from octavo.core.errors import ConfigurationError

# What the package's reader raises on bytes that are no GGUF file, or only its beginning.
_BROKEN = (ValueError, IndexError, KeyError, TypeError, OverflowError, struct.error, MemoryError)


class QuickReader(GGUFReader):  # type: ignore[misc]  # the package is not typed
    """Reads an array in one go; the package's own loop makes several arrays an element (8 s for 49,152 tokens). Of an
    array of strings its one part is all of them as they lie in the file: ``contents`` reads it."""

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[np.ndarray[Any, Any]], list[int], list[GGUFValueType]]:
        if raw_type != GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)  # type: ignore[no-any-return]
        element, count = GGUFValueType(self._get(orig_offs, np.uint32)[0]), self._get(orig_offs + 4, np.uint64)
        start = orig_offs + 12
        if element is GGUFValueType.STRING:
            size = self._size_of_strings(start, int(count[0]))
            strings = [np.asarray(self.data)[start : start + size]]
        elif element is GGUFValueType.ARRAY:
            raise ValueError("arrays of arrays are not supported")
        else:
            strings = [self._get(start, self.gguf_scalar_to_np[element], count[0])]
            size = strings[0].nbytes
            if len(strings[0]) != count[0]:
                raise ValueError("an array ends past the end of the file")
        return 12 + size, strings, list(range(len(strings))), [GGUFValueType.ARRAY, element]

    def _size_of_strings(self, start: int, count: int) -> int:
        """Bytes that ``count`` strings with 8-byte lengths take from byte ``start`` on."""
        flat, offset = self.data.data, start
        unpack = _length_of(self).unpack_from
        for _ in range(count):
            offset += 8 + unpack(flat, offset)[0]
        if offset > len(flat):
            raise ValueError("a string ends past the end of the file")
        return offset - start

    def contents(self, field: ReaderField) -> Any:
        """A field's number, text or list.

        Raises:
            UnicodeDecodeError: a text is not UTF-8.
        """
        if field.types[0] != GGUFValueType.ARRAY or field.types[-1] != GGUFValueType.STRING:
            return field.contents()
        unpack = _length_of(self).unpack_from
        held, offset, strings = field.parts[field.data[0]].tobytes(), 0, []
        while offset < len(held):
            begin = offset + 8
            offset = begin + unpack(held, offset)[0]
            strings.append(held[begin:offset].decode())
        return strings


def _length_of(reader: GGUFReader) -> struct.Struct:
    return struct.Struct("<Q" if reader.byte_order == "I" else ">Q")


class _Metadata(Mapping[str, Any]):
    """Read when they are asked for: a vocabulary takes longer than all else in a header."""

    def __init__(self, reader: QuickReader, path: Path) -> None:
        self._reader = reader
        self._path = path
        self._known: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key not in self._known:
            try:
                self._known[key] = self._reader.contents(self._reader.fields[key])
            except UnicodeDecodeError as error:
                raise ConfigurationError(
                    f"{self._path}: {key} in its metadata is not UTF-8 text; fetch the file again"
                ) from error
        return self._known[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._reader.fields)

    def __len__(self) -> int:
        return len(self._reader.fields)


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
    def metadata(self) -> Mapping[str, Any]:
        """Scalars, strings and lists by key, the vocabulary included.

        Raises:
            ConfigurationError: when a text is asked for that is not UTF-8.
        """
        return _Metadata(self._reader, self.path)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__

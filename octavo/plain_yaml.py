"""YAML whose values stay the texts that they are in the file."""

import re
from collections import Counter
from collections.abc import Hashable
from typing import Any

import yaml


class _TextLoader(yaml.BaseLoader):
    """Values as they stand in the file, but for null: YAML's own reading makes 83 of a key 0123, true of a folder
    ``on``, and 90 of 1:30. Of a name that is there twice it would take the last without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        counts = Counter(str(name.value) for name, _ in node.value)
        twice = next((name for name, count in counts.items() if count > 1), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"{twice} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


_TextLoader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_TextLoader.add_constructor("tag:yaml.org,2002:null", lambda _loader, _node: None)


def parse_yaml(text: str) -> Any:
    """Texts, lists and mappings of them, and None.

    Raises:
        yaml.YAMLError: it is none.
    """
    try:
        return yaml.load(text, _TextLoader)  # noqa: S506 makes texts, lists and maps only
    except RecursionError:
        raise yaml.YAMLError("nests too deeply") from None

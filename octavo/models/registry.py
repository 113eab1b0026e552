"""Which model file runs which architecture."""

from octavo.models.config import ModelConfig
from octavo.models.gemma3 import Gemma3
from octavo.models.interface import Model
from octavo.models.llama import Llama


def model_class(config: ModelConfig) -> type[Model]:
    return Gemma3 if config.architecture == "gemma3" else Llama

"""A tokenizer that needs no file: a token a byte, and a chat template in the style of ChatML."""

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from octavo.loading.interface import Tokenizer
from octavo.loading.tokenizer import HFTokenizer
from octavo.loading.tokenizer_parts import TokenizerParts

TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({letter: token_id for token_id, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return HFTokenizer(TokenizerParts(backend, {}, frozenset(), {"default": TEMPLATE}))

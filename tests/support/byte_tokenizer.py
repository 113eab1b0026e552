"""A tokenizer one can check by eye: ids 0 to 255 are bytes, then ``<s>`` (BOS), ``</s>`` (EOS)."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.core.errors import InvalidRequestError
from octavo.loading.interface import ChatText

BOS, EOS = 256, 257
_CONTROL = {BOS: "<s>", EOS: "</s>"}


class ByteTokenizer:
    """Tokenizer (octavo/loading/interface.py) of 258 ids. Its chat template writes ``role: content`` lines, tools in
    JSON before them, and calls in JSON after the content."""

    vocab_size = 258
    bos_token_id: int | None = BOS
    eos_token_ids = frozenset({EOS})
    special_token_ids = frozenset(_CONTROL)
    has_chat_template = True

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = []
        rest = text
        while rest:
            found = next((i for i, name in _CONTROL.items() if rest.startswith(name)), None)
            if found is None:
                ids += rest[0].encode()
                rest = rest[1:]
            else:
                ids.append(found)
                rest = rest[len(_CONTROL[found]) :]
        if add_special_tokens and ids[:1] != [BOS]:
            ids.insert(0, BOS)
        return ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        shown = [i for i in token_ids if not (skip_special_tokens and i in _CONTROL)]
        return b"".join(map(self.token_bytes, shown)).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        if token_id < 256:
            return bytes([token_id])
        return _CONTROL.get(token_id, "").encode()

    def template_source(self, for_tools: bool) -> str | None:
        return "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        prefix = (template_kwargs or {}).get("prefix", "")
        lines = []
        for message in messages:
            if message["role"] not in ("system", "user", "assistant", "tool"):
                raise InvalidRequestError(f"unknown role {message['role']}", "messages")
            content = message.get("content") or ""
            text = content if isinstance(content, str) else "".join(part["text"] for part in content)
            text += "".join(json.dumps(call["function"]) for call in message.get("tool_calls", ()))
            lines.append(f"{message['role']}: {text}")
        text = prefix + "".join(f"{json.dumps(tool)}\n" for tool in tools or ()) + "\n".join(lines)
        if not continue_final_message:
            text += "\n"
        if add_generation_prompt:
            text += "assistant: "
        return self.encode_chat(ChatText(text, is_marked=False))

    async def render_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> ChatText:
        return ChatText(bytes(self.apply_chat_template(messages, **options)[1:]).decode(), is_marked=False)

    def encode_chat(self, chat: ChatText) -> list[int]:
        return [BOS, *chat.text.encode()]

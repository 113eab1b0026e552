"""``truncate_prompt_tokens``: a prompt of which only the end is taken."""

from octavo.core.errors import InvalidRequestError, shown

AS_MANY_AS_FIT = -1


def check_truncation(num_tokens: int | None) -> None:
    """
    Raises:
        InvalidRequestError: such a ``truncate_prompt_tokens`` says nothing.
    """
    if num_tokens is not None and num_tokens < 1 and num_tokens != AS_MANY_AS_FIT:
        raise InvalidRequestError(
            f"truncate_prompt_tokens must be at least 1, or -1 for as many as fit, got {shown(num_tokens)}.",
            "truncate_prompt_tokens",
        )


def num_kept(num_tokens: int | None, max_model_len: int, max_tokens: int | None) -> int | None:
    """Of a prompt's tokens, how many from its end ``truncate_prompt_tokens`` keeps; None: it cuts nothing.
    ``max_tokens``: of the output, for which room is left; None: for one."""
    if num_tokens != AS_MANY_AS_FIT:
        return num_tokens
    return max(1, max_model_len - (max_tokens or 1))

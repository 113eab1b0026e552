"""What the text of an answer must be: of the form that is asked for, calls, or one of the two."""

from octavo.core.errors import InvalidRequestError
from octavo.core.structured import Constraint, as_constraint, form_or_calls
from octavo.server.chat.forced_calls import forced_constraint
from octavo.server.chat.request import ChatRequest
from octavo.server.chat.tool_choice import ToolUse
from octavo.server.dialect import ToolDialect
from octavo.server.queueing.timing import Timing
from octavo.server.state import ServerState
from octavo.server.structured import asked_constraint, constraint_field
from octavo.server.tools.callee import callee_of


def text_constraint(state: ServerState, fields: ChatRequest, tools: ToolUse) -> Constraint | None:
    """
    Raises:
        InvalidRequestError: what is asked for stands for nothing, or cannot be had together.
    """
    limits = state.settings.limits.sampling.structured
    form = asked_constraint(fields, limits)
    if form is None:
        return as_constraint(forced_constraint(tools, fields.may_call_several), limits, "tools")
    if tools.is_forced:
        name = constraint_field(fields)
        raise InvalidRequestError(f"{name} cannot be used where tool_choice forces a call; leave it out.", name)
    known = state.dialect.tools
    if tools.mode != "auto" or known is None:
        return form
    return as_constraint(_form_or_calls(form, known, tools, fields.may_call_several), limits, "tools")


def _form_or_calls(form: Constraint, known: ToolDialect, tools: ToolUse, is_parallel: bool) -> Constraint:
    functions = [tool["function"] for tool in tools.tools]
    callees = [callee_of(each, is_strict=bool(each.get("strict"))) for each in functions]
    return form_or_calls(form, known.rules(callees, is_parallel), known.markers, "tools")


async def check_text(
    state: ServerState, fields: ChatRequest, constraint: Constraint | None, timing: Timing, tenant: str
) -> None:
    """Raises as ``Constraints.check`` does, naming what is at fault: of a form beside calls the form is tried first."""
    form = asked_constraint(fields, state.settings.limits.sampling.structured)
    await state.constraints.check(form, constraint_field(fields), timing, tenant)
    if constraint != form:
        await state.constraints.check(constraint, "tools", timing, tenant)

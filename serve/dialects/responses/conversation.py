"""The items of a Responses request as the messages of a chat completion.

Reasoning, text and calls that follow one another are one turn of the assistant, and exactly one result follows each
call: templates and engines insist on both.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from serve.dialects.chat import MISSING_RESULT, Unreadable, chat_role, text_of, text_part
from serve.dialects.responses.tools import (
    BUILT_IN,
    COMPUTER,
    COMPUTER_PREVIEW,
    ToolTable,
    custom_arguments,
    read_tools,
)
from serve.dialects.sealed_reasoning import unseal
from serve.errors import InvalidRequestError, encode_json

Item = Mapping[str, Any]
Message = dict[str, Any]

_BUILT_IN_CALLS = {tool.item: (name, tool) for name, tool in BUILT_IN.items()}
# Calls of tools that ran at another provider: the tool's name, and the members with what it was asked and what it said.
_HOSTED_CALLS = {
    "code_interpreter_call": ("code_interpreter", "code", "outputs"),
    "file_search_call": ("file_search", "queries", "results"),
    "mcp_call": ("mcp", "arguments", "output"),
    "web_search_call": ("web_search", "action", "results"),
}
_SOURCES = "sources"  # of an action: what a search found
ADDITIONAL_TOOLS = "additional_tools"
_FOUND_TOOLS = "tool_search_output"
_REFERENCE = "item_reference"
_BY_MEMBER = {"role": "message", "id": _REFERENCE}  # items that may come without a type
_CONFIGURATION = "configuration_update"
AGENT_MESSAGE = "agent_message"  # the task or the answer of another agent of Codex
_COMPUTER_CALL = BUILT_IN[COMPUTER].item
_CALLS = frozenset({"function_call", "custom_tool_call", *_BUILT_IN_CALLS})
REASONING_ID = "rs_"  # begins the ids of reasoning items, OpenAI's too
_RESULTS = frozenset((*(f"{kind}_output" for kind in _CALLS), _FOUND_TOOLS))
_OF_SEARCHES = frozenset({"tool_search_call", _FOUND_TOOLS})
_RESULT_PARTS = frozenset(
    {"input_text", "output_text", "text", "input_image", "input_file", "input_audio", "computer_screenshot"}
)
_CIPHERTEXT = "gAAAA"  # begins OpenAI's
_TEXTS = frozenset({"input_text", "output_text", "text", "reasoning_text", "summary_text"})
# Each costs a microsecond or more in which nobody else is served; no conversation needs as many.
_MOST_PARTS = 30_000


def read_items(items: str | Sequence[Any], instructions: str, tools: ToolTable) -> tuple[list[Message], list[str]]:
    """Returns the messages of a conversation, and the types of the items that were left out.

    Raises:
        InvalidRequestError: An item can't be read, or refers to one that is stored elsewhere, or there are too many.
    """
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    _check_size(items)
    checked = [_checked(item, index) for index, item in enumerate(items)]
    asks = bool(checked) and _is_users(checked[-1])
    unreadable = Unreadable(f"input[{len(items) - 1}]" if asks else "")
    reader = _Reader(instructions, tools, unreadable)
    reader.read(checked)
    return reader.finish(), unreadable.dropped


def additional_tools(items: str | Sequence[Any]) -> list[Any]:
    """Returns the tools that a conversation adds or finds on its way, in their order."""
    if isinstance(items, str):
        return []
    adding = (ADDITIONAL_TOOLS, _FOUND_TOOLS)
    lists = [item.get("tools") for item in items if isinstance(item, Mapping) and item.get("type") in adding]
    tools = [tool for tools in lists if isinstance(tools, list) for tool in tools]
    return [*{encode_json(tool): tool for tool in tools}.values()]  # one may be found again


def updated(setting: Item | None, name: str, items: str | Sequence[Any]) -> Item:
    """Returns a request's setting, `text` or `reasoning`, as the updates in its conversation leave it."""
    result = dict(setting or {})
    for item in [] if isinstance(items, str) else items:
        if isinstance(item, Mapping) and item.get("type") == _CONFIGURATION and isinstance(item.get(name), Mapping):
            result |= item[name]
    return result


def _check_size(items: Sequence[Any]) -> None:
    size = len(items)
    if size <= _MOST_PARTS:
        lists = [item.get(name) for item in items if isinstance(item, Mapping) for name in ("content", "output")]
        size += sum(len(parts) for parts in lists if isinstance(parts, list))
    if size > _MOST_PARTS:
        message = f"`input` has more than {_MOST_PARTS} items and parts."
        raise InvalidRequestError(message, param="input", code="over_limit")


def _checked(item: Any, index: int) -> Item:
    param = f"input[{index}]"
    if not isinstance(item, Mapping):
        raise InvalidRequestError(f"`{param}` must be an object.", param=param)
    if item.get("type") == "compaction_trigger":
        raise _not_compacted(param)
    return item


def _not_stored(param: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"`{param}` refers to an item by its id, and this gateway stores none. Send the item itself: many "
        "clients do with `store: false`.",
        param=param,
        code="item_reference_not_found",
    )


def _type_of(item: Item) -> str:
    kind = str(item.get("type") or next((kind for member, kind in _BY_MEMBER.items() if member in item), ""))
    if kind in _OF_SEARCHES and (not item.get("call_id") or item.get("execution") == "server"):
        return ""  # OpenAI's own
    return kind


def _is_users(item: Item) -> bool:
    kind = _type_of(item)
    return kind == AGENT_MESSAGE or (kind == "message" and item.get("role") == "user")


def _not_compacted(param: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"`{param}` asks for a compaction, which is not done here. Ask for a summary in a message; Codex does where "
        "its provider is not named `OpenAI`.",
        param=param,
        code="unsupported_content",
    )


@dataclass(slots=True)
class _Turn:
    """A turn of the assistant as far as it was read.

    Attributes:
        calls: With the position of their items.
        missing: Positions of references to messages of it that are stored nowhere.
    """

    reasoning: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    calls: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        return not (self.reasoning or self.texts or self.calls)

    def message(self) -> Message:
        message: Message = {"role": "assistant", "content": "\n".join(self.texts)}
        if self.reasoning:
            message["reasoning"] = "\n".join(self.reasoning)
        if self.calls:
            message["tool_calls"] = [call for _, call in self.calls]
        return message


class _Reader:
    """One pass over the items; a turn of the assistant is collected until something else follows."""

    def __init__(self, instructions: str, tools: ToolTable, unreadable: Unreadable) -> None:
        self._unreadable = unreadable
        self._tools = tools
        self._messages: list[Message] = []
        self._system = [instructions]
        self._turn = _Turn()
        self._results: dict[int, Any] = {}  # outputs by the position of their call
        self._orphans: set[int] = set()  # positions of results without a call

    def read(self, items: Sequence[Item]) -> None:
        self._match_results(items)
        for position, item in enumerate(items):
            kind = _type_of(item)
            if kind == "message":
                self._message(item, f"input[{position}]")
            elif kind == AGENT_MESSAGE:
                self.user(parts_of(item.get("content"), f"input[{position}].content", self._unreadable))
            elif kind == "reasoning":
                self._turn.reasoning += filter(None, [reasoning_of(item)])
            elif kind == _REFERENCE:
                self._refer(item, position)
            elif kind in _HOSTED_CALLS and (output := _hosted_output(item, kind)) is not None:
                self._turn.calls.append((position, _hosted_call(item, kind, position, self._tools)))
                self._results[position] = output
                self._end_turn()  # what follows was said with the result in view
            elif kind in _CALLS:
                self._turn.calls.append((position, _call(item, kind, position, self._tools)))
            elif kind in _RESULTS:
                self._read_result(item, position)
            elif kind not in (ADDITIONAL_TOOLS, _CONFIGURATION):
                self._unreadable.dropped.append(f"input.{item.get('type') or 'untyped'}")

    def _read_result(self, item: Item, position: int) -> None:
        """Ends the turn whose calls have their results; one without a call is told in words of the user."""
        self._end_turn()
        if position in self._orphans:
            content = self._output(_output_of(item), position)
            self.user([text_part(f"Result of the tool call {_id_of(item)}:"), *content])

    def _refer(self, item: Item, position: int) -> None:
        """Leaves out an item that the client takes to be stored.

        That loses little where it is reasoning or what was said beside a call. `_end_turn` refuses to lose an answer.
        """
        self._unreadable.dropped.append("input.item_reference")
        if not str(item.get("id")).startswith(REASONING_ID):
            self._turn.missing.append(position)

    def _match_results(self, items: Sequence[Item]) -> None:
        """Finds the result of each call, the last of several.

        Some engines use an id again in every turn, or for each call of one: a result belongs to the latest turn with
        its id, and there to the calls in their order.
        """
        waiting: dict[str, tuple[int, list[int]]] = {}  # the turn and the positions of calls, by their id
        turn = 0
        for position, item in enumerate(items):
            kind = _type_of(item)
            call_id = _id_of(item)
            if kind in _CALLS:
                if call_id in waiting and waiting[call_id][0] == turn:
                    waiting[call_id][1].append(position)
                else:
                    waiting[call_id] = (turn, [position])
            elif kind in _RESULTS and call_id in waiting:
                calls = waiting[call_id][1]
                self._results[calls.pop(0) if len(calls) > 1 else calls[0]] = _output_of(item)
            elif kind in _RESULTS:
                self._orphans.add(position)
            turn += kind in _RESULTS or _is_users(item)

    def _message(self, item: Item, param: str) -> None:
        role = chat_role(item.get("role"), begun=bool(self._messages) or not self._turn.empty)
        parts = parts_of(item.get("content"), f"{param}.content", self._unreadable)
        if role == "assistant":
            self._turn.texts += filter(None, ["".join(part["text"] for part in parts if part["type"] == "text")])
        elif role == "system":
            self._system.append(joined_text(parts))
        elif role == "user":
            self.user(parts)
        else:
            raise InvalidRequestError(f"`{param}.role` is not known: {role!r}.", param=f"{param}.role")

    def user(self, content: str | list[dict[str, Any]]) -> None:
        """Adds to what the user says; some templates want users and assistants to alternate."""
        self._end_turn()
        if not isinstance(content, str) and all(part["type"] == "text" for part in content):
            content = joined_text(content)
        last = self._messages[-1] if self._messages else None
        if last is None or last["role"] != "user":
            self._messages.append({"role": "user", "content": content})
        elif isinstance(content, str) and isinstance(last["content"], str):
            last["content"] = "\n\n".join(filter(None, (last["content"], content)))
        else:
            last["content"] = [*as_parts(last["content"]), *as_parts(content)]

    def _end_turn(self) -> None:
        turn, self._turn = self._turn, _Turn()
        if turn.missing and not turn.calls:
            raise _not_stored(f"input[{turn.missing[0]}]")
        if turn.empty:
            return
        self._messages.append(turn.message())
        media: list[dict[str, Any]] = []
        for position, call in turn.calls:
            self._messages.append(self._result(position, call["id"], media))
        if media:
            self.user(media)

    def _result(self, position: int, call_id: str, media: list[dict[str, Any]]) -> Message:
        """Returns the message with a call's result; images go to `media`, for templates know them from users only."""
        content = MISSING_RESULT
        if position in self._results:
            parts = self._output(self._results[position], position)
            content = joined_text(parts)
            if images := [part for part in parts if part["type"] != "text"]:
                content = content or "The result is the image in the next message."
                media += [text_part(f"Image in the result of the tool call {call_id}:"), *images]
        return {"role": "tool", "tool_call_id": call_id, "content": content}

    def _output(self, output: Any, position: int) -> list[dict[str, Any]]:
        """Returns a result's parts; one of another shape than text and media is kept as JSON."""
        output = [output] if _is_known(output) else output
        shown = isinstance(output, str | None) or (isinstance(output, list) and all(map(_is_known, output)))
        output = output if shown else encode_json(output).decode()
        return parts_of(output, f"input[{position}].output", self._unreadable)

    def finish(self) -> list[Message]:
        self._end_turn()
        system = "\n\n".join(filter(None, self._system))
        return [{"role": "system", "content": system}, *self._messages] if system else self._messages


def _is_known(part: Any) -> bool:
    kind = part.get("type") if isinstance(part, Mapping) else None
    return isinstance(kind, str) and kind in _RESULT_PARTS


def _id_of(item: Item) -> str:
    """Returns the id by which calls and results find each other; some results have it as their own, `id`."""
    return str(item.get("call_id") or item.get("id") or "")


def _output_of(item: Item) -> Any:
    """Returns what a call brought; results of patches may say no more than whether it succeeded."""
    if item.get("type") == _FOUND_TOOLS:
        return f"Tools found: {', '.join(_names_of(item.get('tools'))) or 'none'}"
    output = item.get("output")
    return item.get("status") if output is None and item.get("type") == "apply_patch_call_output" else output


def _names_of(tools: Any) -> list[str]:
    """Returns the names of tools that a search has found, as the engine knows them."""
    found = [tool for tool in tools if isinstance(tool, Mapping)] if isinstance(tools, list) else []
    return [each["function"]["name"] for each in read_tools(found).functions]


def _namespace_of(item: Item) -> str | None:
    namespace = item.get("namespace")
    if namespace is not None and not isinstance(namespace, str):
        raise InvalidRequestError("The `namespace` of a call must be a string.", param="input")
    return namespace


def _call(item: Item, kind: str, position: int, tools: ToolTable) -> dict[str, Any]:
    """Returns a call's item as a call of a chat message."""
    if kind == "custom_tool_call":
        name = tools.function_name(str(item.get("name")), _namespace_of(item))
        arguments = custom_arguments(item.get("input"))
    elif kind == "function_call":
        name = tools.function_name(str(item.get("name")), _namespace_of(item))
        given = item.get("arguments") or "{}"
        arguments = given if isinstance(given, str) else encode_json(given).decode()
    elif kind == _COMPUTER_CALL:
        name = COMPUTER if item.get("actions") else COMPUTER_PREVIEW
        arguments = encode_json({key: item[key] for key in ("action", "actions") if item.get(key)}).decode()
    else:
        name, tool = _BUILT_IN_CALLS[kind]
        said = item.get(tool.member)
        if isinstance(said, Mapping):  # as the model said it, without what was added for the client
            said = {key: value for key, value in said.items() if value is not None and tool.implied.get(key) != value}
        arguments = encode_json(said or {}).decode()
    identity = _id_of(item) or f"call_{position}"
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def _hosted_call(item: Item, kind: str, position: int, tools: ToolTable) -> dict[str, Any]:
    """Returns the call of a tool that ran elsewhere as a call of a chat message."""
    name, member, _ = _HOSTED_CALLS[kind]
    asked = item.get(member)
    if kind == "mcp_call":
        name = tools.function_name(str(item.get("name")), str(item.get("server_label") or name))
    elif isinstance(asked, Mapping):
        asked = {key: value for key, value in asked.items() if key != _SOURCES}
    else:
        asked = {member: asked}
    return _call({"name": name, "arguments": asked, "id": item.get("id")}, "function_call", position, tools)


def _hosted_output(item: Item, kind: str) -> Any:
    """Returns what a tool said that ran elsewhere; None if the item does not tell, as many do only if asked to."""
    output = item.get(_HOSTED_CALLS[kind][2])
    if output is None and isinstance(action := item.get("action"), Mapping):
        output = action.get(_SOURCES)
    return {"error": item["error"]} if output is None and item.get("error") is not None else output


def as_parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns a chat message's content as a list of parts."""
    return [text_part(content)] if isinstance(content, str) else content


def joined_text(parts: Sequence[Mapping[str, Any]]) -> str:
    """Returns the texts among the parts of a chat message, a line each."""
    return "\n".join(part["text"] for part in parts if part["type"] == "text")


def parts_of(content: Any, param: str, unreadable: Unreadable) -> list[dict[str, Any]]:
    """Returns an item's content, of which null is empty, as the parts of a chat message.

    Raises:
        InvalidRequestError: The content has no known shape, or the user asks now about a part that can't be read.
    """
    if content is None:
        return []
    if isinstance(content, str):
        return [text_part(content)]
    if not isinstance(content, Sequence):
        raise InvalidRequestError(f"`{param}` must be a string or a list of parts.", param=param)
    return [_part(part, f"{param}[{index}]", unreadable) for index, part in enumerate(content)]


def _part(part: Any, param: str, unreadable: Unreadable) -> dict[str, Any]:
    if isinstance(part, str):
        return text_part(part)
    if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
        raise InvalidRequestError(f"`{param}` must be an object with a `type`.", param=param)
    kind = part["type"]
    if kind in _TEXTS:
        return text_part(str(part.get("text") or ""))
    if kind == "refusal":
        return text_part(str(part.get("refusal") or ""))
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": part.get("input_audio")}
    read = _READERS.get(kind)
    if read is not None and (readable := read(part)) is not None:
        return readable
    what, remedy = _UNREADABLE.get(kind, (f"A part of type {kind}", f"known types: {', '.join(_KNOWN)}"))
    name = part.get("filename")
    what += f" ({name})" if isinstance(name, str) else ""
    error = InvalidRequestError(
        f"`{param}`: {what} like this can't be read here; {remedy}.", param=param, code="unsupported_content"
    )
    return unreadable.note(param, f"input.{kind}", what, error)


def _image(part: Mapping[str, Any]) -> dict[str, Any] | None:
    given = part.get("image_url")
    url = given.get("url") if isinstance(given, Mapping) else given
    if not isinstance(url, str):
        return None
    detail = part.get("detail")
    # `original` and what else may come is not in chat's vocabulary.
    return {"type": "image_url", "image_url": {"url": url} | ({"detail": detail} if detail in ("low", "high") else {})}


def _file(part: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns a file's text; no other files can be read here."""
    data = part.get("file_data")
    head, comma, encoded = data.partition(",") if isinstance(data, str) else ("", "", "")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        return None
    text = text_of(head.removeprefix("data:").removesuffix(";base64"), encoded)
    return None if text is None else text_part(f"{part.get('filename') or 'file'}:\n{text}")


def _sealed(part: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns what one agent of Codex tells another: a call's argument, which only OpenAI's models encrypt."""
    text = part.get("encrypted_content")
    return text_part(text) if isinstance(text, str) and not text.startswith(_CIPHERTEXT) else None


_READERS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any] | None]] = {
    "input_image": _image,
    "image_url": _image,
    "computer_screenshot": _image,
    "input_file": _file,
    "encrypted_content": _sealed,
}
_KNOWN = (*sorted(_TEXTS), "refusal", "input_audio", *_READERS)
# What a model and a client get in place of parts that can't be read.
_NO_IMAGE = ("An image", "give it as `image_url`, because no files are stored")
_UNREADABLE = {
    "input_image": _NO_IMAGE,
    "image_url": _NO_IMAGE,
    "computer_screenshot": _NO_IMAGE,
    "encrypted_content": ("A message that another provider has encrypted", "begin a new conversation"),
    "input_file": ("A file", "send its text, as `data:text/...;base64,` or as `input_text`, or its pages as images"),
}


def reasoning_of(item: Mapping[str, Any]) -> str:
    """Returns the text of a reasoning item; empty if it holds none that can be read, as other providers' do."""
    for member in ("content", "summary"):
        parts = item.get(member)
        if isinstance(parts, str):
            texts = [parts] if parts else []
        else:
            texts = [part["text"] for part in parts if _has_text(part)] if isinstance(parts, Sequence) else []
        if texts:
            return "\n".join(texts)
    return unseal(item.get("encrypted_content")) or ""


def _has_text(part: Any) -> bool:
    return isinstance(part, Mapping) and isinstance(part.get("text"), str) and part["text"] != ""

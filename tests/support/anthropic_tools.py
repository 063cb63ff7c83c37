"""A tool as requests of the Messages API declare it."""

from typing import Any

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: Any = [{"name": "get_weather", "description": "The weather", "input_schema": SCHEMA}]

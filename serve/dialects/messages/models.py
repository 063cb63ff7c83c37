"""Models as clients of the Messages API read them: `GET /v1/models` with an `anthropic-version` header."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

VERSION_HEADER = "anthropic-version"


def model_info(model: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a model in the form of the Messages API.

    Args:
        model: In OpenAI's form, with `max_model_len` in tokens if that is known.
    """
    return {
        "type": "model",
        "id": model["id"],
        "display_name": model["id"],
        "created_at": datetime.fromtimestamp(model["created"], UTC).isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": model.get("max_model_len"),
        "max_tokens": model.get("max_model_len"),
    }


def model_page(models: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns all models as the only page of a list."""
    page = [model_info(model) for model in models]
    ends = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return {"data": page, "has_more": False, "first_id": ends[0], "last_id": ends[1]}

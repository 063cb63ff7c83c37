"""The schemas of Kubernetes 1.33 and KubeRay 1.7, strict: a key that a cluster would silently drop is an error."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema

SUPPORT = Path(__file__).parents[2] / "support"
Problems = Callable[[dict[str, Any]], list[str]]


def kubernetes_problems() -> Problems:
    """Returns what Kubernetes says against an object."""
    schema = json.loads((SUPPORT / "kubernetes-v1.33.schema.json").read_text())

    def check(document: dict[str, Any]) -> list[str]:
        one = {"$ref": f"#/$defs/{schema['kinds'][document['kind']]}", "$defs": schema["$defs"]}
        return [error.message for error in jsonschema.Draft202012Validator(one).iter_errors(document)]

    return check


def ray_service_validator() -> jsonschema.Draft202012Validator:
    """Returns KubeRay's validator of a RayService."""

    def strict(node: Any) -> Any:
        if isinstance(node, dict):
            open_ = node.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in node
            closed = {"additionalProperties": False} if "properties" in node and not open_ else {}
            return {key: strict(value) for key, value in node.items()} | closed
        return [strict(each) for each in node] if isinstance(node, list) else node

    schema = json.loads((SUPPORT / "rayservice-v1.7.0.schema.json").read_text())
    schema["properties"]["metadata"] = {
        "type": "object"
    }  # Kubernetes itself describes it, so the schema's own is empty
    return jsonschema.Draft202012Validator(strict(schema))

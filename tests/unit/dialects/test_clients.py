"""Requests that agents and libraries sent to a gateway when they were run against one; long texts are cut."""

import json
from pathlib import Path
from typing import Any

import pytest

from serve.dialects.api import as_chat
from serve.request.completion import parse
from serve.request.features import features_of

REQUESTS = [json.loads(line) for line in (Path(__file__).parent / "clients.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("sent", REQUESTS, ids=lambda sent: sent["client"])
def test_a_clients_request_is_read_as_what_it_asks_for(sent: dict[str, Any]) -> None:
    body = as_chat(json.dumps(sent["body"]).encode(), sent["api"])
    features = features_of(parse(body), {})
    assert [*features.classes] == sent["classes"]
    assert features.preference == sent["enable_speculative"]

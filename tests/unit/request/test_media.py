"""Engines fetch nothing from hosts that no operator has listed, however a client writes the URL."""

import json
from typing import Any

import pytest
from support.bodies import problem, sent

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def saying(*parts: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": list(parts)}]}


@pytest.mark.parametrize("kind", ["image_url", "video_url", "audio_url", "image", "video", "audio", "time_series_url"])
@pytest.mark.parametrize("written", [lambda url: url, lambda url: {"url": url}])
@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data",
        "https://listed.example.evil.org/x.png",
        "https://evil.org\\@listed.example/x.png",
        "https://listed.example@evil.org/x.png",
        "file:///etc/passwd",
        "ftp://listed.example/x",
        "//listed.example/x",
        " http://evil.org/x",
    ],
)
def test_engines_fetch_nothing_from_hosts_that_are_not_listed(kind: str, written: Any, url: str) -> None:
    body = saying({"type": kind, kind: written(url)})
    assert problem(body).code == "media_not_allowed"
    assert problem(body, media_hosts=("listed.example",)).code == "media_not_allowed"


def test_a_url_of_megabytes_is_data_or_none() -> None:
    url = "https://listed.example/" + "x" * 1_000_000
    assert problem(saying({"type": "image_url", "image_url": url}), media_hosts=("listed.example",)).code
    inline = saying({"type": "image_url", "image_url": "data:image/png;base64," + "A" * 1_000_000})
    assert sent(inline) == json.dumps(inline).encode()


def test_data_urls_and_listed_hosts_pass() -> None:
    inline = saying({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, {"type": "text"})
    assert sent(inline) == json.dumps(inline).encode()
    listed = saying({"type": "image_url", "image_url": {"url": "https://listed.example/x.png", "detail": "low"}})
    assert sent(listed, media_hosts=("listed.example",)) == json.dumps(listed).encode()


def test_an_escaped_key_hides_no_url() -> None:
    hidden = b'{"model":"m","messages":[{"role":"user","content":[{"\\u0069mage\\u005Furl":"http://evil.org"}]}]}'
    assert problem(hidden).code == "media_not_allowed"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_embeds", "image_embeds": "AAAA"},
        {"image_embeds": {"a": "AAAA"}},
        {"type": "prompt_embeds", "data": "AAAA"},
        {"type": "prompt_embeds"},
    ],
)
def test_engines_load_no_tensors_of_clients(part: dict[str, Any]) -> None:
    assert problem(saying(part)).code == "field_not_allowed"
    hidden = json.dumps(saying(part)).replace("embeds", "\\u0065mbeds").encode()
    assert problem(hidden).code == "field_not_allowed"
    assert sent(saying(part), pass_fields=("prompt_embeds",)) == json.dumps(saying(part)).encode()


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": None},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "image_pil", "image_pil": None},
    ],
)
def test_no_client_names_the_media_that_engines_keep_for_all(part: dict[str, Any]) -> None:
    """An engine takes what it has under the name, another tenant's picture too, and gives others this one."""
    named = saying({**part, "uuid": "logo"})
    assert problem(named).code == "field_not_allowed"
    assert problem(json.dumps(named).replace('"uuid"', '"\\u0075uid"').encode()).code == "field_not_allowed"
    assert sent(named, pass_fields=("uuid",)) == json.dumps(named).encode()
    assert sent(saying({**part, "uuid": None})) == json.dumps(saying({**part, "uuid": None})).encode()


@pytest.mark.parametrize(("name", "value"), [("content_hash", "sha256:00"), ("max_dynamic_patch", 1_000_000)])
@pytest.mark.parametrize("kind", ["image_url", "video_url"])
def test_an_address_holds_nothing_that_steers_the_engine(kind: str, name: str, value: Any) -> None:
    body = saying({"type": kind, kind: {"url": "data:image/png;base64,AAAA", "detail": "low", name: value}})
    assert problem(body).code == "field_not_allowed"
    assert sent(body, pass_fields=(name,)) == json.dumps(body).encode()


@pytest.mark.parametrize("text", ["see image_url: http://x", 'a "uuid": "x"', "\u0001 _embeds", 'a "video_url" b'])
def test_text_about_media_is_no_media(text: str) -> None:
    body = {**CHAT, "messages": [{"role": "user", "content": text}, {"role": "assistant", "content": None}]}
    assert sent(body) == json.dumps(body).encode()

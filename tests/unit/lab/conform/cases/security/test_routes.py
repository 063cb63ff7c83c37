"""Ways to write a path."""

from lab.conform.cases.security.routes import spellings


def test_a_path_is_tried_encoded_doubled_with_dots_with_a_slash_and_with_a_query() -> None:
    assert spellings("/v1/quarantine") == (
        "/v1/quarantine",
        "/v1/%71uarantine",
        "//v1/quarantine",
        "/v1/chat/../../v1/quarantine",
        "/v1/quarantine/",
        "/v1/quarantine?x=1",
    )

"""The request body on its way to an engine: the client's bytes, less the one field that is ours."""

import msgspec

from serve.features import strip_own_fields

_OPT_OUT = b'"vllm_xargs":{"enable_speculative":0},'


class _Xargs(msgspec.Struct):
    vllm_xargs: dict[str, msgspec.Raw] | None = None


_xargs = msgspec.json.Decoder(_Xargs)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


def engine_body(body: bytes, *, own_fields: bool, opt_out: bool) -> bytes:
    """What the engine gets: every byte as the client sent it, except `enable_speculative`.

    Args:
        body: A JSON object; `serve.features.extract` has accepted it.
        own_fields: It holds a field of ours (`RequestFeatures.own_fields`); most don't, and looking again costs.
        opt_out: Tell the engine's scheduler not to speculate for this request (`vllm_xargs.enable_speculative: 0`).
    """
    if own_fields:
        body = strip_own_fields(body)
    return _opted_out(body) if opt_out else body


def _opted_out(body: bytes) -> bytes:
    theirs = _xargs.decode(body).vllm_xargs
    if theirs is None and b'"vllm_xargs"' not in body:
        start = body.index(b"{") + 1
        return body[:start] + _OPT_OUT + body[start:]
    # The client uses vllm_xargs itself: rebuild the object, with every member's value still as it was sent.
    merged = {**(theirs or {}), "enable_speculative": msgspec.Raw(b"0")}
    return msgspec.json.encode(_members.decode(body) | {"vllm_xargs": msgspec.Raw(msgspec.json.encode(merged))})

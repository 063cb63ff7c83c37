"""The sides of the gateway benchmark: no gateway at all, specgate, and other gateways."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from bench import peers
from bench.peers import Peer

_CONFIG = """
models:
  bench:
    family: qwen3
    grammar: hermes
    pools:
      standard: {{ kind: remote, url: "{upstream}", facts: {{ engine: vllm, engine_version: 0.32.0, method: none }} }}
  bench-rerun:
    family: qwen3
    grammar: hermes
    pools:
      speculative:
        kind: remote
        url: "{upstream}/broken"
        facts: {{ engine: vllm, engine_version: 0.32.0, method: draft_model, settings: {{ rejection_sample_method: standard }} }}
        proven: [tools_auto]
      standard: {{ kind: remote, url: "{upstream}", facts: {{ engine: vllm, engine_version: 0.32.0, method: none }} }}
"""  # noqa: E501
DIRECT = "direct"
SPECGATE = "specgate"
# One gateway replica without a cluster around it, comparable to the single process of another gateway.
REPLICA = Peer(
    SPECGATE,
    (),
    ("{bin}/python", "-m", "bench.gateway.replica", "--config", "{config}", "--port", "{port}"),
    config=_CONFIG,
)
BEFORE = "specgate before"
# Everything: Ray's processes, HAProxy, the gateway replica.
ON_RAY = dataclasses.replace(peers.SPECGATE, name="specgate on Ray Serve", config=_CONFIG)
TWO_HOPS = Peer(
    "Ray Serve in two hops",
    (),
    ("{bin}/python", "-m", "bench.gateway.two_hops", "--upstream", "{upstream}", "--port", "{port}"),
)
QUIET = (REPLICA, *peers.PEERS)
# A Ray cluster is never idle, so each of these runs by itself, after the others.
CLUSTERS = (ON_RAY, TWO_HOPS)
NAMES = tuple(side.name for side in (*QUIET, *CLUSTERS))


def before(checkout: Path) -> Peer:
    """Returns another checkout of specgate as a side, to compare a change with what was there before.

    Args:
        checkout: Its folder; its own `.venv` is used if it has one.
    """
    checkout = checkout.resolve()
    python = checkout / ".venv" / "bin" / "python"
    command = (str(python) if python.exists() else "{bin}/python", *REPLICA.command[1:])
    return dataclasses.replace(REPLICA, name=BEFORE, command=command, folder=checkout)

"""The simulated engine: OpenAI's API over HTTP, tokens in the steps of a speculative engine, faults on demand."""

from serve.engine.sim.app import build_sim_app
from serve.engine.sim.faults import FAULTS, InjectedFault
from serve.engine.sim.settings import SimSettings

__all__ = ["FAULTS", "InjectedFault", "SimSettings", "build_sim_app"]

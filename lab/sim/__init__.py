"""The simulated engine: OpenAI's API over HTTP, tokens in the steps of a speculative engine, faults on demand."""

from lab.sim.app import build_sim_app
from lab.sim.faults import FAULTS, InjectedFault
from lab.sim.settings import SimSettings

__all__ = ["FAULTS", "InjectedFault", "SimSettings", "build_sim_app"]

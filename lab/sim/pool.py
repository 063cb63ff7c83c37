"""Simulated pools, as `specgate` finds them."""

from lab.sim.replica import SimReplica
from lab.sim.settings import SimSettings, grammar_given
from serve.config.pool import ModelConfig
from serve.engine.kinds import PoolKind


def _check(name: str, model: ModelConfig, pool: str) -> None:
    SimSettings.from_mapping({"model": name, **grammar_given(model.grammar)} | model.pools[pool].sim)


KIND = PoolKind(SimReplica, _check)

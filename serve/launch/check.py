"""Checks a cluster file against the Serve config that it deploys and the hardware that it names: what is placed where,
and whether it fits in the memory of the GPUs.

What is wrong with the config itself, `specgate doctor` says.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from serve.config import yaml_files
from serve.config.access import is_loopback, listening_host, open_gateway
from serve.config.gateway import GatewayConfig, args_of
from serve.config.pool import HOSTED, ModelConfig, PoolConfig
from serve.errors import ConfigError
from serve.launch.cluster_file import (
    ClusterFinding,
    Document,
    Node,
    deployed_configs,
    docker_options,
    file_findings,
    local_path,
    nodes_of,
    shared_memory_gib,
    volumes_of,
)
from serve.launch.memory import GIB, GPU_MEMORY_GIB, Estimate, estimate, shape_of, tensor_parallel
from serve.launch.submit import serve_document


@dataclass(frozen=True, slots=True)
class Fit:
    """The memory estimate of one pool; None if model or GPU are unknown."""

    model: str
    pool: str
    gpus: float
    gpu: str | None
    estimate: Estimate | None


@dataclass(frozen=True, slots=True)
class Demand:
    """One replica's bundles, which share a node unless `spread`."""

    name: str
    bundles: tuple[Mapping[str, float], ...]
    spread: bool = False

    @property
    def parts(self) -> tuple[Mapping[str, float], ...]:
        """The resources that each must be on a single node."""
        if self.spread:
            return self.bundles
        names = {name for bundle in self.bundles for name in bundle}
        return ({name: sum(bundle.get(name, 0.0) for bundle in self.bundles) for name in names},)


@dataclass(frozen=True, slots=True)
class Placement:
    """Replicas by node, and those that fit nowhere."""

    on: Mapping[str, tuple[str, ...]]
    unplaced: tuple[Demand, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckReport:
    config_path: Path | None
    config: GatewayConfig | None
    nodes: tuple[Node, ...]
    placement: Mapping[str, tuple[str, ...]]
    fits: tuple[Fit, ...]
    findings: tuple[ClusterFinding, ...]

    @property
    def ok(self) -> bool:
        """True if `ray up` would work, placeholders aside."""
        return not any(finding.level == "error" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "config": str(self.config_path) if self.config_path else None,
            "nodes": [{"name": node.name, "resources": dict(node.resources)} for node in self.nodes],
            "placement": {node: list(replicas) for node, replicas in self.placement.items()},
            "memory": [
                {**asdict(fit), "fits": fit.estimate.fits if fit.estimate is not None else None} for fit in self.fits
            ],
            "findings": [asdict(finding) for finding in self.findings],
        }


def check_file(path: str | Path) -> CheckReport:
    """Checks a cluster file; starts nothing and contacts no node.

    Raises:
        ConfigError: The file is not YAML, or a start command in it can't be read.
    """
    document = yaml_files.read(path)
    findings = list(file_findings(document))
    nodes = nodes_of(document)
    remotes = deployed_configs(document)
    if not remotes:
        text = "none of them is `specgate deploy --config FILE`, so nothing would be served"
        findings.append(ClusterFinding("error", "head_start_ray_commands", text))
        return CheckReport(None, None, nodes, {}, (), tuple(findings))
    *replaced, remote = remotes
    if replaced:
        text = f"`specgate deploy` of {remote} replaces what {', '.join(replaced)} has deployed; put all into one file"
        findings.append(ClusterFinding("warning", "head_start_ray_commands", text))
    local = local_path(document, remote)
    try:
        served = serve_document(local)
        config = GatewayConfig.parse(args_of(served, local), local)
    except ConfigError as error:
        findings.append(ClusterFinding("error", str(local), str(error)))
        return CheckReport(local, None, nodes, {}, (), tuple(findings))
    findings += [*_serving(document, served), *_open(config, served), *_application(config)]
    placement, unplaced = _placed(config, nodes)
    fits = tuple(_fit(*entry) for entry in config.each_pool("vllm"))
    findings += [*unplaced, *_parallelism(config), *_memory(fits), *_containers(document, config)]
    return CheckReport(local, config, nodes, placement, fits, tuple(findings))


def _serving(document: Document, served: Mapping[str, Any]) -> Iterator[ClusterFinding]:
    host, provider = listening_host(served), document.get("provider") or {}
    if host is not None and is_loopback(host) and provider.get("head_ip") != "127.0.0.1":
        yield ClusterFinding(
            "error", "http_options.host", "clients on other machines can't reach the head: set it to 0.0.0.0"
        )


def _open(config: GatewayConfig, served: Mapping[str, Any]) -> Iterator[ClusterFinding]:
    if message := open_gateway(config.access, listening_host(served)):
        yield ClusterFinding("error", "access.mode", message)


def _application(config: GatewayConfig) -> Iterator[ClusterFinding]:
    """Lets Ray Serve check the deployments' options by building the application; nothing is started."""
    from serve.app import build

    try:
        build(config)
    except ConfigError as error:
        yield ClusterFinding("error", "pools", str(error))
    except (ValueError, TypeError) as error:
        yield ClusterFinding("error", "ray_actor_options", f"Ray Serve rejects a deployment: {error}")


def _placed(
    config: GatewayConfig, nodes: tuple[Node, ...]
) -> tuple[Mapping[str, tuple[str, ...]], list[ClusterFinding]]:
    demands = [*_gateway(config), *(demand for entry in config.each_pool(*HOSTED) for demand in _replicas(*entry))]
    placement = place(demands, nodes)
    findings = [ClusterFinding("error", demand.name, why_unplaced(demand, nodes)) for demand in placement.unplaced]
    requested = sum(bundle.get("GPU", 0.0) for demand in demands for bundle in demand.bundles)
    offered = sum(node.resources.get("GPU", 0.0) for node in nodes)
    if requested > offered:
        findings.append(ClusterFinding("error", "GPUs", f"the pools ask for {requested:g}, the nodes have {offered:g}"))
    return placement.on, findings


def _gateway(config: GatewayConfig) -> Iterator[Demand]:
    bundle = _bundle({"num_cpus": 0.5, **config.ray_actor_options})
    yield from (Demand("gateway", (bundle,)) for _ in range(config.replicas))


def _replicas(model: str, _: ModelConfig, pool: str, settings: PoolConfig) -> Iterator[Demand]:
    """Yields as many replicas as autoscaling may start."""
    count = settings.autoscaling.max_replicas if settings.autoscaling else settings.replicas
    bundles = settings.placement_group_bundles or (_bundle({"num_cpus": 1, **settings.ray_actor_options}),)
    spread = settings.placement_group_bundles is not None and settings.placement_group_strategy != "STRICT_PACK"
    yield from (Demand(f"{model}/{pool}", tuple(bundles), spread) for _ in range(count))


def _bundle(options: Mapping[str, Any]) -> dict[str, float]:
    bundle = {"CPU": float(options.get("num_cpus", 0)), "GPU": float(options.get("num_gpus", 0))}
    return {**bundle, **{name: float(amount) for name, amount in (options.get("resources") or {}).items()}}


def _gpus(settings: PoolConfig) -> float:
    bundles = settings.placement_group_bundles or (_bundle(settings.ray_actor_options),)
    return sum(bundle.get("GPU", 0.0) for bundle in bundles)


def _parallelism(config: GatewayConfig) -> Iterator[ClusterFinding]:
    for name, model, pool, settings in config.each_pool("vllm"):
        if gpus := _gpus(settings):
            args = model.engine_args_of(pool)
            needed = tensor_parallel(args)
            for option in ("pipeline-parallel-size", "data-parallel-size"):
                needed *= int(args.get(option) or 1)
            if needed != gpus:
                text = f"the engine needs {needed} GPUs and the replica asks for {gpus:g}"
                yield ClusterFinding("error", f"{name}/{pool}", text)
        bundles = settings.placement_group_bundles or ()
        if any(bundle.get("GPU", 0) > 1 for bundle in bundles):
            text = "vLLM takes one GPU from each bundle: give one placement_group_bundles entry with GPU: 1 per GPU"
            yield ClusterFinding("error", f"{name}/{pool}", text)


def _fit(name: str, model: ModelConfig, pool: str, settings: PoolConfig) -> Fit:
    args = model.engine_args_of(pool)
    bundles = settings.placement_group_bundles or (_bundle(settings.ray_actor_options),)
    gpu = next((name for name in GPU_MEMORY_GIB if any(bundle.get(name) for bundle in bundles)), None)
    weights, draft = model.weights_of(pool)
    shape = shape_of(str(weights or name))
    drafter = shape_of(str(draft)) if draft else None
    if gpu is None or shape is None or (draft and drafter is None):
        return Fit(name, pool, _gpus(settings), gpu, None)
    return Fit(name, pool, _gpus(settings), gpu, estimate(args, shape, drafter, GPU_MEMORY_GIB[gpu] * GIB))


def _memory(fits: tuple[Fit, ...]) -> Iterator[ClusterFinding]:
    for fit in fits:
        about = f"{fit.model}/{fit.pool}"
        memory = fit.estimate
        if memory is None:
            if fit.gpus:
                text = (
                    "no memory estimate: the size of its model, drafter or GPU is unknown. Run the check where the "
                    f"model folder is, and let the pool request one of {', '.join(GPU_MEMORY_GIB)}"
                )
                yield ClusterFinding("warning", about, text)
        elif not memory.kv_tokens:
            other = memory.reserve + memory.states
            text = (
                f"{(memory.weights + memory.drafter) / GIB:.0f} GiB of weights and {other / GIB:.0f} GiB of other data "
                f"do not fit in {memory.budget / GIB:.0f} GiB: use more or larger GPUs"
            )
            yield ClusterFinding("error", about, text)
        elif not memory.fits:
            text = (
                f"about {memory.kv_tokens:,} tokens of KV cache are left, fewer than max-model-len "
                f"{memory.max_model_len:,}: vLLM would not start. Lower max-model-len, or set kv-cache-dtype: fp8"
            )
            yield ClusterFinding("error", about, text)


def _containers(document: Document, config: GatewayConfig) -> Iterator[ClusterFinding]:
    """Checks model folders and shared memory of the containers on the nodes with GPUs."""
    role = (
        "worker"
        if (document.get("provider") or {}).get("worker_ips") or document.get("available_node_types")
        else "head"
    )
    words = docker_options(document, role)
    if words is None:
        return
    volumes = volumes_of(words)
    shared_gib = shared_memory_gib(words)
    for name, model, pool, _ in config.each_pool("vllm"):
        about = f"{name}/{pool}"
        for path in _unmounted(model.weights_of(pool), volumes):
            text = f"{path} is in no --volume of docker.run_options, so the container can't see it"
            yield ClusterFinding("error", about, text)
        cache_gib = _shared_cache_gib(model.engine_args_of(pool))
        if shared_gib is not None and cache_gib > shared_gib:
            size = f"--shm-size {shared_gib:g}g of docker.{role}_run_options"
            yield ClusterFinding("error", about, f"mm-processor-cache-gb {cache_gib:g} does not fit in {size}")


def _unmounted(models: Iterable[str | None], volumes: Collection[str]) -> list[str]:
    """Returns the folders of a pool's models that are in none of the volumes."""
    folders = [path for path in models if path and path.startswith("/")]
    return [path for path in folders if not any(map(PurePosixPath(path).is_relative_to, volumes))]


def _shared_cache_gib(args: Mapping[str, Any]) -> float:
    """Returns the size of a pool's cache of processed media that is in shared memory."""
    return float(args.get("mm-processor-cache-gb") or 0) if args.get("mm-processor-cache-type") == "shm" else 0.0


def place(demands: Iterable[Demand], nodes: Sequence[Node]) -> Placement:
    """Places the largest replicas first, each where it leaves the fewest GPUs idle, as Ray Serve does with PACK."""
    free = {node.name: dict(node.resources) for node in nodes}
    on: dict[str, list[str]] = {node.name: [] for node in nodes}
    unplaced: list[Demand] = []
    for demand in sorted(demands, key=lambda one: -sum(bundle.get("GPU", 0.0) for bundle in one.bundles)):
        trial = {name: dict(left) for name, left in free.items()}
        chosen = [_take(part, trial) for part in demand.parts]
        if all(chosen):
            free = trial
            for name in dict.fromkeys(filter(None, chosen)):
                on[name].append(demand.name)
        else:
            unplaced.append(demand)
    return Placement({node: tuple(replicas) for node, replicas in on.items()}, tuple(unplaced))


def why_unplaced(demand: Demand, nodes: Sequence[Node]) -> str:
    """Returns the reason in words: a resource that no node has, more than any node has, or all of them taken."""
    for part in demand.parts:
        for name, amount in sorted(part.items()):
            most = max((node.resources.get(name, _unstated(name)) for node in nodes), default=0.0)
            if amount and not most:
                return f"it asks for {amount:g} {name}, and no node offers any"
            if amount > most:
                return f"it asks for {amount:g} {name} on one node, and no node has more than {most:g}"
    return "every node that is large enough is taken by other replicas"


def _take(part: Mapping[str, float], free: dict[str, dict[str, float]]) -> str | None:
    """Takes resources from the best fitting node; returns its name, None if none fits."""
    fitting = [
        name
        for name, left in free.items()
        if all(left.get(resource, _unstated(resource)) >= amount for resource, amount in part.items())
    ]
    if not fitting:
        return None
    best = min(fitting, key=lambda name: (free[name].get("GPU", 0.0) - part.get("GPU", 0.0), name))
    for resource, amount in part.items():
        if resource in free[best]:
            free[best][resource] -= amount
    return best


def _unstated(resource: str) -> float:
    """Returns the limit of a resource that a node does not state: Ray detects CPUs and memory, but nothing else."""
    return float("inf") if resource in ("CPU", "memory") else 0.0

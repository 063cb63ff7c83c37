"""A cluster file, the Serve config it deploys and the hardware it names, held against each other before they run."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from serve.config import layers
from serve.config.gateway import GatewayConfig, args_of
from serve.config.pool import ModelConfig, PoolConfig
from serve.errors import ConfigError
from serve.launch import cluster, cluster_rules
from serve.launch.findings import Finding
from serve.launch.memory import GIB, GPU_MEMORY_GIB, Estimate, estimate, tensor_parallel
from serve.launch.model_shape import shape_of
from serve.launch.placement import Demand, Node, place, why_no_room
from serve.launch.submit import serve_document


@dataclass(frozen=True, slots=True)
class Fit:
    """The memory estimate of one pool; None where model or GPU are not known."""

    model: str
    pool: str
    gpus: float
    gpu: str | None
    estimate: Estimate | None


@dataclass(frozen=True, slots=True)
class Report:
    """What was found, and where everything would go."""

    config_path: Path | None
    config: GatewayConfig | None
    nodes: tuple[Node, ...]
    placement: Mapping[str, tuple[str, ...]]
    fits: tuple[Fit, ...]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether `ray up` would work, placeholders aside."""
        return not any(each.level == "error" for each in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "ok": self.ok,
            "config": str(self.config_path) if self.config_path else None,
            "nodes": [{"name": node.name, "resources": dict(node.resources)} for node in self.nodes],
            "placement": {name: list(each) for name, each in self.placement.items()},
            "memory": [
                {**asdict(fit), "fits": fit.estimate.fits if fit.estimate is not None else None} for fit in self.fits
            ],
            "findings": [asdict(each) for each in self.findings],
        }


def check_file(path: str | Path) -> Report:
    """Check a cluster file; nothing is started and no node is asked.

    Raises:
        ConfigError: The file is no YAML, or a start command in it can't be read.
    """
    document = layers.read(path)
    findings = list(cluster_rules.check(document))
    nodes = cluster.nodes(document)
    remote = cluster.deployed_config(document)
    if remote is None:
        text = "no `specgate deploy --config FILE` among them, so nothing would be served"
        findings.append(Finding("error", "head_start_ray_commands", text))
        return Report(None, None, nodes, {}, (), tuple(findings))
    local = cluster.local_path(document, remote)
    try:
        served = serve_document(local)
        config = GatewayConfig.parse(args_of(served, local), local)
    except ConfigError as error:
        findings.append(Finding("error", str(local), str(error)))
        return Report(local, None, nodes, {}, (), tuple(findings))
    findings += [*_serving(document, served), *_application(config)]
    placement, rooms = _placed(config, nodes)
    fits = tuple(_fit(*each) for each in config.each_pool() if each[3].kind == "vllm")
    findings += [*rooms, *_parallelism(config), *_memory(fits), *_containers(document, config)]
    return Report(local, config, nodes, placement, fits, tuple(findings))


def _serving(document: cluster.Document, served: Mapping[str, Any]) -> Iterator[Finding]:
    http = served.get("http_options") or {}
    provider = document.get("provider") or {}
    if http.get("host", "127.0.0.1") in ("127.0.0.1", "localhost") and provider.get("head_ip") != "127.0.0.1":
        yield Finding("error", "http_options.host", "clients reach the head from elsewhere: say 0.0.0.0")


def _application(config: GatewayConfig) -> Iterator[Finding]:
    """What Ray Serve says to the deployments' options; the application is put together and started nowhere."""
    from serve.app import build

    try:
        build(config)
    except (ValueError, TypeError) as error:
        yield Finding("error", "ray_actor_options", f"Ray Serve rejects a deployment: {error}")


def _placed(config: GatewayConfig, nodes: tuple[Node, ...]) -> tuple[Mapping[str, tuple[str, ...]], list[Finding]]:
    demands = [*_gateway(config), *(each for pool in config.each_pool() for each in _replicas(*pool))]
    placement = place(demands, nodes)
    findings = [Finding("error", each.name, why_no_room(each, nodes)) for each in placement.without_room]
    asked = sum(bundle.get("GPU", 0.0) for each in demands for bundle in each.bundles)
    there = sum(node.resources.get("GPU", 0.0) for node in nodes)
    if asked > there:
        findings.append(Finding("error", "GPUs", f"the pools ask for {asked:g}, the nodes have {there:g}"))
    return placement.on, findings


def _gateway(config: GatewayConfig) -> Iterator[Demand]:
    bundle = _bundle({"num_cpus": 0.5, **config.ray_actor_options})
    yield from (Demand("gateway", (bundle,)) for _ in range(config.replicas))


def _replicas(model: str, _: ModelConfig, pool: str, settings: PoolConfig) -> Iterator[Demand]:
    """As many as autoscaling may start; a pool elsewhere needs nothing here."""
    if settings.kind == "remote":
        return
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


def _parallelism(config: GatewayConfig) -> Iterator[Finding]:
    for name, model, pool, settings in config.each_pool():
        gpus = _gpus(settings)
        if settings.kind == "vllm" and gpus:
            args = model.engine_args_of(pool)
            wanted = tensor_parallel(args)
            for option in ("pipeline-parallel-size", "data-parallel-size"):
                wanted *= int(args.get(option) or 1)
            if wanted != gpus:
                text = f"the engine divides itself among {wanted} GPUs and the replica asks for {gpus:g}"
                yield Finding("error", f"{name}/{pool}", text)
        if settings.kind == "vllm" and any(each.get("GPU", 0) > 1 for each in settings.placement_group_bundles or ()):
            text = "vLLM takes one GPU from a bundle: as many placement_group_bundles with GPU: 1 as it has GPUs"
            yield Finding("error", f"{name}/{pool}", text)


def _fit(name: str, model: ModelConfig, pool: str, settings: PoolConfig) -> Fit:
    args = model.engine_args_of(pool)
    bundles = settings.placement_group_bundles or (_bundle(settings.ray_actor_options),)
    gpu = next((each for each in GPU_MEMORY_GIB if any(bundle.get(each) for bundle in bundles)), None)
    draft = (args.get("speculative-config") or {}).get("model")
    shape, drafter = shape_of(str(args.get("model", name))), shape_of(str(draft)) if draft else None
    if gpu is None or shape is None or (draft and drafter is None):
        return Fit(name, pool, _gpus(settings), gpu, None)
    return Fit(name, pool, _gpus(settings), gpu, estimate(args, shape, drafter, GPU_MEMORY_GIB[gpu] * GIB))


def _memory(fits: tuple[Fit, ...]) -> Iterator[Finding]:
    for fit in fits:
        about, found = f"{fit.model}/{fit.pool}", fit.estimate
        if found is None:
            if fit.gpus:
                text = (
                    "no memory estimate: the sizes of its model, its drafter or its GPU are not known. Run the check "
                    f"where the model folder is, and let the pool ask for one of {', '.join(GPU_MEMORY_GIB)}"
                )
                yield Finding("warning", about, text)
        elif not found.kv_tokens:
            besides = found.reserve + found.states
            text = (
                f"{(found.weights + found.drafter) / GIB:.0f} GiB of weights and {besides / GIB:.0f} GiB besides "
                f"do not fit in {found.budget / GIB:.0f} GiB: use more GPUs, or larger ones"
            )
            yield Finding("error", about, text)
        elif not found.fits:
            text = (
                f"about {found.kv_tokens:,} tokens of KV cache are left, fewer than max-model-len "
                f"{found.max_model_len:,}: vLLM would not start. Lower max-model-len, or say kv-cache-dtype: fp8"
            )
            yield Finding("error", about, text)


def _containers(document: cluster.Document, config: GatewayConfig) -> Iterator[Finding]:
    """Model folders and shared memory of the containers on the nodes with GPUs."""
    role = (
        "worker"
        if (document.get("provider") or {}).get("worker_ips") or document.get("available_node_types")
        else "head"
    )
    words = cluster.docker_options(document, role)
    if words is None:
        return
    mounted = cluster_rules.volumes(words)
    shared = cluster_rules.shared_memory_gib(words)
    for name, model, pool, settings in config.each_pool():
        if settings.kind != "vllm":
            continue
        args = model.engine_args_of(pool)
        for path in filter(None, (args.get("model"), (args.get("speculative-config") or {}).get("model"))):
            if path.startswith("/") and not any(PurePosixPath(path).is_relative_to(each) for each in mounted):
                text = f"{path} lies in no --volume of docker.run_options, so the container can't see it"
                yield Finding("error", f"{name}/{pool}", text)
        cache = float(args.get("mm-processor-cache-gb") or 0) if args.get("mm-processor-cache-type") == "shm" else 0.0
        if shared is not None and cache > shared:
            text = (
                f"mm-processor-cache-gb {cache:g} does not fit in --shm-size {shared:g}g of docker.{role}_run_options"
            )
            yield Finding("error", f"{name}/{pool}", text)

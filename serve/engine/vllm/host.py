"""Hosts vLLM's own OpenAI server inside our process: parses its arguments, starts the engine, builds the application.

Differences between vLLM 0.32 and 0.33 in how the server is started are handled here, such as the move of
`vllm.entrypoints.launchers.cli_args` to `vllm.entrypoints.common.cli_args`.
"""

import argparse
import importlib.util
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import vllm
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.app import build_app
from vllm.platforms import current_platform
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.async_llm import AsyncLLM

from policies.errors import PolicyError
from policies.vllm_options import full_names
from serve.discovery.reading import kept_by_vllm
from serve.engine.vllm import plugin as vllm_plugin
from serve.engine.vllm import scheduler
from serve.errors import ConfigError
from serve.http1.asgi import AsgiApp

log = logging.getLogger("ray.serve.specgate.engine")

_ROOT = Path(__file__).parents[3]
_PATHS = frozenset({"model", "tokenizer", "chat-template", "tool-parser-plugin", "reasoning-parser-plugin"})


@dataclass(frozen=True, slots=True)
class HostedEngine:
    """A running engine with its OpenAI application.

    Attributes:
        facts: In the names of `policies.PoolFacts`.
        kept_tokens: Of prompts, in its cache; None if unknown.
    """

    client: AsyncLLM
    app: AsgiApp
    facts: dict[str, Any]
    kept_tokens: int | None

    def shutdown(self) -> None:
        self.client.shutdown(timeout=5)


def cli_args() -> Any:
    """Returns vLLM's module of its server's arguments.

    Raises:
        ImportError: This vLLM has none where those that we know have it.
    """
    for package in ("launchers", "common"):
        name = f"vllm.entrypoints.{package}.cli_args"
        if importlib.util.find_spec(name) is not None:
            return importlib.import_module(name)
    raise ImportError(f"vLLM {vllm.__version__} has no cli_args")


def parse_args(engine_args: Mapping[str, Any], names: Sequence[str], key: str) -> argparse.Namespace:
    """Turn a pool's `engine_args` into vLLM's own parsed arguments. They are options of vLLM's command line in any
    spelling that `policies.vllm_options.full_names` reads. The engine's responses carry the first of its names.

    Raises:
        ConfigError: vLLM does not know an argument, or rejects its value.
    """
    of_server = cli_args()
    given = _with_paths(_full_names(engine_args))
    if given.get("tool-call-parser"):
        given.setdefault("enable-auto-tool-choice", True)
    if given.get("speculative-config"):
        given.setdefault("per-request-spec-decode-metrics", "summary")
    # In one word: a random key may begin with a dash, and would be taken for an option.
    argv = [*_argv(given), "--served-model-name", *names, f"--api-key={key}"]
    parser = of_server.make_arg_parser(FlexibleArgumentParser(exit_on_error=False, allow_abbrev=False))
    try:
        parsed, unknown = parser.parse_known_args(argv)
        if unknown:
            raise ConfigError(f"vLLM {vllm.__version__} does not know the engine argument {unknown[0]!r}")
        of_server.validate_parsed_serve_args(parsed)
    except (argparse.ArgumentError, SystemExit, TypeError, ValueError) as error:
        raise ConfigError(f"vLLM {vllm.__version__} rejects the engine arguments: {error}") from error
    return cast(argparse.Namespace, parsed)


async def start_engine(args: argparse.Namespace, *, opt_out: bool) -> HostedEngine:
    """Load the model and build vLLM's OpenAI application around it. With `opt_out`, speculation can be switched off per
    request.

    Raises:
        ConfigError: `opt_out` is set for an engine that does not speculate or has a scheduler of its own, a parser is
            unknown, or vLLM would draft from stale tokens.
    """
    vllm_plugin.register()
    load_parsers(args)
    config = AsyncEngineArgs.from_cli_args(args).create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    refuse_stale_drafts(config)
    if opt_out:
        if config.speculative_config is None:
            raise ConfigError("opt_out: true needs a pool with a speculative-config; without one, remove opt_out")
        scheduler.install(config)
    if current_platform.is_cpu() and config.parallel_config.world_size == 1 and _threads_are_ours():
        # On the CPU, vLLM forces a separate worker process to bind its threads. If nothing is bound, the engine core
        # can do the work itself, which saves a third of the start-up time and 0.7 GB per engine.
        config.parallel_config.distributed_executor_backend = "uni"
    client = AsyncLLM.from_vllm_config(
        vllm_config=config,
        usage_context=UsageContext.OPENAI_API_SERVER,
        disable_log_stats=args.disable_log_stats,
        enable_log_requests=args.enable_log_requests,
    )
    tasks = await client.get_supported_tasks()
    app = build_app(args, tasks, client.model_config)
    await init_app_state(client, app.state, args, tasks)
    keep_serving(app)
    kept_tokens = kept_by_vllm(config.cache_config.metrics_info(), config.parallel_config.data_parallel_size)
    return HostedEngine(client, app, facts_of(config), kept_tokens)


def refuse_stale_drafts(config: VllmConfig) -> None:
    """Refuses an engine whose pipeline stages would draft and verify before they have the last sampled token.

    Only vLLM's asynchronous scheduler waits until it has come back through the pipeline. With the synchronous one, text
    is wrong or the engine dies, whether a request opts out or not: a batch is one computation.

    Raises:
        ConfigError: The engine speculates on the V2 runner, in pipeline stages, with synchronous scheduling.
    """
    stages = config.parallel_config.pipeline_parallel_size
    synchronous = not config.scheduler_config.async_scheduling
    if config.speculative_config is not None and stages > 1 and synchronous and config.use_v2_model_runner:
        raise ConfigError(
            f"speculation with pipeline-parallel-size {stages} and synchronous scheduling decodes from stale tokens on"
            " vLLM's V2 runner (vllm#52071): remove no-async-scheduling if it is set, or use tensor parallelism alone,"
            " or remove speculative-config"
        )


def keep_serving(app: Any) -> None:
    """Gives vLLM's error handler a server to stop when the engine has died, in place of its own, which does not run.

    Ours goes with its replica, which Ray replaces when the health check fails; until then it says what happened.
    """
    app.state.server = SimpleNamespace(should_exit=False)


def load_parsers(args: argparse.Namespace) -> None:
    """Load the operator's parser plug-ins, as vLLM's server does before it looks parsers up by name.

    Raises:
        ConfigError: Neither vLLM nor a plug-in has a parser of the configured name.
    """
    if args.tool_parser_plugin:
        ToolParserManager.import_tool_parser(args.tool_parser_plugin)
    if args.reasoning_parser_plugin:
        ReasoningParserManager.import_reasoning_parser(args.reasoning_parser_plugin)
    for option, name, manager in (
        ("tool-call-parser", args.tool_call_parser, ToolParserManager),
        ("reasoning-parser", args.reasoning_parser or None, ReasoningParserManager),
    ):
        registered = set(manager.list_registered())
        if name and name not in registered:
            raise ConfigError(f"unknown {option} {name!r}; known: {', '.join(sorted(registered))}")


def _threads_are_ours() -> bool:
    return os.environ.get("VLLM_CPU_OMP_THREADS_BIND") == "nobind" and "OMP_NUM_THREADS" in os.environ


def facts_of(config: VllmConfig) -> dict[str, Any]:
    """Returns the facts of a running engine; the policy trusts them over the configuration.

    `max_model_len` is for `GET /v1/models` only.
    """
    speculative = config.speculative_config
    return {
        "engine": "vllm",
        "engine_version": vllm.__version__,
        "method": speculative.method if speculative else None,
        "drafter": speculative.model if speculative else None,
        "num_speculative_tokens": speculative.num_speculative_tokens if speculative else None,
        "prefix_caching": bool(config.cache_config.enable_prefix_caching),
        "async_scheduling": bool(config.scheduler_config.async_scheduling),
        "hybrid": bool(config.model_config.is_hybrid),
        "runner": "v2" if getattr(config, "use_v2_model_runner", False) else "v1",
        "max_model_len": config.model_config.max_model_len,
    }


def _full_names(engine_args: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options as the policy reads them: engine and policy must not differ in what they mean."""
    try:
        return {name.replace("_", "-"): value for name, value in full_names(engine_args).items()}
    except PolicyError as error:
        raise ConfigError(str(error)) from error


def _with_paths(engine_args: Mapping[str, Any]) -> dict[str, Any]:
    """Make paths into this checkout absolute: a replica has another working directory than the config's author."""

    def absolute(value: Any) -> Any:
        shipped = _ROOT / value if isinstance(value, str) else None
        return str(shipped) if shipped and shipped.exists() else value

    given = {name: absolute(value) if name in _PATHS else value for name, value in engine_args.items()}
    if isinstance(speculative := given.get("speculative-config"), dict) and "model" in speculative:
        given["speculative-config"] = speculative | {"model": absolute(speculative["model"])}
    return given


def _argv(engine_args: Mapping[str, Any]) -> list[str]:
    argv: list[str] = []
    for name, value in engine_args.items():
        match value:
            case None:
                continue
            case True:
                argv.append(f"--{name}")
            case False:
                argv.append(f"--no-{name}")
            case dict():
                argv += [f"--{name}", json.dumps(value)]
            case list() | tuple():
                argv += [f"--{name}", *map(str, value)]
            case _:
                argv += [f"--{name}", str(value)]
    return argv

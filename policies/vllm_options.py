"""vLLM's options by their full names: which of them tell facts, and how to read the other ways to write them."""

import json
from collections.abc import Mapping
from typing import Any

from policies.errors import PolicyError

READ = frozenset(
    """
    speculative_config spec_method spec_model spec_tokens model quantization tool_call_parser reasoning_parser
    structured_outputs_config enable_prefix_caching async_scheduling kv_cache_dtype kv_transfer_config
    kv_offloading_size kv_offloading_backend pipeline_parallel_size data_parallel_size enable_expert_parallel
    all2all_backend tokenizer_mode enable_dbo ubatch_size distributed_executor_backend watermark_config
    attention_config tool_strict_level tensor_parallel_size decode_context_parallel_size enable_lora compilation_config
    max_model_len enable_prompt_embeds
    """.split()  # noqa: SIM905 - 300 quoted names would be a wall
)
"""Options from which `policies.engine_args` derives facts or settings that advisories name."""
WITHOUT_EFFECT = frozenset(
    """
    additional_config aggregate_engine_logging allow_credentials allow_deprecated_quantization allowed_headers
    allowed_local_media_path allowed_media_domains allowed_methods allowed_origins
    anthropic_disabled_thinking_effort api_key api_server_count attention_backend aux_output_config block_size
    chat_template chat_template_content_format code_revision cohere_format cohere_is_reasoning_model
    collect_detailed_traces config_format convert cp_kv_cache_interleave_size
    cpu_distributed_timeout_seconds cpu_offload_gb cpu_offload_params cudagraph_capture_sizes cudagraph_metrics
    custom_histogram_buckets data_parallel_address data_parallel_backend data_parallel_external_lb
    data_parallel_hybrid_lb data_parallel_multi_port_external_lb data_parallel_rank data_parallel_rpc_port
    data_parallel_size_local data_parallel_start_rank data_parallel_supervisor_port dbo_decode_token_threshold
    dbo_prefill_token_threshold dcp_comm_backend dcp_kv_cache_interleave_size dcp_q_replicate
    default_chat_template_kwargs default_mm_loras device_ids
    device_memory_utilization diffusion_config disable_access_log_for_endpoints disable_cascade_attn
    disable_chunked_mm_input disable_custom_all_reduce disable_fastapi_docs disable_hybrid_kv_cache_manager
    disable_log_stats disable_nccl_for_dp_synchronization disable_sliding_window disable_uvicorn_access_log
    distributed_timeout_seconds download_dir dp_supervisor_probe_failure_threshold
    dp_supervisor_probe_interval_s dp_supervisor_probe_timeout_s dp_sync_interval dtype ec_manager_config
    ec_transfer_config elastic_ep_max_dp_size enable_auto_tool_choice enable_batch_sharded_sampling
    enable_chunked_prefill enable_cumem_allocator enable_elastic_ep enable_ep_weight_filter enable_eplb
    enable_fault_tolerance enable_flash_late_interaction enable_flashinfer_autotune enable_force_include_usage
    enable_hc_sp enable_layerwise_nvtx_tracing enable_log_deltas enable_log_outputs enable_log_requests
    enable_logging_iteration_details enable_mamba_cache_stochastic_rounding
    enable_mamba_shared_prefix_checkpoint enable_mfu_metrics enable_mixed_moe_lora_format enable_mm_embeds
    enable_moe_shared_loras enable_nccl_comm_suspend enable_offline_docs enable_per_request_metrics
    enable_prompt_tokens_details enable_request_id_headers enable_return_routed_experts
    enable_scale_out enable_server_load_tracking enable_shm_tensor_arena enable_sleep_mode enable_ssl_refresh
    enable_tokenizer_info_endpoint enable_tower_connector_lora enable_trace_replay enforce_eager engram_config
    eplb_config exclude_tools_when_tool_choice_none expert_placement_strategy fail_on_environ_validation
    fault_tolerance_config fingerprint_mode fingerprint_value fully_sharded_loras gdn_prefill_backend
    generation_config gpu_memory_utilization grpc grpc_port h11_max_header_count h11_max_incomplete_event_size
    headless help hf_config_path hf_overrides hf_token host ignore_patterns interleave_mm_strings
    io_processor_plugin ir_op_priority jit_monitor_mode jit_monitor_verbose kda_decode_backend
    kda_prefill_backend kernel_config kv_cache_dtype_skip_layers kv_cache_memory_bytes kv_cache_metrics
    kv_cache_metrics_sample kv_events_config kv_sharing_fast_prefill language_model_only limit_mm_per_prompt
    linear_backend load_format log_config_file log_error_stack log_level logging_config logits_processors
    logprobs_mode long_prefill_token_threshold long_prefill_token_threshold_adaptive lora_dtype lora_modules
    lora_target_modules mamba_backend mamba_block_size mamba_cache_dtype mamba_cache_mode
    mamba_cache_philox_rounds mamba_ssm_cache_dtype mamba_ssu_algorithm master_addr master_port max_cpu_loras
    max_cudagraph_capture_size max_log_len max_logprobs max_lora_cls_labels max_lora_rank max_loras
    max_num_active_seqs max_num_batched_tokens max_num_queued_reqs max_num_queued_tokens
    max_num_scheduled_tokens max_num_seqs max_parallel_loading_workers media_io_kwargs middleware
    mm_device_do_normalize mm_encoder_attn_backend mm_encoder_attn_dtype mm_encoder_fp8_scale_path
    mm_encoder_fp8_scale_save_margin mm_encoder_fp8_scale_save_path mm_encoder_only mm_encoder_tp_mode
    mm_hasher_algorithm mm_ipc_gpu_memory_gb mm_processor_cache_gb mm_processor_cache_type mm_processor_device
    mm_processor_kwargs mm_shm_cache_max_object_size_mb mm_tensor_ipc model_class_overrides model_impl
    model_loader_extra_config moe_backend nnodes node_rank num_gpu_blocks_override numa_bind numa_bind_cpus
    numa_bind_nodes offload_backend offload_group_size offload_num_in_group offload_params offload_prefetch_step
    optimization_level otlp_traces_endpoint override_generation_config per_request_spec_decode_metrics
    performance_mode pooler_config port prefill_context_parallel_size prefill_schedule_interval
    prefix_cache_retention_interval prefix_caching_hash_algo prefix_match_unit profiler_config
    pt_load_map_location quantization_config ray_workers_use_nsight reasoning_config reasoning_parser_plugin
    renderer_num_workers replayssm_buffer_len response_role return_sampling_mask return_tokens_as_token_ids
    revision root_path runner safetensors_load_strategy safetensors_prefetch_block_size
    safetensors_prefetch_num_threads scheduler_cls scheduler_reserve_full_isl scheduling_policy seed
    served_model_name show_hidden_metrics_for_version shutdown_timeout skip_mm_profiling skip_tokenizer_init
    sleep_mode_offload_cudagraph sleep_preserve_parameter_names sparse_indexer_topk_backend
    specialize_active_lora sse_keep_alive_interval ssl_ca_certs ssl_cert_reqs ssl_certfile ssl_ciphers
    ssl_keyfile stream_interval swa_bounded_replay tokenizer tokenizer_revision tokens_only
    tool_parser_plugin tool_server trust_remote_code trust_request_chat_template trust_request_mm_kwargs uds
    use_fp64_gumbel use_replayssm use_tqdm_on_load uvicorn_log_level video_pruning_method video_pruning_rate
    watermark weight_transfer_config worker_cls worker_extension_cls monokernel reasoning_effort_map
    sleep_mode_backend watchdog_config
    """.split()  # noqa: SIM905 - 300 quoted names would be a wall
)
"""All other options of vLLM 0.32 and 0.33; no fact depends on them."""
SINCE_0_33 = frozenset({"monokernel", "reasoning_effort_map", "sleep_mode_backend", "watchdog_config"})
"""Those among them that vLLM 0.32 does not have."""
KNOWN = READ | WITHOUT_EFFECT
# Each name with what it stands for, and whether it negates that: from vLLM 0.33 on, `disable_NAME` is the negation of
# `enable_NAME`, and the other way round.
_NAMES = {
    other + name.removeprefix(prefix): (name, True)
    for prefix, other in (("disable_", "enable_"), ("enable_", "disable_"))
    for name in KNOWN
    if name.startswith(prefix)
} | {name: (name, False) for name in KNOWN}
_SHORT = {
    "ac": "attention_config", "asc": "api_server_count", "cc": "compilation_config", "dc": "diffusion_config",
    "dcp": "decode_context_parallel_size", "dp": "data_parallel_size", "dpa": "data_parallel_address",
    "dpb": "data_parallel_backend", "dpe": "data_parallel_external_lb", "dph": "data_parallel_hybrid_lb",
    "dpl": "data_parallel_size_local", "dpm": "data_parallel_multi_port_external_lb", "dpn": "data_parallel_rank",
    "dpp": "data_parallel_rpc_port", "dpr": "data_parallel_start_rank", "ep": "enable_expert_parallel", "n": "nnodes",
    "pcp": "prefill_context_parallel_size", "pp": "pipeline_parallel_size", "q": "quantization", "r": "node_rank",
    "sc": "speculative_config", "tp": "tensor_parallel_size",
}  # fmt: skip
_SPECULATIVE = {"spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens"}
_MAPPINGS = (
    "speculative_config", "structured_outputs_config", "kv_transfer_config", "attention_config", "compilation_config",
)  # fmt: skip


def full_names(args: Mapping[str, Any]) -> dict[str, Any]:
    """Returns vLLM's options in one spelling: the full name with underscores, and mappings as mappings.

    Args:
        args: With dashes or underscores, under their full or short names (`tp`, `-sc`), negated (`no-NAME`) or member
            by member (`NAME.member`). Later ones outweigh earlier ones, members the mapping that they belong to.

    Raises:
        PolicyError: An option is an abbreviation, names a file of further options, or is no mapping where it should be
            one.
    """
    named: dict[str, Any] = {}
    members: list[tuple[str, list[str], Any]] = []
    for key, value in args.items():
        head, *path = str(key).split(".")
        name = head.replace("-", "_").lstrip("_")
        name = _SHORT.get(name, name)
        _check(name)
        name, negated = own_name(name)
        if path:
            members.append((name, [part.replace("-", "_") for part in path], _parsed(value)))
        elif negated and value is not None:
            named[name] = str(value).lower() == "false"
        else:
            named[name] = value
    given = (name for name in _MAPPINGS if named.get(name) is not None)
    for name in dict.fromkeys((*given, *(name for name, _, _ in members))):
        named[name] = _mapping(name, named.get(name))
    for name, path, value in members:
        _put(named[name], path, value)
    return _with_speculation(named)


def own_name(name: str) -> tuple[str, bool]:
    """Returns the option that a name stands for, and whether it negates it, as `no_NAME` does."""
    positive = name.removeprefix("no_")
    own, negated = _NAMES.get(positive, (positive, False))
    return own, negated != (positive != name)


def known_option(name: str) -> str | None:
    """Returns the option that an abbreviation on a command line stands for; None if it is none, or several. The whole
    name or a short one, with underscores, stands for itself.
    """
    positive = name.removeprefix("no_")
    if positive == "config" or positive in _NAMES or positive in _SHORT or positive in _SPECULATIVE:
        return name
    full = [option for option in _NAMES if option.startswith(positive)]
    return name.replace(positive, full[0]) if len(full) == 1 else None


def _check(name: str) -> None:
    """Refuses what vLLM's own parser would take for another option, or read from elsewhere."""
    if name == "config":
        raise PolicyError("engine_args: the options in the file of `config` are not read; write them here, one by one")
    positive = name.removeprefix("no_")
    if positive in _NAMES:
        return
    if full := sorted(option.replace("_", "-") for option in _NAMES if option.startswith(positive)):
        raise PolicyError(
            f"engine_args: `{name.replace('_', '-')}` is an abbreviation; write the whole name: {' or '.join(full)}"
        )


def _mapping(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise PolicyError(f"engine_args: {name.replace('_', '-')} is not JSON: {error}") from error
    if name == "compilation_config" and isinstance(value, int):
        return {"mode": value}  # what older engines called its level
    if value is not None and not isinstance(value, Mapping):
        raise PolicyError(f"engine_args: {name.replace('_', '-')} is a mapping, not {value!r}")
    return dict(value or {})


def _parsed(value: Any) -> Any:
    """Returns a member's value as vLLM reads it from a command line: as JSON, if it is any."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _put(mapping: dict[str, Any], path: list[str], value: Any) -> None:
    *parents, last = path
    for parent in parents:
        inner = mapping.get(parent)
        mapping[parent] = dict(inner) if isinstance(inner, Mapping) else {}
        mapping = mapping[parent]
    mapping[last] = value


def _with_speculation(named: dict[str, Any]) -> dict[str, Any]:
    """Returns the options with `spec_method` and its siblings as members of `speculative_config`."""
    single = {member: named.pop(flag) for flag, member in _SPECULATIVE.items() if named.get(flag) is not None}
    named = {name: value for name, value in named.items() if name not in _SPECULATIVE}
    if not single:
        return named
    given = named.get("speculative_config") or {}
    spec = {str(member).replace("-", "_"): value for member, value in given.items()}
    if twice := sorted(set(single) & set(spec)):
        raise PolicyError(f"engine_args: {', '.join(twice)} of speculative-config is given twice, with spec-* as well")
    return {**named, "speculative_config": {**spec, **single}}

"""`specgate connect`: prints the lines that point an agent or a library at this gateway."""

import json
import os
from collections.abc import Mapping
from typing import Annotated

import typer

from serve.cli.admin import key_headers
from serve.errors import ConfigError

_LOCAL = "http://127.0.0.1:8000"
_TIMEOUT_S = 10.0
_USUAL_LENGTH = 262144  # for an agent that wants one where the gateway tells none
_LONGEST_ANSWER = 32768

# By agent: what stands before the lines, and the lines. What of it was run: docs/how-to/connect-an-agent.md.
_AGENTS: Mapping[str, tuple[str, str]] = {
    "codex": (
        "In ~/.codex/config.toml, with SPECGATE_KEY set to your key, or to any text where none is asked for:",
        """model = "{model}"
model_provider = "specgate"
web_search = "disabled"
{codex_window}
[model_providers.specgate]
name = "specgate"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "SPECGATE_KEY"
""",
    ),
    "claude-code": (
        "In the shell. With the alias `claude-*` on a model, the four names of models are not needed:",
        """unset ANTHROPIC_API_KEY
export ANTHROPIC_BASE_URL={url}
export ANTHROPIC_AUTH_TOKEN="{key}"
export ANTHROPIC_MODEL={model}
export ANTHROPIC_DEFAULT_OPUS_MODEL={model}
export ANTHROPIC_DEFAULT_SONNET_MODEL={model}
export ANTHROPIC_DEFAULT_HAIKU_MODEL={model}
""",
    ),
    "opencode": (
        "In opencode.json, for OpenCode 1:",
        """{{
  "$schema": "https://opencode.ai/config.json",
  "provider": {{
    "specgate": {{
      "npm": "@ai-sdk/openai-compatible",
      "name": "specgate",
      "options": {{"baseURL": "{url}/v1", "apiKey": "{{env:SPECGATE_KEY}}"}},
      "models": {{"{model}": {{"name": "{model}"{opencode_limit}}}}}
    }}
  }},
  "model": "specgate/{model}"
}}
""",
    ),
    "opencode2": (
        "In opencode.json, for OpenCode 2, with SPECGATE_KEY set to your key, or to any text where none is asked for:",
        """{{
  "$schema": "https://opencode.ai/config.json",
  "providers": {{
    "specgate": {{
      "name": "specgate",
      "env": ["SPECGATE_KEY"],
      "package": "@opencode/ai/providers/openai-compatible",
      "settings": {{"baseURL": "{url}/v1"}},
      "models": {{"{model}": {{"name": "{model}"{opencode_limit}}}}}
    }}
  }},
  "model": "specgate/{model}"
}}
""",
    ),
    "qwen-code": (
        "In the shell:",
        """export OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY="{key}" OPENAI_MODEL={model}
qwen --auth-type openai
""",
    ),
    "cline": (
        "In the shell:",
        """cline auth -p openai-compatible -b {url}/v1 -k "{key}" -m {model}
cline -P openai-compatible -m {model} "Read README.md"
""",
    ),
    "kimi": (
        "In ~/.kimi/config.toml; the environment variable OPENAI_API_KEY outweighs `api_key`:",
        """default_model = "{model}"

[models."{model}"]
provider = "specgate"
model = "{model}"
max_context_size = {length}

[providers.specgate]
type = "openai_legacy"
base_url = "{url}/v1"
api_key = "none"
reasoning_key = "reasoning"  # as vLLM names it; `reasoning_content` for engines that do so
""",
    ),
    "openai": (
        "In the shell, for what is built on the OpenAI SDK; the model is {model}:",
        """export OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY="{key}"
""",
    ),
    "anthropic": (
        "In the shell, for what is built on the Anthropic SDK; the model is {model}:",
        """export ANTHROPIC_BASE_URL={url} ANTHROPIC_API_KEY="{key}"
""",
    ),
    "curl": (
        "To try it:",
        """curl {url}/v1/chat/completions -H "authorization: Bearer {key}" -H 'content-type: application/json' \\
  -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
""",
    ),
}


def connect(
    agent: Annotated[str | None, typer.Argument(help=f"One of: {', '.join(_AGENTS)}.")] = None,
    url: Annotated[str, typer.Option("--url", "-u", envvar="SPECGATE_URL", help="Base URL of the gateway.")] = _LOCAL,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Its name. [default: the first that the gateway lists]")
    ] = None,
) -> None:
    """Print the lines that point an agent at a gateway.

    If the gateway asks for keys, set SPECGATE_KEY: the lines name the variable, never the key.
    """
    if agent is None or agent not in _AGENTS:
        problem = "say for which agent" if agent is None else f"there are no lines for {agent!r}, but for"
        raise ConfigError(f"{problem}: {', '.join(_AGENTS)}")
    base = url.rstrip("/").removesuffix("/v1")
    key = "$SPECGATE_KEY" if os.environ.get("SPECGATE_KEY") else "none"
    name, length = (model, None) if model else _first_model(base)
    where, lines = _AGENTS[agent]
    limit = {"context": length, "output": min(length // 4, _LONGEST_ANSWER)} if length else None
    values = {
        "url": base,
        "model": name,
        "key": key,
        "length": length or _USUAL_LENGTH,
        "codex_window": f"model_context_window = {length}\n" if length else "",
        "opencode_limit": f', "limit": {json.dumps(limit)}' if limit else "",
    }
    typer.echo(f"# {where.format_map(values)}\n{lines.format_map(values)}", nl=False)


def _first_model(base: str) -> tuple[str, int | None]:
    """Returns the first model that a gateway lists, and the tokens of its longest request if it says them.

    Raises:
        ConfigError: It does not answer, or lists none, or SPECGATE_KEY holds no key.
    """
    import httpx  # only here, as a gateway that starts needs no such client

    cure = "give the model's name with --model, or the gateway's address with --url"
    try:
        response = httpx.get(f"{base}/v1/models", headers=key_headers(), timeout=_TIMEOUT_S)
        if response.status_code == httpx.codes.UNAUTHORIZED:
            raise ConfigError(f"the gateway at {base} asks for a key: set SPECGATE_KEY to yours")
        first = response.json()["data"][0]
        length = first.get("max_model_len")
        return str(first["id"]), length if isinstance(length, int) else None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConfigError(f"no gateway answers at {base}: {error}; {cure}") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"{base}/v1/models lists no model; {cure}") from error

"""`specgate connect`: prints the lines that point an agent or a library at this gateway."""

import os
from collections.abc import Mapping
from typing import Annotated

import typer

from serve.errors import ConfigError

_LOCAL = "http://127.0.0.1:8000"
_TIMEOUT_S = 10.0

# By agent: what stands before the lines, and the lines. What of it was run: docs/how-to/connect-an-agent.md.
_AGENTS: Mapping[str, tuple[str, str]] = {
    "codex": (
        "In ~/.codex/config.toml, with SPECGATE_KEY set to your key, or to any text where none is asked for:",
        """model = "{model}"
model_provider = "specgate"
web_search = "disabled"

[model_providers.specgate]
name = "specgate"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "SPECGATE_KEY"
""",
    ),
    "claude-code": (
        "In the shell. With the alias `claude-*` on a model, the three names of models are not needed:",
        """export ANTHROPIC_BASE_URL={url}
export ANTHROPIC_API_KEY="{key}"
export ANTHROPIC_MODEL={model}
export ANTHROPIC_SMALL_FAST_MODEL={model}
export ANTHROPIC_DEFAULT_HAIKU_MODEL={model}
""",
    ),
    "opencode": (
        "In opencode.json:",
        """{{
  "$schema": "https://opencode.ai/config.json",
  "provider": {{
    "specgate": {{
      "npm": "@ai-sdk/openai-compatible",
      "name": "specgate",
      "options": {{"baseURL": "{url}/v1", "apiKey": "{{env:SPECGATE_KEY}}"}},
      "models": {{"{model}": {{"name": "{model}"}}}}
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
        """cline auth -p openai -b {url}/v1 -k "{key}" -m {model}
cline -P openai-compatible -m {model} "Read README.md"
""",
    ),
    "kimi": (
        "In ~/.kimi/config.toml:",
        """default_model = "{model}"

[models."{model}"]
provider = "specgate"
model = "{model}"
max_context_size = 262144

[providers.specgate]
type = "openai_legacy"
base_url = "{url}/v1"
api_key = "none"
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
    agent: Annotated[str, typer.Argument(help=f"One of: {', '.join(_AGENTS)}.")],
    url: Annotated[str, typer.Option("--url", "-u", envvar="SPECGATE_URL", help="Base URL of the gateway.")] = _LOCAL,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Its name. [default: the first that the gateway lists]")
    ] = None,
) -> None:
    """Print the lines that point an agent at a gateway.

    If the gateway asks for keys, set SPECGATE_KEY: the lines name the variable, never the key.
    """
    if agent not in _AGENTS:
        raise ConfigError(f"there are no lines for {agent!r}, but for: {', '.join(_AGENTS)}")
    base = url.rstrip("/").removesuffix("/v1")
    key = "$SPECGATE_KEY" if os.environ.get("SPECGATE_KEY") else "none"
    name = model or _first_model(base)
    where, lines = _AGENTS[agent]
    values = {"url": base, "model": name, "key": key}
    typer.echo(f"# {where.format_map(values)}\n{lines.format_map(values)}", nl=False)


def _first_model(base: str) -> str:
    """Returns the first model that a gateway lists.

    Raises:
        ConfigError: It does not answer, or lists none.
    """
    import httpx  # only here, as a gateway that starts needs no such client

    key = os.environ.get("SPECGATE_KEY", "").strip()
    headers = {"authorization": f"Bearer {key}"} if key.isascii() and key.isprintable() and key else {}
    cure = "give the model's name with --model, or the gateway's address with --url"
    try:
        response = httpx.get(f"{base}/v1/models", headers=headers, timeout=_TIMEOUT_S)
        if response.status_code == httpx.codes.UNAUTHORIZED:
            raise ConfigError(f"the gateway at {base} asks for a key: set SPECGATE_KEY to yours")
        listed = response.json()["data"]
        return str(listed[0]["id"])
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConfigError(f"no gateway answers at {base}: {error}; {cure}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"{base}/v1/models lists no model; {cure}") from error

"""Whether the model folders of a configuration are here and complete."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from serve.cli.fetch import Folder, fill, folders
from serve.config.gateway import GatewayConfig
from serve.errors import ConfigError

ROOT = Path(__file__).parents[3]


@pytest.fixture
def kimi(tmp_path: Path) -> Callable[[], Folder]:
    """The state of the folder of Kimi-K2.6, which lies in the test's own place."""
    folder = tmp_path / "Kimi-K2.6"
    pools = {"standard": {}, "speculative": {"engine_args": {"speculative-config": {"method": "ngram"}}}}
    model = {"family": "kimi-k2", "grammar": "kimi_k2", "engine_args": {"model": str(folder)}, "pools": pools}
    config = GatewayConfig.parse({"models": {"k": model}})

    def state() -> Folder:
        (found,) = folders(config)
        return found

    return state


def write(folder: Path, *shards: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    for shard in shards:
        (folder / shard).write_bytes(b"weights")


def test_what_an_interrupted_download_left_out_is_named(kimi: Callable[[], Folder], tmp_path: Path) -> None:
    assert kimi().missing == ("the folder",)
    write(tmp_path / "Kimi-K2.6")
    assert kimi().missing == ("*.safetensors",)
    index = {"weight_map": {"a": "1.safetensors", "b": "2.safetensors", "c": "2.safetensors"}}
    (tmp_path / "Kimi-K2.6" / "model.safetensors.index.json").write_text(json.dumps(index))
    write(tmp_path / "Kimi-K2.6", "1.safetensors")
    assert kimi().missing == ("2.safetensors",)
    write(tmp_path / "Kimi-K2.6", "2.safetensors")
    assert kimi().missing == ()
    assert kimi().used_by == ("k/standard", "k/speculative")


def test_an_index_that_can_t_be_read_is_told(kimi: Callable[[], Folder], tmp_path: Path) -> None:
    write(tmp_path / "Kimi-K2.6", "1.safetensors")
    (tmp_path / "Kimi-K2.6" / "model.safetensors.index.json").write_text("{")
    assert kimi().missing == ("model.safetensors.index.json (it can't be read)",)


def test_draft_models_are_looked_for_too() -> None:
    config = GatewayConfig.load(ROOT / "deploy" / "h20-kimi-qwen.yaml")
    assert {each.path: each.hub for each in folders(config)} == {
        "/model_files/Kimi-K2.6": "moonshotai/Kimi-K2.6",
        "/model_files/kimi-k2.6-eagle3-mla": "lightseekorg/kimi-k2.6-eagle3-mla",
        "/model_files/Qwen3.6-35B-A3B-FP8": "Qwen/Qwen3.6-35B-A3B-FP8",
        "/model_files/Qwen3-Coder-30B-A3B-Instruct-FP8": "Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8",
    }


def test_a_download_fills_the_folder_under_its_hub_name(
    kimi: Callable[[], Folder], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = ModuleType("huggingface_hub")
    calls = []
    hub.snapshot_download = lambda name, local_dir: calls.append((name, local_dir))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    fill(kimi())
    assert calls == [("moonshotai/Kimi-K2.6", kimi().path)]


def test_a_download_that_can_t_be_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(name: str, local_dir: str) -> None:
        raise OSError("no route to host")

    unknown = Folder("/model_files/own", ("a/b",), ("the folder",), None, 0.0)
    with pytest.raises(ConfigError, match="put the files there yourself"):
        fill(unknown)
    hub = ModuleType("huggingface_hub")
    hub.snapshot_download = unreachable  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    with pytest.raises(ConfigError, match="org/x can't be downloaded: no route to host"):
        fill(Folder("/model_files/x", ("a/b",), ("the folder",), "org/x", 0.0))

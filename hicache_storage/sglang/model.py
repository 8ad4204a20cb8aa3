"""The model that is served: its name, and a revision that no other weights have."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hicache_backends.errors import ConfigError
from hicache_storage.config import Config
from hicache_storage.config.model_files import ModelFacts, read_model, weights_revision
from hicache_storage.sglang.engine import Engine


@dataclass(frozen=True)
class Model:
    """`kv_heads`: of the whole model, 0 if unknown. `draft_revision`: "" without a draft model,
    None where there is one whose files can't be found."""

    name: str
    revision: str
    kv_heads: int
    draft_revision: str | None


def model_of(config: Config, engine: Engine, served_name: str | None) -> Model:
    """The model that is served. Raises ConfigError where its name or revision is unknown."""
    identity = config.identity
    facts = read_model(identity.model_file) if identity.model_file else None
    path = str(engine.arg("model_path") or served_name or "")
    if facts is None or not facts.weight_files:
        facts = _facts(path, engine.arg("revision")) or facts
    name = identity.model or _name(served_name or path)
    if not name:
        raise ConfigError("identity.model is missing: SGLang doesn't say what model it serves")
    revision = identity.revision or _known_revision(facts, engine)
    if not revision:
        raise ConfigError(
            f"identity.revision is missing: the files of the model {path!r} aren't found here, so "
            "that its pages could be mixed up with those of other weights"
        )
    heads = facts.kv_heads if facts else 0
    return Model(name, revision, heads, _draft_revision(config, engine))


def model_files(path: str, revision: str | None) -> Path | None:
    """Where the files of a model lie: a path itself, or a download of the Hugging Face hub."""
    if not path:
        return None
    place = Path(path).expanduser()
    if place.exists():
        return place
    try:
        from huggingface_hub import snapshot_download  # SGLang has brought it along

        return Path(snapshot_download(path, revision=revision, local_files_only=True))
    except Exception:
        return None


def _facts(path: str, revision: Any) -> ModelFacts | None:
    files = model_files(path, revision)
    if files is None:
        return None
    if files.is_file():
        return ModelFacts(files.stem, weights_revision([files]), "", {}, 1)
    return read_model(str(files)) if (files / "config.json").is_file() else None


def _known_revision(facts: ModelFacts | None, engine: Engine) -> str:
    """Empty where only a model's config is at hand: models of other weights have the same."""
    made_up = engine.arg("load_format") == "dummy"  # their config is all there is to them
    return facts.revision if facts and (facts.weight_files or made_up) else ""


def _name(served: str) -> str:
    """The served name; of a path its last part, so that hosts may keep it in different places."""
    place = Path(served).expanduser()
    return place.resolve().name if served and place.exists() else served


def _draft_revision(config: Config, engine: Engine) -> str | None:
    if config.identity.draft_revision:
        return config.identity.draft_revision
    path = engine.arg("speculative_draft_model_path")
    if not path or path == engine.arg("model_path"):
        return ""
    facts = _facts(str(path), engine.arg("speculative_draft_model_revision"))
    return _known_revision(facts, engine) or None

"""Models by name, and configurations by path. A model file holds the published config.json, its address and
the published number of parameters.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opentrn.errors import ConfigurationError

_MODELS = Path(__file__).with_name("models")
# Fields of text models that PyTorch or transformers would only trip over deep inside.
SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
    "head_dim",
    "n_embd",
    "n_layer",
    "n_head",
)


@dataclass(frozen=True)
class Model:
    """A configuration and where it comes from. parameters: published count, None where unknown."""

    name: str
    config: dict[str, Any]
    source: str
    parameters: int | None = None
    note: str = ""


def names() -> list[str]:
    """All names of the catalogue."""
    return sorted(path.stem for path in _MODELS.glob("*.json"))


def find(name: str) -> Model:
    """The model of a name or of a config.json. ConfigurationError for unknown names and contradictory
    files."""
    path = Path(name)
    if path.suffix == ".json" or path.is_dir() or ("/" in name and path.exists()):
        return _from_file(path / "config.json" if path.is_dir() else path)
    wanted = name.lower().rpartition("/")[2]
    for entry in sorted(_MODELS.glob("*.json")):
        data = json.loads(entry.read_text())
        if wanted == data["name"] or wanted in data["aliases"]:
            return Model(
                data["name"], data["config"], data["source"], data["parameters"], data["parameters_note"]
            )
    close = difflib.get_close_matches(wanted, names(), n=3, cutoff=0.4)
    raise ConfigurationError(
        f"there is no model '{name}' in the catalogue",
        cure=("did you mean " + ", ".join(close) + "? Otherwise " if close else "")
        + "give the path of a Hugging Face config.json; the names are: "
        + ", ".join(names()),
    )


def _from_file(path: Path) -> Model:
    try:
        config = json.loads(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"cannot read '{path}': {error.strerror}", cure="check the path") from error
    except ValueError as error:
        raise ConfigurationError(
            f"'{path}' is not JSON: {error}", cure="give a Hugging Face config.json"
        ) from error
    if not isinstance(config, dict):
        raise ConfigurationError(f"'{path}' holds no JSON object", cure="give a Hugging Face config.json")
    check(config, str(path))
    return Model(path.parent.name or path.stem, config, str(path.absolute()))


def check(config: dict[str, Any], where: str) -> None:
    """ConfigurationError for missing, impossible and contradictory fields."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or not kind:
        raise ConfigurationError(
            "the configuration has no field 'model_type'",
            where=where,
            cure='every config.json of Hugging Face has one, e.g. "model_type": "qwen3"',
        )
    for name in SIZES:
        value = config.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ConfigurationError(
                f"{name} is {value!r}", where=where, cure="give a whole number of at least 1"
            )
    heads, groups = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if heads and groups and heads % groups:
        raise ConfigurationError(
            f"num_attention_heads = {heads} is no multiple of num_key_value_heads = {groups}",
            where=where,
            cure="each key-value head serves the same number of query heads",
        )
    width = config.get("hidden_size")
    if (
        width
        and heads
        and not config.get("head_dim")
        and not config.get("qk_rope_head_dim")
        and width % heads
    ):
        raise ConfigurationError(
            f"hidden_size = {width} is no multiple of num_attention_heads = {heads}, and head_dim is missing",
            where=where,
            cure="correct one of them, or give head_dim",
        )
    experts = next(
        (config[n] for n in ("num_experts", "num_local_experts", "n_routed_experts") if config.get(n)), None
    )
    chosen = config.get("num_experts_per_tok")
    if experts and chosen and chosen > experts:
        raise ConfigurationError(
            f"num_experts_per_tok = {chosen} exceeds the {experts} experts",
            where=where,
            cure="correct one of them",
        )
    layers, kinds = config.get("num_hidden_layers"), config.get("layer_types")
    if layers and kinds and len(kinds) != layers:
        raise ConfigurationError(
            f"layer_types names {len(kinds)} layers, num_hidden_layers is {layers}",
            where=where,
            cure="correct one of them",
        )

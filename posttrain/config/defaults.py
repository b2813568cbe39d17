"""Keys of a recipe that only repeat the schema's default. A recipe states decisions, not defaults.

repeated_defaults({"seed": 0}, SftConfig)  → ["seed"]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pydantic import BaseModel
from pydantic_core import PydanticUndefined


def repeated_defaults(model: BaseModel, raw: Mapping[str, Any]) -> list[str]:
    """Dotted keys present in `raw` whose validated value in `model` equals the schema's default."""
    found: list[str] = []
    for key, value in raw.items():
        field = type(model).model_fields[key]
        actual: Any = getattr(model, key)
        default: Any = field.get_default(call_default_factory=True, validated_data={})
        if default is not PydanticUndefined and actual == default:
            found.append(key)
        else:
            found.extend(f"{key}.{inner}" for inner in _inside(actual, value))
    return found


def _inside(actual: Any, value: Any) -> list[str]:
    if isinstance(actual, BaseModel) and isinstance(value, Mapping):
        return repeated_defaults(actual, cast(Mapping[str, Any], value))
    if isinstance(actual, list | tuple) and isinstance(value, list):
        pairs = zip(cast(list[Any], actual), cast(list[Any], value), strict=False)
        return [f"{i}.{inner}" for i, (a, v) in enumerate(pairs) for inner in _inside(a, v)]
    if isinstance(actual, Mapping) and isinstance(value, Mapping):
        members = cast(Mapping[str, Any], actual)
        return [
            f"{key}.{inner}"
            for key, v in cast(Mapping[str, Any], value).items()
            for inner in _inside(members.get(key), v)
        ]
    return []

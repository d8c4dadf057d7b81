"""How options that may be left out are shown: ``--seed INT``, not ``--seed {None}|INT``."""

from __future__ import annotations

import types
from dataclasses import replace
from typing import Any, Union, get_args

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

REGISTRY = ConstructorRegistry()


@REGISTRY.primitive_rule
def _optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Read ``T | None`` as T: nothing is what an option is that was not given."""
    if info.type_origin not in (Union, types.UnionType):
        return None
    kinds = [kind for kind in get_args(info.type) if kind is not type(None)]
    if len(kinds) != 1 or len(get_args(info.type)) != 2:
        return None
    inner = PrimitiveTypeInfo.make(kinds[0], info.markers)
    spec = ConstructorRegistry.get_primitive_spec(inner)
    if not isinstance(spec, PrimitiveConstructorSpec):
        return None
    return replace(
        spec,
        is_instance=lambda value: value is None or spec.is_instance(value),
        str_from_instance=lambda value: (
            ["None"] if value is None else spec.str_from_instance(value)
        ),
    )

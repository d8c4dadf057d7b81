"""What a node of a trace says about itself."""

import operator
from collections.abc import Iterator
from typing import Any, cast

from torch import Tensor, fx

from surge.errors import ExportError


def aliasing(schema: Any) -> tuple[bool, bool]:
    """Return whether an operator writes into its first argument, and whether it returns it."""
    if schema is None or not (schema.arguments and schema.returns):
        return False, False
    given, made = schema.arguments[0].alias_info, schema.returns[0].alias_info
    return given is not None and given.is_write, made is not None


def storage(tensor: Tensor) -> int:
    """Return where a tensor lies."""
    return tensor.untyped_storage().data_ptr()


def after(node: fx.Node) -> Iterator[fx.Node]:
    """Yield the nodes that come later."""
    while (node := node.next).op != "root":
        yield node


def flat(arguments: Any) -> list[Any]:
    """Return the leaves of nested lists."""
    if isinstance(arguments, list | tuple):
        return [leaf for item in arguments for leaf in flat(item)]
    return [arguments]


def normal_arguments(node: fx.Node) -> list[Any]:
    """Return all arguments by position, defaults filled in."""
    if node.target is operator.getitem or not hasattr(node.target, "_schema"):
        return [*node.args, *node.kwargs.values()]
    arguments = list(node.args)
    for parameter in cast(Any, node.target)._schema.arguments[len(arguments) :]:
        arguments.append(node.kwargs.get(parameter.name, parameter.default_value))
    return arguments


def refusal(node: fx.Node, why: str) -> ExportError:
    """Return the error that names an operator, its module and what is wrong."""
    module, place = module_of(node), "in"
    if not module:  # called by the model itself: name what came before
        module, place = _module_before(node), "behind"
    where = f'{place} module "{module}"' if module else 'in module ""'
    return ExportError(f"pack: {node.target} {where} {why}.")


def _module_before(node: fx.Node) -> str:
    """Return the name of the module that made an operator's first input, however far back."""
    while node.all_input_nodes and not module_of(node):
        node = node.all_input_nodes[0]
    return module_of(node)


def module_of(node: fx.Node) -> str:
    """Return the name of the innermost module that called an operator."""
    stack = list(cast(dict[str, Any], node.meta.get("nn_module_stack", {})).values())
    return str(stack[-1][0]) if stack else ""

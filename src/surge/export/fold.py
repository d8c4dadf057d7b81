"""Make a graph small: shifts into binary layers, epilogues into the operators before them."""

from collections.abc import Callable

from torch import Tensor

from surge.export.graph import EPILOGUE, Activation, Graph, Node
from surge.export.thresholds import fold_thresholds

SCALED, ADDED, ACTIVATED = 1, 2, 3
"""The parts of an epilogue, in the order they are computed."""


def fold(graph: Graph) -> None:
    """Fold everything that can be folded, in place; the graph computes the same function."""
    graph.drop_unused()
    _cancel_transposes(graph)
    _fold_shifts(graph)
    _fold_rprelu(graph)
    _drop_scales_of_signs(graph)
    _scale_last(graph)
    _fold_input_scales(graph)
    _fold_epilogues(graph)
    _fold_scales_behind_maps(graph)
    fold_thresholds(graph)
    graph.drop_unused()


def _cancel_transposes(graph: Graph) -> None:
    """Read past two transposes in a row."""
    for node in graph:
        before = graph.producer(node.inputs[0]) if node.op == "transpose" else None
        if before is None or before.op != "transpose" or node.output == graph.output:
            continue
        for reader in graph.consumers(node.output):
            reader.inputs = [before.inputs[0] if v == node.output else v for v in reader.inputs]
            if reader.residual == node.output:
                reader.residual = before.inputs[0]
    graph.drop_unused()


def _drop_scales_of_signs(graph: Graph) -> None:
    """Let signs read past a positive factor, which changes none of them."""
    for node in graph:
        source = graph.producer(node.inputs[0])
        if node.activation != Activation("sign") or not node.only_activates or source is None:
            continue
        if source.only_scales and source.scale is not None and float(source.scale) > 0:
            node.inputs = list(source.inputs)
    graph.drop_unused()


def _scale_last(graph: Graph) -> None:
    """Write ``t * s + b`` before weights of few bits as ``(t + b / s) * s``.

    Inputs of two values with a middle other than 0 then cost one number beside the scale.
    """
    for node in graph:
        second = graph.producer(node.inputs[0]) if node.weight_bits else None
        if second is None or not second.only_adds_vector or not graph.is_private(second.output):
            continue
        first = graph.producer(second.inputs[0])
        if first is None or not first.only_scales or not graph.is_private(first.output):
            continue
        assert first.scale is not None and second.bias is not None
        if float(first.scale) != 0:
            first.bias = (second.bias.double() / first.scale.double()).float()
            first.scale, second.scale, second.bias = None, first.scale, None
            first.arithmetic = second.arithmetic = None


def _fold_input_scales(graph: Graph) -> None:
    """Let a convolution with weights of few bits scale its sums instead of its inputs.

    Its inputs are then whole numbers, and so are its sums.
    """
    for node in graph:
        source = graph.producer(node.inputs[0])
        if node.weight_bits and source is not None and source.only_scales:
            assert source.scale is not None and node.scale is not None
            node.inputs = list(source.inputs)
            node.scale = (node.scale.double() * source.scale.double()).float()
    graph.drop_unused()


def _fold_shifts(graph: Graph) -> None:
    """Let signs and comparisons take a shift with them instead of reading a shifted copy."""
    for node in graph:
        if node.op not in ("binary_conv2d", "above") or node.shift is not None:
            continue
        source = graph.producer(node.inputs[0])
        if source is not None and source.only_adds_vector and graph.is_private(source.output):
            node.inputs = list(source.inputs)
            node.shift = source.bias
    graph.drop_unused()


def _fold_rprelu(graph: Graph) -> None:
    """Join add, prelu, add of vectors into the one activation they are in ReActNet."""
    for node in list(graph):
        if node.activation is None or node.activation.kind != "prelu" or node.residual:
            continue
        before = graph.producer(node.inputs[0])
        after = graph.consumers(node.output)
        if before is None or not before.only_adds_vector or not graph.is_private(before.output):
            continue
        if len(after) != 1 or not after[0].only_adds_vector or node.output == graph.output:
            continue
        assert before.bias is not None and after[0].bias is not None
        vectors = {
            "shift_in": before.bias,
            "slope": node.activation.vectors["slope"],
            "shift_out": after[0].bias,
        }
        last = after[0]
        last.arithmetic = _joined(before, node, last)
        last.inputs, last.bias = list(before.inputs), None
        last.activation = Activation("rprelu", vectors=vectors)
        last.module = node.module
        graph.nodes = [item for item in graph if item is not node and item is not before]


def _fold_scales_behind_maps(graph: Graph) -> None:
    """Let the norm behind a map of one channel (XNOR-Net's) take over the product's scale.

    A factor per pixel and a factor per channel may be applied in any order.
    """
    for node in graph:
        if node.op != "multiply" or not graph.is_private(node.output):
            continue
        product, norm = graph.producer(node.inputs[0]), graph.consumers(node.output)[0]
        if product is None or product.op != "binary_conv2d" or product.scale is None:
            continue
        bare = _last_part(product) == SCALED and product.bias is None
        linear = norm.op == "affine" and norm.inputs[0] == node.output
        if bare and linear and graph.is_private(product.output) and norm.scale is not None:
            norm.scale = (norm.scale.double() * product.scale.double()).float()
            product.scale = None


def _fold_epilogues(graph: Graph) -> None:
    """Merge affine nodes, in order, into the node that makes their input."""
    for node in list(graph):
        if node.op == "affine":
            into = _partner(graph, node)
            if into is not None:
                _merge(graph, into, node)


def _partner(graph: Graph, node: Node) -> Node | None:
    """Return the node that can take over an affine node's work, the dearest kind first."""
    candidates = [graph.producer(value) for value in dict.fromkeys(node.reads)]
    fitting = [
        candidate
        for candidate in candidates
        if candidate is not None
        and candidate.op in EPILOGUE
        and graph.is_private(candidate.output)
        and _fits(candidate, node, swapped=candidate.output != node.inputs[0])
    ]
    return min(fitting, key=lambda item: EPILOGUE.index(item.op), default=None)


def _last_part(node: Node) -> int:
    if node.activation is not None:
        return ACTIVATED
    if node.residual is not None:
        return ADDED
    return SCALED if node.scale is not None or node.bias is not None else 0


def _first_part(node: Node) -> int:
    if node.scale is not None or node.bias is not None:
        return SCALED
    return ADDED if node.residual is not None else ACTIVATED


def _is_vector(part: Tensor | None) -> bool:
    return part is not None and part.dim() > 0


def _fits(before: Node, node: Node, *, swapped: bool) -> bool:
    """Return whether the parts of two nodes, one after the other, are in epilogue order."""
    first = _first_part(node)
    if swapped and first == SCALED:
        return False  # the scale belongs to the other summand
    if first == SCALED:
        # Two norms in a row, or two vectors, stay two nodes: each is stored as it is counted.
        both = before.op == "affine" and before.scale is not None and node.scale is not None
        twice = node.scale is None and _is_vector(before.bias) and _is_vector(node.bias)
        return _last_part(before) <= SCALED and not both and not twice
    return _last_part(before) < first


def _merge(graph: Graph, before: Node, node: Node) -> None:
    """Let ``before`` do what ``node`` does, at the place of ``node`` in the order.

    Nothing between the two reads ``before``, so it may move down to where all it needs is known.
    """
    if node.scale is not None or node.bias is not None:
        if node.scale is not None and node.bias is None and _is_vector(before.scale):
            graph.folded += node.scale.nbytes if _is_vector(node.scale) else 0
        before.scale, before.bias = _compose(before, node)
    if node.residual is not None:
        other = node.residual if node.inputs[0] == before.output else node.inputs[0]
        before.residual = other
    if node.activation is not None:
        before.activation = node.activation
    before.arithmetic = _joined(before, node)
    before.output = node.output
    place = graph.nodes.index(node)
    graph.nodes[place] = before
    graph.nodes.remove(before)  # removes the first of its two places, the old one


def _joined(*nodes: Node) -> list[Callable[[Tensor], Tensor]] | None:
    """Return the arithmetic of nodes in a row; None if one is not known."""
    parts = [node.arithmetic for node in nodes]
    return None if None in parts else [step for part in parts for step in part or []]


def _compose(before: Node, node: Node) -> tuple[Tensor | None, Tensor | None]:
    """Return scale and bias of ``(t * s1 + b1) * s2 + b2``, computed in double precision."""
    s1, b1, s2, b2 = (
        None if vector is None else vector.double()
        for vector in (before.scale, before.bias, node.scale, node.bias)
    )
    scale = s1 if s2 is None else (s2 if s1 is None else s1 * s2)
    bias = b1 if b1 is None or s2 is None else b1 * s2
    if b2 is not None:
        bias = b2 if bias is None else bias + b2
    return (
        None if scale is None else scale.float(),
        None if bias is None else bias.float(),
    )

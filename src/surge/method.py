"""What a method is (the contract), the shape of a layer it sees, and the registry.

A *method* is one paper's way to binarise a layer. It is a module held by the layer: its
learnable scales and its schedule state are saved, moved and trained with the model. A new
method subclasses :class:`Method`, overrides what differs, and registers itself::

    @register_method("mine", bits=(1, 1), reference="Author, Venue Year")
    class Mine(Method): ...

Every file in ``surge.methods`` is imported on first use, so nothing else needs editing. What a
method asks of a training loop it says in class attributes (``lr_factors``, ``undecayed``,
``recalibrates_norms``); ``surge train`` sees to all of them.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from surge import functional
from surge.attention import AttentionRule
from surge.errors import ConfigError, did_you_mean

Kind = Literal["conv", "linear", "embedding"]


@dataclass(frozen=True)
class Geometry:
    """The shape facts of a layer, enough to write a method once for every kind of layer."""

    kind: Kind
    """Operator family; an embedding has no input to binarise."""
    out_features: int
    """Output channels, output features, or rows of an embedding."""
    in_features: int
    """Input channels (all groups together) or input features."""
    kernel_size: tuple[int, ...] = ()
    """Spatial kernel; empty for linear and embedding."""
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    """Zeros added on each side, resolved to numbers."""
    dilation: tuple[int, ...] = ()
    groups: int = 1

    def along_output(self, vector: Tensor) -> Tensor:
        """View one value per output feature so that it broadcasts over the layer's output."""
        return vector.view(-1, *(1 for _ in self.kernel_size))

    def along_input(self, vector: Tensor) -> Tensor:
        """View one value per input feature so that it broadcasts over the layer's input."""
        return vector.view(-1, *(1 for _ in self.kernel_size))

    def sample_dims(self, x: Tensor) -> tuple[int, ...]:
        """Return the dimensions of one sample of an input: all but the batch, if there is one."""
        unbatched = self.kind == "conv" and x.dim() == len(self.kernel_size) + 1
        return tuple(range(0 if unbatched else 1, x.dim()))

    def feature_dim(self, x: Tensor) -> int:
        """Return the dimension of an input that holds its channels or features."""
        return x.dim() - 1 - len(self.kernel_size)

    def along_weight(self, vector: Tensor) -> Tensor:
        """View one value per output feature so that it broadcasts over the weight."""
        return vector.view(-1, 1, *(1 for _ in self.kernel_size))


def per_filter(weight: Tensor) -> tuple[int, ...]:
    """Return the dimensions of one filter (all but the output dimension)."""
    return tuple(range(1, weight.dim()))


def mean_magnitude(weight: Tensor) -> Tensor:
    """Return mean abs(w) of every filter, shaped to broadcast over the weight."""
    return weight.abs().mean(dim=per_filter(weight), keepdim=True)


def needs_spread(name: str, weight: Tensor) -> None:
    """Raise if filters have a single weight, so that they cannot be standardised."""
    if weight[0].numel() < 2:
        raise ConfigError(
            f'Method "{name}" standardises every filter and needs at least 2 weights in each; '
            f"this layer's weight has shape {tuple(weight.shape)}. Keep the layer float (skip=)."
        )


def standardize(weight: Tensor, *, eps: float = 0.0) -> Tensor:
    """Return ``(w - mean) / sqrt(var + eps)`` of every filter, with the unbiased variance.

    Without eps a filter of equal weights, which is 0/0, gives zeros.
    """
    wide, dims = functional.widened(weight), per_filter(weight)
    centred = wide - wide.mean(dim=dims, keepdim=True)
    variance = centred.var(dim=dims, keepdim=True) + eps
    return (centred / torch.where(variance > 0, variance, 1.0).sqrt()).to(weight.dtype)


class Method(nn.Module):
    """Base of all methods: plain sign with the clipped surrogate, no scale, no state.

    The layer computes ``z = prepare_input(x)``, then the operator on ``binarize(z)`` and
    ``binarize_weight(weight)``, then ``scale_output``. SURGE lives at ``z``, the tensor that
    enters sign.
    """

    name: ClassVar[str] = ""
    bits: tuple[int, int] = (1, 1)
    """Bits of (weights, inputs), where options may change the class's own; 32 means real."""
    reference: ClassVar[str] = ""
    surrogate: ClassVar[Literal["clipped", "bireal"]] = "clipped"
    """The input rule of ``surge.functional`` that :meth:`binarize` follows unless overridden."""
    unit_inputs: bool = False
    """Whether inputs are quantised to [0, 1], so that a ReLU may feed the layer."""
    not_compensable: str = ""
    """Why SURGE has nothing to repair in this method; empty where it applies."""
    dropped: ClassVar[tuple[str, ...]] = ()
    """Names of parameters and buffers that an exported model does not need."""
    centred_values: ClassVar[bool] = False
    """Whether the two values of a filter have a middle other than 0, which a file must hold too."""
    averages_extra_loss: ClassVar[bool] = False
    """Whether the extra losses of a network's layers are averaged instead of summed."""
    lr_factors: ClassVar[Mapping[str, float]] = {}
    """Learning rates of the method's own parameters, as multiples of the network's."""
    undecayed: ClassVar[tuple[str, ...]] = ()
    """Names of the method's own parameters that take no weight decay."""
    recalibrates_norms: ClassVar[bool] = False
    """Whether norms must be re-estimated with the weights of inference before a test."""

    for_transformers: ClassVar[bool] = False
    """Whether ``binarize_`` also takes a BERT's word embeddings and attention by itself."""
    relu_feed_forward: ClassVar[bool] = False
    """Whether a transformer's feed-forward must use a ReLU."""
    attention: ClassVar[type[AttentionRule]] = AttentionRule
    """How the products of self-attention become binary, where they do."""

    geometry: Geometry

    def __init__(self, geometry: Geometry, weight: Tensor) -> None:
        """Create the state for one layer; ``weight`` is its latent weight."""
        super().__init__()
        self.geometry = geometry

    @classmethod
    def behind_relu(cls) -> dict[str, Any]:
        """Return the options of a layer whose inputs are never negative."""
        return {}

    def prepare_input(self, x: Tensor) -> Tensor:
        """Map the layer's input to the tensor that enters sign."""
        return x

    def binarize(self, z: Tensor) -> Tensor:
        """Binarise the prepared input."""
        clipped = self.surrogate == "clipped"
        return functional.sign_clipped(z) if clipped else functional.sign_bireal(z)

    def input_rule(self) -> tuple[str, Tensor | None] | None:
        """Return the name of :meth:`binarize`'s rule, and its level, if kernels know it."""
        return (self.surrogate, None) if type(self).binarize is Method.binarize else None

    def surrogate_is_zero(self, z: Tensor) -> Tensor:
        """Return where the input surrogate is exactly zero, as booleans."""
        return z.abs() > 1 if self.surrogate == "clipped" else z.abs() >= 1

    def binarize_weight(self, weight: Tensor) -> Tensor:
        """Binarise the latent weight."""
        return functional.sign_clipped(weight)

    def scales_signs(self) -> bool:
        """Return whether :meth:`binarize_weight` gives +-s now, with a real s of each filter.

        The layer then multiplies by the signs and scales the sums, which keeps them exact.
        """
        return False

    learns_at_input: ClassVar[bool] = False
    """Whether a threshold or a level of the inputs learns, from a sum over their gradient."""

    two_levels: ClassVar[bool] = False
    """Whether inputs have two values of any size, such as 0 and a, and weights one magnitude. In
    evaluation the layer then sums whole numbers, as the engine does."""

    def output_scale(self) -> Tensor | None:
        """Return the learnable factor per output feature, as a vector, if there is one."""
        return None

    def scale_output(self, y: Tensor, z: Tensor) -> Tensor:
        """Scale the operator's result; ``z`` is the prepared input."""
        scale = self.output_scale()
        return y if scale is None else y * self.geometry.along_output(scale).to(y.dtype)

    def extra_loss(self, weight: Tensor) -> Tensor | None:
        """Return a term to add to the loss of the last forward, if the method has one."""
        return None

    def feature_loss(self, classes: int, features: int) -> nn.Module | None:
        """Return a learnable loss of (features before the last layer, labels), if there is one.

        It belongs to a whole network: a loop asks one layer, trains it beside the model, and
        drops it at the end.
        """
        return None

    def on_epoch(self, epoch: int, epochs: int) -> None:
        """Set the schedule state for ``epoch`` (from 0) of ``epochs``, in place."""

    def adapt(self, weight: nn.Parameter) -> None:
        """Renew state that depends on the latent weight, at the start of an epoch, in place.

        Called after :meth:`on_epoch` and outside any captured step: it may be slow.
        """

    def on_step(self, weight: nn.Parameter) -> None:
        """Act on the latent weight after an optimizer step, in place."""

    def packed_weight(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return what goes to disk: whole-number values and one scale per output feature.

        ``values * scale`` equals the evaluated weight, the output scale included. Values are
        +-1 unless the method has more bits.
        """
        with torch.no_grad():
            effective = self.binarize_weight(weight)
            scale = effective.abs().amax(dim=per_filter(effective))
            factor = self.output_scale()
            return functional.sign(effective), scale if factor is None else scale * factor

    def packed_scale(self, weight: Tensor) -> Tensor:
        """Return the scales of :meth:`packed_weight` alone, where they are cheaper to have."""
        return self.packed_weight(weight)[1]

    def stored_values(self, weight: Tensor) -> Tensor:
        """Return the whole numbers that go to disk, the same in training and inference."""
        return self.packed_weight(weight)[0]

    def describe(self) -> str:
        """Return the options of this instance as text for reports."""
        return f"{self.name} ({self.bits[0]}/{self.bits[1]} bit)"

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Register a buffer; a scalar has at least float32, whatever torch's default dtype is."""
        if tensor is not None and tensor.dim() == 0 and tensor.is_floating_point():
            tensor = functional.widened(tensor)
        super().register_buffer(name, tensor, persistent)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Method":
        # Scalars are the state of schedules: half precision would move tau, k and t.
        scalars = {n: b for n, b in self.named_buffers(recurse=False) if b.dim() == 0}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, before in scalars.items():
            after = getattr(self, name)
            if after.element_size() < before.element_size():
                setattr(self, name, before.to(after.device))
        return self

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        # A float checkpoint knows nothing of methods: keep the fresh state instead of failing.
        if not any(key.startswith(prefix) for key in state_dict):
            state_dict.update(self.state_dict(prefix=prefix))
        super()._load_from_state_dict(state_dict, prefix, *args)


MethodT = TypeVar("MethodT", bound=type[Method])
_registry: dict[str, type[Method]] = {}


def register_method(
    name: str, *, bits: tuple[int, int], reference: str
) -> Callable[[MethodT], MethodT]:
    """Register a method class under ``name``; used as a decorator."""

    def register(cls: MethodT) -> MethodT:
        if name in _registry and _registry[name].__qualname__ != cls.__qualname__:
            raise ConfigError(f'The method name "{name}" is taken by {_registry[name]!r}.')
        cls.name, cls.bits, cls.reference = name, bits, reference
        _registry[name] = cls
        return cls

    return register


def list_methods() -> list[str]:
    """Return the names of all registered methods, sorted."""
    package = importlib.import_module("surge.methods")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"surge.methods.{module.name}")
    return sorted(_registry)


def get_method(name: str) -> type[Method]:
    """Return the method class of that name."""
    names = list_methods()
    if name not in _registry:
        raise ConfigError(
            f'Unknown method "{name}".{did_you_mean(name, names)} Available: {", ".join(names)}.'
        )
    return _registry[name]


def check_options(cls: type[Method], options: dict[str, Any]) -> None:
    """Raise unless every option is a keyword of the method's constructor."""
    accepted = [
        p.name
        for p in inspect.signature(cls.__init__).parameters.values()
        if p.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    for option in options:
        if option not in accepted:
            known = f"It accepts: {', '.join(accepted)}." if accepted else "It has no options."
            raise ConfigError(
                f'Method "{cls.name}" has no option "{option}".'
                f"{did_you_mean(option, accepted)} {known}"
            )

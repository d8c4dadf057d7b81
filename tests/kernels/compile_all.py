"""Compile every Triton kernel for GPUs that need not be there; run without the interpreter."""

import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from surge.kernels import fused, meeting, narrow_conv, thinning
from surge.kernels.branch import RULES

POINTERS = {
    **dict.fromkeys(("alpha", "scale", "level", "partial", "boxes"), "*fp32"),
    **dict.fromkeys(("alive", "standing"), "*i8"),
}
NUMBERS = {**dict.fromkeys(("count", "blocks", "parts", "size"), "i32"), "threshold": "fp32"}


def compiled(kernel, constants, dtype, target, **options):
    """Return the machine code of a kernel."""
    names = kernel.arg_names
    signature = {
        name: "constexpr" if name in constants else NUMBERS.get(name) or POINTERS.get(name, dtype)
        for name in names
    }
    source = ASTSource(kernel, signature, constexprs=constants)
    return triton.compile(source, target=target, options=options).asm["cubin"]


def kernels():
    """Yield every kernel with the constants that it is used with."""
    for rule in RULES.values():
        sizes = {"BLOCK": meeting.BLOCK, "ROUNDS": max(meeting.PASSES)}
        yield meeting._meet, {"RULE": rule, "LEAST": 1e-5, **sizes}, {"num_warps": 4}
    for width in (min(fused.WIDTHS), max(fused.WIDTHS)):
        sizes = {"HEIGHT": 32, "WIDTH": 32, "INPUTS": width, "OUTPUTS": width}
        for kernel, tile, more in (
            (narrow_conv._input_gradient, narrow_conv.INPUT[width], {"SURROGATE": 1}),
            (narrow_conv._weight_gradient, narrow_conv.WEIGHT[width], {}),
        ):
            constants = {**sizes, **more, "DUAL": True, "GROUP": tile.pixels, "BLOCK": tile.groups}
            yield kernel, constants, {"num_warps": tile.warps, "num_stages": tile.stages}
    tile, sizes = narrow_conv.FORWARD, {"HEIGHT": 32, "WIDTH": 32, "INPUTS": 16, "OUTPUTS": 16}
    constants = {**sizes, "SCALED": True, "GROUP": tile.pixels, "BLOCK": tile.groups}
    yield narrow_conv._forward, constants, {"num_warps": tile.warps, "num_stages": tile.stages}
    constants = {"INPUTS": 16, "OUTPUTS": 16, "ROWS": 16, "BLOCK": narrow_conv.ADDED.groups}
    yield narrow_conv._add_up, constants, {"num_warps": narrow_conv.ADDED.warps}
    yield thinning._thin, {"BLOCK": thinning.BLOCK}, {"num_warps": 8, "enable_fp_fusion": False}


def main():
    """Compile all for one architecture, given as a number such as 90; print how many there are."""
    target = GPUTarget("cuda", int(sys.argv[1]), 32)
    done = [len(compiled(k, c, "*bf16", target, **o)) for k, c, o in kernels()]
    assert min(done) > 1000
    print(len(done))


if __name__ == "__main__":
    main()

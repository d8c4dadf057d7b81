"""Compile every Triton kernel for GPUs that need not be there; run without the interpreter."""

import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from surge.kernels import meeting, narrow_conv, narrow_kernels, stem_conv, stem_kernels, thinning
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
    aligned = [["tt.divisibility", 16]]  # as torch's memory is, so that loads can be wide
    pointers = [(place,) for place, kind in enumerate(signature.values()) if kind[0] == "*"]
    attributes = dict.fromkeys(pointers, aligned)
    source = ASTSource(kernel, signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=target, options=options).asm["cubin"]


def kernels():
    """Yield every kernel with the constants that it is used with."""
    for rule in RULES.values():
        sizes = {"BLOCK": meeting.BLOCK, "ROUNDS": max(meeting.PASSES)}
        yield meeting._meet, {"RULE": rule, "LEAST": 1e-5, **sizes}, {"num_warps": 4}
    for width, columns in ((16, 32), (16, 31), (32, 16), (64, 8)):
        sizes = {"HEIGHT": 32, "WIDTH": columns, "INPUTS": width, "OUTPUTS": width}
        for kernel, tile, more in (
            (narrow_kernels.narrow_forward, narrow_conv.FORWARD, {"SCALED": True}),
            (narrow_kernels.narrow_input_gradient, narrow_conv.INPUT[width], {"SURROGATE": 1}),
            (narrow_kernels.narrow_weight_gradient, narrow_conv.WEIGHT[width], {}),
        ):
            more |= {"DUAL": True} if "DUAL" in kernel.arg_names else {}
            group = {"GROUP": tile.group(columns), "BLOCK": tile.groups}
            options = {"num_warps": tile.warps, "num_stages": tile.stages}
            yield kernel, {**sizes, **more, **group}, options
    for tiles, kernel in (
        (stem_conv.FORWARD, stem_kernels.stem_forward),
        (stem_conv.WEIGHT, stem_kernels.stem_weight_gradient),
    ):
        for outputs, tile in tiles.items():
            sizes = {"HEIGHT": 32, "WIDTH": 32, "OUTPUTS": outputs}
            options = {"num_warps": tile.warps, "num_stages": tile.stages}
            yield kernel, {**sizes, "BLOCK": tile.pixels}, options
    added = dict(narrow_conv.ADDED)
    warps = {"num_warps": added.pop("num_warps")}
    yield narrow_kernels.narrow_add_up, {"INPUTS": 16, "OUTPUTS": 16, **added}, warps
    yield thinning._thin, {"BLOCK": thinning.BLOCK}, {"num_warps": 8, "enable_fp_fusion": False}


def main():
    """Compile all for one architecture, given as a number such as 90; print how many there are."""
    target = GPUTarget("cuda", int(sys.argv[1]), 32)
    done = [len(compiled(k, c, "*bf16", target, **o)) for k, c, o in kernels()]
    assert min(done) > 1000
    print(len(done))


if __name__ == "__main__":
    main()

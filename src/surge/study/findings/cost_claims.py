"""The claims of the paper about cost, size and speed, and its theorem."""

from collections.abc import Callable

from surge.study.findings.cost_findings import (
    closed_form,
    count,
    counted,
    detector,
    faster,
    glue_cost,
    pointwise_cost,
    resnet18_size,
    step_cost,
    ten_epochs,
)
from surge.study.findings.findings import NOT, REPRODUCED, Finding, minus
from surge.study.findings.run_findings import Measure

Cause = tuple[str, str] | None
"""(verdict, why): shown while that is the verdict."""

_AS_DONE_HERE = (
    REPRODUCED,
    "Without the auxiliary forward, compiled and captured; over the plain step in the same mode.",
)
_PRODUCTS = (
    NOT,
    "The two more matrix products of every linear layer alone take a fifth of a plain step that is "
    "compiled and captured, too (docs/performance.md).",
)
_PLAIN_IS_LESS = (
    NOT,
    "Auxiliary weights cost what they must, 16 bytes each with gradient and moments; the plain "
    "step that they are held against takes far less than the paper's.",
)
_EARLIER = (
    NOT,
    "Timed with an earlier version of the code, in which activations between blocks were float32 "
    "(docs/imagenet.md).",
)
_GRAPH = (NOT, "The captured step alone: eager, it stays below that.")
_TASKS = "the paper: BERT-base, eight tasks; here: a smaller BERT, the tasks that could be had"


def _over_rbonn(
    claim: str, measure: Callable[[str], Measure], bireal: Cause = None, reactnet: Cause = None
) -> tuple[Finding, ...]:
    """Return a claim about a step at 224 pixels, for both networks that were timed."""
    return tuple(
        Finding(
            f"{claim} (the paper: RBONN's step; here: {name}'s)",
            measure(network),
            () if cause is None else (cause,),
        )
        for name, network, cause in (
            ("Bi-Real Net", "resnet18-224", bireal),
            ("ReActNet", "reactnet-224", reactnet),
        )
    )


COSTS = (
    *_over_rbonn(
        "SURGE takes 1.25 times as long as a plain step, 224 px, batch 256",
        lambda network: step_cost(network, 1.25),
        _AS_DONE_HERE,
        _AS_DONE_HERE,
    ),
    *_over_rbonn(
        "SURGE takes 1.076 times the memory",
        lambda network: step_cost(network, 1.076, "peak_bytes"),
        _AS_DONE_HERE,
        _GRAPH,
    ),
    *_over_rbonn(
        "SURGE\\*, auxiliary convolutions of 1x1, takes 1.106 times as long",
        lambda network: pointwise_cost(network, 177 / 160),
        reactnet=_EARLIER,
    ),
    *_over_rbonn(
        "SURGE\\* takes 1.061 times the memory",
        lambda network: pointwise_cost(network, 22_295 / 21_005, "peak_bytes"),
    ),
    Finding(
        "SURGE after ten epochs: +0.63 over RBONN (the paper: ImageNet; here: Imagenette)",
        ten_epochs("onestage-reactnet-surge", "onestage-rbonn"),
    ),
    Finding(
        "SURGE\\* after ten epochs: +0.56 over RBONN (the paper: ImageNet; here: Imagenette)",
        ten_epochs("onestage-reactnet-surge-1x1", "onestage-rbonn"),
    ),
    Finding(
        "SURGE\\* improves accuracy (here: digits)",
        minus("cnn-recu-surge-1x1", "cnn-recu", table="digits"),
    ),
    Finding(
        "A step of BERT-base with SURGE takes 1.17 times as long",
        step_cost("bert-base", 1.17),
        (_PRODUCTS,),
    ),
    Finding(
        "A step of BERT-base with SURGE takes 1.223 times the memory",
        step_cost("bert-base", 1.223, "peak_bytes"),
        (_PLAIN_IS_LESS,),
    ),
    Finding(
        f"BERT with SURGE takes 1.173 times as long ({_TASKS})",
        glue_cost("time_ratio", 1.173),
        (
            (
                NOT,
                "A step of so small a BERT is many kernels of a few microseconds, and SURGE adds "
                "some to every layer (docs/glue.md).",
            ),
        ),
    ),
    Finding(
        f"BERT with SURGE takes 1.223 times the memory ({_TASKS})",
        glue_cost("memory_ratio", 1.223),
    ),
    Finding(
        "A packed ResNet-18 is 4.1 times as fast as in float (the paper: an ARM Cortex-A55)",
        faster("resnet18-224", 4.1),
        ((REPRODUCED, "On another processor; no ARM board has been measured."),),
    ),
)
"""Claims that stored measurements decide."""

COUNTED = (
    Finding(
        "ResNet-18 takes 1.7 MB, its last layer left out (42.7 in float)",
        resnet18_size(1.7),
        ((NOT, "1.7 is what it takes with the real layers in 16 bits."),),
    ),
    Finding(
        "ResNet-18 at 224 px: 1.63 x 10^8 OPs",
        count(1.63, " x 10^8", lambda: counted("resnet18-224").ops / 1e8),
        ((REPRODUCED, "All layers; 1.63 is printed since Bi-Real Net."),),
    ),
    Finding(
        "A binary BERT-base takes 13.4 MB",
        count(13.4, " MiB", lambda: counted("bert-base").bytes / 2**20),
        (
            (
                NOT,
                "13.4 leaves out the embeddings of positions and token types, the pooler's bits, "
                "all scales and BiT's shifts.",
            ),
        ),
    ),
    Finding(
        "A binary BERT-base, 128 words: 0.4 GFLOPs",
        count(0.4, "", lambda: counted("bert-base").flops_with_bits / 1e9),
    ),
    Finding(
        "Faster R-CNN, binary, 1000x600: 18.49 x 10^9 OPs",
        count(18.49, " x 10^9", lambda: detector().ops / 1e9),
    ),
    Finding(
        "The same detector takes 16.61 MB",
        count(16.61, " MB", lambda: detector().bytes / 1e6),
        (
            (
                NOT,
                "The head's two linear layers are real, as in the code that the paper builds on. "
                "Its sizes at 1, 4 and 32 bits are not of one and the same number of weights.",
            ),
        ),
    ),
)
"""Claims that are counted when the page is made; nothing of them is stored."""

THEOREM = (
    Finding(
        "The theorem: the optimal scale is its closed form (here: independent noises)",
        closed_form(shared=False),
    ),
    Finding(
        "The same (here: both gradients come from one output gradient G, as in a network)",
        closed_form(shared=True),
        (
            (
                NOT,
                "The theorem takes tr Cov(g_b, g_a) for zero. With one G it is not, unless the "
                "scope keeps the paths apart (clipped); with that term the formula is met.",
            ),
        ),
    ),
)
"""Claims that are decided by draws, when the page is made."""

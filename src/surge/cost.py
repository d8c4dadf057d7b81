"""What a model costs, as numbers and as a table: the result of ``summary``."""

from dataclasses import dataclass
from typing import Literal

Rest = Literal["fp32", "fp16", "int8"]
"""How the weights that stay real are stored."""
FLOAT_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a layer or a model stores and computes."""

    binary: int = 0
    """Parameters stored in 1 bit."""
    few_bit: int = 0
    """Parameters stored in 2 to 31 bits."""
    real: int = 0
    """Parameters stored as numbers."""
    bytes: int = 0
    """Bytes of all tensors on disk, the scales included; a file's header comes on top."""
    scale_bytes: int = 0
    """The part of ``bytes`` that are scales of 1-bit, few-bit and int8 weights."""
    macs: int = 0
    """Multiply-accumulates of layers and of products between activations, as in attention."""
    bops: int = 0
    """Bit operations: weight bits x input bits x MACs of the binarised layers."""
    ops: float = 0.0
    """MACs of the float layers + BOPs / 64."""
    elementwise: int = 0
    """Operations of norms (2 per element) and average pools (window + 1 per output)."""

    @property
    def parameters(self) -> int:
        """All parameters that an exported model keeps."""
        return self.binary + self.few_bit + self.real

    @property
    def float_bytes(self) -> int:
        """Bytes of the same parameters, all in fp32."""
        return FLOAT_BYTES * self.parameters

    @property
    def flops(self) -> int:
        """Additions and multiplications apart, as tables of transformers count: 2 x MACs."""
        return 2 * self.macs

    @property
    def flops_with_bits(self) -> float:
        """The same with a binary one counted as 1/64: 2 x OPs."""
        return 2 * self.ops

    @property
    def macs_with_norms_and_pools(self) -> int:
        """MACs as the counter ``thop`` adds them up: norms and average pools count as well."""
        return self.macs + self.elementwise


@dataclass(frozen=True, kw_only=True)
class SummaryRow(Cost):
    """One layer; a layer called twice has its parameters once and its MACs twice."""

    name: str
    kind: str
    bits: tuple[int, int]
    """Bits of (weights, inputs); 32 means real."""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Summary(Cost):
    """The cost of a model in total, and per layer in ``rows``; print it."""

    rows: tuple[SummaryRow, ...]
    rest: Rest
    excluded: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Draw the table."""
        table: list[tuple[str, ...]] = [
            ("layer", "kind", "bits", "parameters", "bytes", "MACs", "OPs", "")
        ]
        table += [_cells(row) for row in self.rows if row.bytes or row.macs or row.note]
        totals = (self.parameters, self.bytes, self.macs, self.ops)
        table.append(("total", "", "", *(f"{value:,.0f}" for value in totals), ""))
        widths = [max(len(cells[column]) for cells in table) for column in range(8)]
        lines = [
            "  ".join(
                cell.ljust(width) if column < 3 or column == 7 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
            ).rstrip()
            for cells in table
        ]
        few = f"{self.few_bit:,} in few bits, " if self.few_bit else ""
        without = f", without {', '.join(self.excluded)}" if self.excluded else ""
        smaller = self.float_bytes / max(self.bytes, 1)
        lines.append(f"Parameters: {self.binary:,} in 1 bit, {few}{self.real:,} real{without}.")
        lines.append(
            f"On disk: {self.bytes:,} bytes ({self.bytes / 1e6:.2f} MB, {self.bytes / 2**20:.2f} "
            f"MiB), real weights in {self.rest}; {smaller:.1f} times smaller than all in fp32."
        )
        lines.append(
            f"OPs: {self.ops - self.bops / 64:,.0f} real MACs + {self.bops:,} BOPs / 64 "
            f"= {self.ops:,.0f}."
        )
        return "\n".join(lines)


def _cells(row: SummaryRow) -> tuple[str, ...]:
    numbers = (row.parameters, row.bytes, row.macs, row.ops)
    bits = f"{row.bits[0]}/{row.bits[1]}"
    return (row.name or "(model)", row.kind, bits, *(f"{n:,.0f}" for n in numbers), row.note)

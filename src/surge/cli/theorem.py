"""``surge theorem``: the optimal scale, by formula and by Monte Carlo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from surge.cli.console import print_table, say

if TYPE_CHECKING:
    from rich.console import Console

    from surge.study.theory.theorem import Result, Verdict

_FORMULA = {
    "scenario": "scenario",
    "noises": "noises",
    "closed_form": "closed form",
    "corrected": "corrected",
    "estimate": "Monte Carlo",
    "z_closed_form": "z closed",
    "z_corrected": "z corrected",
    "formula_verdict": "verdict",
}
_RULE = {
    "scenario": "scenario",
    "premise": "premise",
    "eta": "eta",
    "ags_excess": "AGS",
    "paper_eta_excess": "eta 0.01",
    "no_compensation_excess": "scale 0",
    "best_eta": "best eta",
    "best_eta_excess": "at best eta",
    "ags_verdict": "AGS verdict",
}


@dataclass(frozen=True)
class TheoremCommand:
    """Check the paper's optimal scale and its norm-ratio rule by Monte Carlo.

    Nine scenarios: independent noises, both gradients from one shared output gradient, and the
    premises of the norm-ratio corollary, kept and broken one by one. Writes error against scale
    and error against eta as pictures with the numbers beside them, and a table of verdicts.

    Example:
        surge theorem --out runs/theorem
        surge theorem --samples 200000 --noise 4   # a noisier G: the best scale turns negative
    """

    out: Path = Path("runs/theorem")
    """Folder for the pictures and tables; made if missing."""
    samples: int = 20_000
    """Mini-batches drawn per scenario."""
    dimension: int = 64
    """Elements of each gradient."""
    noise: float = 0.5
    """Noise of the shared output gradient: its variance over the square of its mean."""
    seed: int = 0
    """Seed of everything random."""

    def run(self, console: Console) -> None:
        """Run the study, print the verdicts, name the files."""
        from surge.files import check_folder
        from surge.study import figures
        from surge.study.theory import theorem

        check_folder(self.out)
        figures.require()  # now, not after the work
        results = theorem.run_study(
            samples=self.samples, dimension=self.dimension, noise=self.noise, seed=self.seed
        )
        written = _write(results, self.out)
        rows = [_shown(result.verdict) for result in results]
        print_table(
            console, rows, title="Optimal scale, formulas and Monte Carlo", columns=_FORMULA
        )
        console.print(
            "z: Monte-Carlo minimiser minus formula, in standard errors (last digits in brackets); "
            f"wrong beyond {theorem.Z_LIMIT:g}.\n"
        )
        print_table(console, rows, title="Norm-ratio rule: error above the smallest", columns=_RULE)
        for path in written:
            say(console, f"wrote {path}")


def _write(results: Sequence[Result], folder: Path) -> list[Path]:
    """Write both pictures with their numbers, and the verdicts as CSV and JSON."""
    from surge.study import figures
    from surge.study.theory import theorem

    table = [asdict(result.verdict) for result in results]
    points = [row for result in results for row in result.points]
    etas = [row for result in results for row in result.etas]
    return [
        *figures.save(theorem.draw(results), points, folder / "theorem.png"),
        *figures.save(theorem.draw_eta(results), etas, folder / "theorem-eta.png"),
        figures.write_csv(table, folder / "verdicts.csv"),
        figures.write_json(table, folder / "verdicts.json"),
    ]


def _shown(found: Verdict) -> dict[str, object]:
    """Return a verdict with each number in the form its column calls for."""
    row = asdict(found)
    for key in ("closed_form", "corrected", "eta", "best_eta"):
        row[key] = f"{row[key]:.4f}"
    for key in ("z_closed_form", "z_corrected"):
        row[key] = f"{row[key]:+.1f}"
    for key in ("ags_excess", "paper_eta_excess", "no_compensation_excess", "best_eta_excess"):
        row[key] = f"{row[key]:.1%}"
    row["estimate"] = f"{found.estimate:.4f}({found.standard_error * 1e4:.0f})"
    row["noises"] = "correlated" if found.premise.endswith("noises") else "uncorrelated"
    return row


COMMAND = ("theorem", TheoremCommand)

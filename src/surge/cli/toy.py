"""``surge toy``: the paper's toy problem over many seeds, and what it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from surge.cli.console import print_table, progress, say

if TYPE_CHECKING:
    from rich.console import Console

    from surge.study.theory.toy import Log, ToyOptions
    from surge.study.theory.toy_claims import Claim

_COLUMNS = {
    "claim": "the paper says",
    "layer": "layer",
    "arms": "compared",
    "difference": "difference [95 %]",
    "effect": "d",
    "shown_by": "seeds",
    "verdict": "verdict",
}


@dataclass(frozen=True)
class ToyCommand:
    """Train two binary layers on Beale's function and check what the paper says about it.

    Six arms (FP, STE, STE+SURGE, Bi-Real, Bi-Real+SURGE, STE+Noise), all from the same starts and
    all seeds of an arm at once. Writes the paper's figures as pictures with their numbers, and a
    table that answers each of its sentences with a paired difference, an interval and an effect
    size.

    Example:
        surge toy --out runs/toy
        surge toy --seeds 200 --eta 0.1    # a tenfold dose, and narrow intervals
    """

    out: Path = Path("runs/toy")
    """Folder for the pictures and tables; made if missing."""
    seeds: int = 30
    """Starts per arm, the same ones for every arm."""
    steps: int = 1000
    """Optimizer steps."""
    eta: float = 0.01
    """Share of the gradient norm that SURGE injects."""
    lr: float = 0.003
    """Learning rate of Adam."""
    inputs: int = 16
    """Numbers in the network's input."""
    hidden: int = 129
    """Hidden units; an even number lets runs hit the minimum by luck."""
    fixed_input: bool = False
    """Do not train the input; SURGE then acts through the output layer alone."""

    def run(self, console: Console) -> None:
        """Run the arms, print the answers, name the files."""
        from surge.study.theory.toy import ToyOptions

        names = ("seeds", "steps", "eta", "lr", "inputs", "hidden", "fixed_input")
        options = ToyOptions(**{name: getattr(self, name) for name in names})
        _, claims, written = toy_study(options, self.out, console)
        print_claims(claims, console)
        for path in written:
            say(console, f"wrote {path}")


def toy_study(
    options: ToyOptions, folder: Path, console: Console
) -> tuple[dict[str, Log], tuple[Claim, ...], list[Path]]:
    """Run all arms with a progress bar, answer the claims, write everything."""
    from surge.files import check_folder
    from surge.study import figures
    from surge.study.theory import toy, toy_claims, toy_figures

    check_folder(folder)
    figures.require()  # now, not after the work
    with progress(console, "toy problem", total=len(toy.ARMS)) as advance:
        logs = toy.run_study(options, on_arm=lambda name, _: advance(name))
    claims = toy_claims.judge(logs)
    return logs, claims, toy_figures.write_study(logs, claims, folder)


def print_claims(claims: Sequence[Claim], console: Console) -> None:
    """Print every claim with its answer."""
    rows = [_shown(claim) for claim in claims]
    print_table(console, rows, title="What the paper says about the toy problem", columns=_COLUMNS)
    console.print(
        f"Paired over {claims[0].n} seeds; losses as log10, final means the last tenth of the "
        "steps, d is mean / standard deviation of the differences, seeds counts those that show it "
        f"alone. Of {len(claims)} intervals of 95 %, about one misses by chance.\n",
        markup=False,
    )


def _shown(claim: Claim) -> dict[str, object]:
    row = asdict(claim)
    row["arms"] = f"{claim.first} - {claim.second}"
    row["difference"] = f"{claim.difference:+.4f} [{claim.low:+.4f}, {claim.high:+.4f}]"
    row["effect"] = None if claim.effect is None else f"{claim.effect:+.2f}"
    return row


COMMAND = ("toy", ToyCommand)

"""The folder of a run: everything needed to understand, repeat and continue it."""

import io
import json
import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from surge.errors import CheckpointMismatchError, ConfigError
from surge.files import atomic, write_whole
from surge.recipes import serial
from surge.recipes.recipe import Recipe
from surge.train.checkpoint import epochs_done, found

CONFIG = "config.yaml"
"""The file that makes a folder the folder of a run."""
PREDICTIONS = "predictions.npz"
"""What a finished run answered in its last test, where its task keeps that."""
PLACE = ("surge", "torch", "python", "cuda", "device", "hardware", "commit", "dirty")
"""What can differ where a run goes on."""


@dataclass(frozen=True)
class RunFolder:
    """``config.yaml env.json metrics.jsonl log.txt checkpoints/ summary.txt figures/``.

    A finished run on sentences also has ``predictions.npz``.
    """

    path: Path

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are."""
        return self.path / "checkpoints"

    @property
    def there(self) -> bool:
        """Whether the folder holds a run."""
        return (self.path / CONFIG).exists()

    @property
    def begun(self) -> bool:
        """Whether there is a checkpoint to continue from."""
        return bool(found(self.checkpoints))

    @classmethod
    def create(
        cls,
        path: Path,
        recipe: Recipe,
        environment: Mapping[str, object],
        *,
        anew: bool = False,
    ) -> "RunFolder":
        """Start a new run; an existing one is never overwritten.

        With ``anew`` a run that was stopped before its first checkpoint counts as none.
        """
        folder = cls(path)
        folder.check_free(anew=anew)
        folder.write("metrics.jsonl", "")
        folder.write_environment(environment)
        (path / "figures").mkdir(exist_ok=True)
        folder.write(CONFIG, serial.dump(recipe))  # last: now all of it is there
        return folder

    def check_free(self, *, anew: bool = False) -> None:
        """Refuse a folder that holds a run; see :meth:`create`."""
        path = self.path
        if self.begun or (self.there and not anew):
            go_on = f"Continue it with --resume {path}, or choose"
            advice = "It is finished; choose" if (path / "summary.txt").exists() else go_on
            raise ConfigError(f"{path} holds a run already. {advice} another folder with --out.")

    @classmethod
    def open(cls, path: Path) -> tuple["RunFolder", Recipe, dict[str, Any]]:
        """Return an existing run with its recipe and environment."""
        try:
            recipe = serial.load((path / CONFIG).read_text())
            environment = json.loads((path / "env.json").read_text())
            int(environment["seed"])
        except (FileNotFoundError, NotADirectoryError) as error:
            missing = f"{Path(str(error.filename)).name} is missing"
            raise CheckpointMismatchError(
                f"{path} is not the folder of a run: "
                f"{missing if path.exists() else 'nothing is there'}."
            ) from error
        except ConfigError as error:
            raise CheckpointMismatchError(f"{path / CONFIG}: {error}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointMismatchError(
                f"{path} holds a damaged {CONFIG} or env.json: {error!r}."
            ) from error
        return cls(path), recipe, environment

    def went_on(
        self, recipe: Recipe, environment: dict[str, Any], here: Mapping[str, object]
    ) -> dict[str, Any]:
        """Note where a begun run goes on, if not where it was or with other code.

        Return its environment with that: ``later`` lists such places, each with the epochs done.
        """
        done = epochs_done(self.checkpoints)
        if done >= recipe.train.epochs:
            return environment
        later = [place for place in environment.get("later", ()) if place["epoch"] < done]
        last, place = (later or [environment])[-1], {key: here[key] for key in PLACE}
        if any(last.get(key) != value for key, value in place.items()):
            later.append({"epoch": done, **place})
        if later != environment.get("later", []):
            environment = {**environment, "later": later}
            self.write_environment(environment)
        return environment

    def write_environment(self, environment: Mapping[str, object]) -> None:
        """Write where and how the run happens."""
        self.write("env.json", json.dumps(environment, indent=2) + "\n")

    def write(self, name: str, text: str) -> None:
        """Write a small file atomically."""
        with atomic(self.path / name) as file:
            file.write(text.encode())

    def append_metrics(self, row: Mapping[str, object]) -> None:
        """Add one epoch to ``metrics.jsonl``."""
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """Return the epochs written so far."""
        return [row for row in self.rows("metrics.jsonl") if isinstance(row.get("epoch"), int)]

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the lines of a file; one torn by a kill or a full disk is left out."""
        path = self.path / name
        rows = []
        for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
            with suppress(json.JSONDecodeError):
                rows.append(json.loads(line))
        return [row for row in rows if isinstance(row, dict)]

    def keep_metrics(self, epochs: int) -> None:
        """Forget epochs after a checkpoint: they will be trained again."""
        kept = [row for row in self.metrics() if row["epoch"] < epochs]
        self.write("metrics.jsonl", "".join(json.dumps(row) + "\n" for row in kept))

    def write_predictions(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write the answers of the last test, by name; there may be none."""
        if arrays:
            buffer = io.BytesIO()
            np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
            write_whole(self.path / PREDICTIONS, buffer.getvalue())

    def forget_predictions(self) -> None:
        """Remove the answers of a run that is trained on."""
        (self.path / PREDICTIONS).unlink(missing_ok=True)

    def log(self, line: str) -> None:
        """Add a line to ``log.txt``."""
        with (self.path / "log.txt").open("a") as file:
            file.write(line.rstrip() + "\n")


def default_path(recipe: Recipe, seed: int, root: Path) -> Path:
    """Return the folder of a run that names none."""
    return root / f"{recipe.name}-seed{seed}"


def describe_environment(
    device: torch.device, seed: int, *, commit: str | None, command: str
) -> dict[str, object]:
    """Return what a reader needs to know about where a run happened."""
    from surge import __version__

    known, dirty = git_state()
    return {
        "surge": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "device": device.type,
        "hardware": hardware(device),
        "commit": commit or known,
        "dirty": dirty,
        "seed": seed,
        "command": command,
    }


def hardware(device: torch.device) -> str:
    """Return the name of the processor that does the work."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    model = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else ""
    return f"{model or platform.machine()}, {torch.get_num_threads()} threads"


def git_state() -> tuple[str | None, bool]:
    """Return the commit of the source tree and whether it has changes; (None, False) outside."""
    here = Path(__file__).resolve().parent

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(here), *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--", "."))
    except (OSError, subprocess.CalledProcessError):
        return None, False

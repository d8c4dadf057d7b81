"""The published list of the networks in the package, made from what their files say."""

from pathlib import Path

from surge.export.container import metadata_of
from surge.pretrained import list_pretrained, pretrained_path


def section(folder: Path) -> str:
    """Return one row per shipped file; ``folder`` holds results, and none of them is needed."""
    lines = ["| name | recipe | bytes | top-1 in the engine | in torch | tested on |"]
    lines.append("| --- | --- | ---: | ---: | ---: | --- |")
    for name in list_pretrained():
        content = pretrained_path(name).read_bytes()
        facts = metadata_of(content)
        cells = (name, facts["recipe"], f"{len(content):,}", facts["accuracy"])
        lines.append(f"| {' | '.join(cells)} | {facts['accuracy_torch']} | {facts['tested_on']} |")
    return "\n".join(lines) + "\n"

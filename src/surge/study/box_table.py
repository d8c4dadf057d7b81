"""The published list of the networks in the package, made from what their files say."""

import json
from pathlib import Path

from surge.pretrained import list_pretrained, pretrained_path


def section(folder: Path) -> str:
    """Return one row per shipped file; ``folder`` holds results, and none of them is needed."""
    lines = ["| name | recipe | bytes | top-1 in the engine | in torch | tested on |"]
    lines.append("| --- | --- | ---: | ---: | ---: | --- |")
    for name in list_pretrained():
        content = pretrained_path(name).read_bytes()
        size = int.from_bytes(content[:8], "little")
        facts = json.loads(content[8 : 8 + size])["__metadata__"]
        cells = (name, facts["recipe"], f"{len(content):,}", facts["accuracy"])
        lines.append(f"| {' | '.join(cells)} | {facts['accuracy_torch']} | {facts['tested_on']} |")
    return "\n".join(lines) + "\n"

"""Opens a page in a real Chromium, runs a script in it, and returns what the script found."""

import json
import os
import re
import shutil
import subprocess
from html import escape

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium; Debian: apt-get install chromium"
)

NARROWEST = 500
"""A window cannot be narrower; a phone is a frame inside it."""

_WATCH = """<script>window.faults = [];
addEventListener("error", (e) => faults.push(String(e.message || e.target.src || e)), true);
addEventListener("unhandledrejection", (e) => faults.push(String(e.reason)));
const complain = console.error;
console.error = (...words) => { faults.push(words.join(" ")); complain(...words); };</script>"""

_CLOSE = """<script>(async () => {{
const later = () => new Promise((done) => setTimeout(done, 50));
let found = null;
try {{ found = await (async () => {{ {script} }})(); }} catch (e) {{ faults.push("test: " + e); }}
const out = document.createElement("pre");
out.id = "found";
out.textContent = JSON.stringify({{ faults, found }});
parent.document.body.appendChild(out);
}})();</script>"""


def visit(path, script, *, width=1200, dark=False):
    """Return what ``script`` returns; any error of the page, its console or the network fails."""
    text = path.read_text()
    held = path.with_name(f"watched-{path.name}")
    text = text.replace("<head>", f"<head>{_WATCH}", 1)
    text = text.replace("</body>", _CLOSE.format(script=script) + "</body>")
    if width < NARROWEST:
        frame = f'<iframe width="{width}" height="800" style="border: 0" srcdoc="{escape(text)}">'
        text = f'<!DOCTYPE html><body style="margin: 0">{frame}</iframe></body>'
    held.write_text(text)
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            f"--user-data-dir={path.parent / 'profile'}",
            "--enable-logging=stderr",
            f"--window-size={max(width, NARROWEST)},900",
            "--virtual-time-budget=8000",
            *(["--blink-settings=preferredColorScheme=0"] if dark else []),
            "--dump-dom",
            f"file://{held.resolve()}",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "HOME": str(path.parent)},
    )
    match = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.S)
    assert match, f"the page did not finish: {done.stderr[-2000:]}"
    told = json.loads(match[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert told["faults"] == [], told["faults"]
    assert "CONSOLE" not in done.stderr, done.stderr
    return told["found"]

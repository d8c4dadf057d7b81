"""The documentation: every command and code block runs, every link leads somewhere, it builds."""

import contextlib
import io
import re
import shlex
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import tyro

import surge
from surge.cli import discover, main
from surge.method import list_methods
from surge.models import cnn_digits
from surge.study import site
from surge.study.findings import claims, findings
from surge.study.published import variant_table
from tests.berts import save_tiny, tiny_bert, tokens, write_task
from tests.runtime.building import import_engine

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))}
STORY = ("index.md", "how-it-works.md", "your-model.md", "recipes.md", "studying.md")
"""Pages that are run from their first block to the last, as a reader would."""
ELSEWHERE = ("demo",)
"""Commands whose own tests run them in the form that is shown: tests/cli/test_demo_command.py."""
SHORTER = {
    "train": ("--limit", "96"),
    "reproduce": ("--epochs", "1", "--seeds", "0"),
    "toy": ("--seeds", "3", "--steps", "40"),
    "theorem": ("--samples", "500"),
}
"""What makes a command of some time one of seconds; it stays the same command."""


@pytest.fixture(scope="module", autouse=True)
def engine():
    return import_engine()


def blocks(text):
    return re.findall(r"^ *```(\w*)\n(.*?)^ *```$", text, re.M | re.S)


def commands(body):
    whole = body.replace("\\\n", " ")
    lines = [line.split("  #")[0].strip() for line in whole.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("page", STORY)
def test_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names, out = {}, io.StringIO()
    with contextlib.redirect_stdout(out), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for language, body in blocks(PAGES[page]):
            if language == "python":
                exec(compile(body, page, "exec"), names)
            for command in commands(body) if language == "bash" else ():
                surge_word, *words = shlex.split(command)
                assert surge_word == "surge", command
                if words[0] in ELSEWHERE:
                    continue
                assert main([*words, *SHORTER.get(words[0], ())]) == 0, command
    assert out.getvalue()


def prepared(page):
    """What the snippets of a reference page take for granted."""
    torch.manual_seed(0)
    if page == "glue.md":
        return {"surge": surge, "model": tiny_bert(), "first_batch": tokens()}
    model = cnn_digits()
    surge.binarize_(model, "recu")
    surge.compensate_(model)
    example = torch.zeros(1, 1, 8, 8)
    batch = np.zeros((2, 1, 8, 8), dtype=np.float32)
    return {"surge": surge, "model": model.eval(), "example": example, "batch": batch}


REFERENCE = [
    (page, number)
    for page in PAGES
    if page not in STORY
    for number, (language, _) in enumerate(blocks(PAGES[page]))
    if language in ("bash", "python")
]


@pytest.mark.parametrize(("page", "number"), REFERENCE)
def test_block_of_a_reference_page_is_right(page, number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    language, body = blocks(PAGES[page])[number]
    if language == "python":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(compile(body, page, "exec"), prepared(page))
        return
    tree = discover()
    for command in commands(body):
        first, *words = shlex.split(command)
        if first == "torchrun":  # ... -m surge train ...
            words = words[words.index("surge") + 1 :]
        elif first != "surge":
            continue
        name, rest = tree.resolve(words)
        tyro.cli(tree.commands[name], args=rest)


def test_commands_of_the_glue_page_run_on_a_tiny_bert(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SURGE_DATA", raising=False)
    write_task(tmp_path / "data", "mrpc")
    save_tiny(tmp_path / "BERT")
    shorter = {"train": ("--epochs", "1", "--limit", "32"), "reproduce": ("--epochs", "1")}
    (body,) = (body for language, body in blocks(PAGES["glue.md"]) if language == "bash")
    for command in commands(body):
        _, *words = shlex.split(command)
        less = ("--each", "0.2s", "--seeds", "0") if "--each" in words else shorter[words[0]]
        assert main([*words, *less, "--device", "cpu"]) == 0, command
    stored = (tmp_path / "results" / "glue.jsonl").read_text()
    # Accuracy and F1, once and 3 seeds and once within a time.
    assert stored.count('"row": "mrpc-bit-surge", ') == 2 * 5


def test_every_block_says_what_it_is():
    for page in STORY:
        assert {language for language, _ in blocks(PAGES[page])} <= {"bash", "python", "text"}, page


def test_links_and_pictures_lead_somewhere():
    for page, text in PAGES.items():
        for target in re.findall(r"\]\(([^)#:]+)[#)]", text):
            there = (DOCS / target).exists() or target in site.MADE
            assert there, f"{page}: {target}"


def test_commands_in_the_text_exist():
    words = set(discover().under(""))
    for page in (*STORY, "findings.md"):
        for word in re.findall(r"`surge ([a-z]+)", PAGES[page]):
            assert word in words, f"{page}: {word}"


def test_pictures_are_small():
    for path in (DOCS / "images").glob("*.png"):
        assert path.stat().st_size < 200_000, path.name


@pytest.mark.parametrize("name", site.PICTURES)
def test_pictures_of_stored_runs_are_the_committed_figures(name):
    shown = (DOCS / "images" / f"{name}.png").read_bytes()
    assert shown == site.figure_of(ROOT, name).read_bytes(), "run: make figures"
    assert any(f"images/{name}.png" in text for text in PAGES.values())


def test_findings_are_what_results_say():
    text = PAGES["findings.md"]
    assert findings.renewed(text, ROOT / "results", claims.CLAIMS) == text, "run: make tables"


def test_site_builds_without_a_warning(tmp_path, monkeypatch, caplog):
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    # Drawing them all takes half a minute; make docs does.
    one = site.method_picture("bireal")
    monkeypatch.setattr(site, "method_picture", lambda name: one)
    monkeypatch.chdir(ROOT)
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path / "site"), strict=True)
    build(config)
    assert [r.message for r in caplog.records if r.levelname in ("WARNING", "ERROR")] == []
    built = {path.name for path in (tmp_path / "site").glob("*.html")}
    assert {"index.html", "gallery.html", "api.html", "findings.html", "recipes.html"} <= built
    pictures = (tmp_path / "site" / "images" / "methods").glob("*.png")
    assert {path.stem for path in pictures} == set(list_methods())
    for path in (tmp_path / "site").rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|link|img)[^>]*(?:src|href)="(https?:[^"]+)"', path.read_text()
        )
        assert loaded == [], path.name


def test_gallery_and_api_name_everything():
    text = site.gallery()
    assert all(f"\n## {name}\n" in text for name in list_methods())
    assert all(f"\n## {name}\n" in site.api() for name in surge.__all__)
    assert "`cifar10-resnet20-recu-surge`" in site.recipe_table()
    assert "| tied | `eta=0.2, auxiliary='tied', decay='cosine'` |" in variant_table.section(ROOT)

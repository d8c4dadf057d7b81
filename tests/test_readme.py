"""README.md: its code, commands, picture, links and table; and the import it begins with."""

import contextlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import surge
from surge.cli import discover, main
from surge.errors import ConfigError
from surge.recipes import get_recipe, list_recipes
from surge.study.all_methods import PROTOCOLS
from surge.study.published import pages
from tests.nets import published_methods

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", TEXT, re.M | re.S)
PYTHON = [body for language, body in BLOCKS if language == "python"]
COMMANDS = [
    line.split("#")[0].strip()
    for language, body in BLOCKS
    if language == "bash"
    for line in body.splitlines()
]
SHORTER = {"toy": ("--seeds", "3", "--steps", "40"), "train": ("--epochs", "2")}
"""What makes a command of half a minute one of seconds; it stays the same command."""


def test_every_block_says_what_it_is():
    assert {language for language, _ in BLOCKS} == {"bash", "python", "text"}


def test_python_block_prints_what_readme_shows():
    (code,) = PYTHON
    shown = BLOCKS[BLOCKS.index(("python", code)) + 1]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    assert shown == ("text", printed.getvalue())


def test_python_block_has_eight_lines():
    assert len([line for line in PYTHON[0].splitlines() if line]) == 8


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("make ")])
def test_make_command_has_a_target(command):
    words = command.split()
    done = subprocess.run(
        ["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "pytest" in done.stdout if words[1] == "test" else "surge demo" in done.stdout


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("surge ")])
def test_surge_command_runs(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    _, *words = command.split()
    assert main([*words, *SHORTER.get(words[0], ())]) == 0
    assert capsys.readouterr().out


def test_no_other_commands_are_shown():
    assert [c for c in COMMANDS if not c.startswith(("make ", "surge "))] == []
    assert sum(c.startswith("surge ") for c in COMMANDS) == 3


def test_commands_in_the_text_exist():
    for word in re.findall(r"`surge ([a-z]+)", TEXT):
        assert word in discover().under(""), word


def test_links_and_pictures_lead_somewhere():
    targets = re.findall(r"\]\(([^)#]+)[#)]", TEXT)
    assert {"CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"} <= set(targets)
    for target in targets:
        assert (ROOT / target).exists(), target


def test_pictures_are_small_and_name_their_command():
    named = re.findall(r"^<!-- surge (\w+) .* -->\n!\[.*\]\((.*)\)$", TEXT, re.M)
    assert len(named) == len(re.findall(r"^!\[", TEXT, re.M)) > 0
    for command, picture in named:
        assert command in discover().commands
        assert (ROOT / picture).stat().st_size < 150_000


def settled(text):
    """Leave out the open rows of a new method, which may wait for its first run."""
    recipes = [get_recipe(name) for table in PROTOCOLS for name in list_recipes(table)]
    methods = {r.row: r.method.name for r in recipes if r.method}
    new = tuple(
        f"| {row} |" for row, method in methods.items() if method not in published_methods()
    )
    return [line for line in text.splitlines(True) if not line.startswith(new)]


@pytest.mark.parametrize("page", pages.PAGES)
def test_tables_are_what_results_say(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    made = pages.renewed(text, page, ROOT / "results")
    assert settled(made) == settled(text), "run: make tables"


BEGIN, END = "<!-- results:cifar10 -->\n", "<!-- /results:cifar10 -->\n"


def test_renewed_replaces_what_stands_between_the_markers(tmp_path):
    text = f"before\n{BEGIN}| old |\n{END}after\n"
    made = pages.cifar10(tmp_path)
    assert pages.renewed(text, "README.md", tmp_path) == f"before\n{BEGIN}{made}{END}after\n"


def test_tables_target_renews_all_pages(tmp_path):
    for page in pages.PAGES:
        marks = "".join(f"<!-- results:{n} -->\n<!-- /results:{n} -->\n" for n in pages.PAGES[page])
        (tmp_path / page).parent.mkdir(exist_ok=True)
        (tmp_path / page).write_text(marks, encoding="utf-8")
    pages.renew_all(tmp_path)
    for page, sections in pages.PAGES.items():
        for make in sections.values():
            assert make(tmp_path / "results") in (tmp_path / page).read_text()
    done = subprocess.run(
        ["make", "-n", "tables"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "surge.study.published.pages" in done.stdout


def test_section_without_results_is_all_open(tmp_path):
    section = pages.cifar10(tmp_path)
    rows = [line for line in section.splitlines() if line.startswith("| ")][2:]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == list(pages.ALWAYS)
    assert all("| open | open | 0 |" in row for row in rows)
    assert section.endswith("No run is stored yet: every cell is open.\n")


LINE = (
    '{{"table": "cifar10", "row": "{row}", "recipe": "cifar10-{row}", "overrides": {changed}, '
    '"seed": {seed}, "epochs": {epochs}, "data": "cifar10, {data}", "precision": "bf16", '
    '"metric": "top1", "last": {last}, "best": {last}, "seconds": 1800, "hardware": "a GPU", '
    '"torch": "2.13", "commit": null}}\n'
)


def store(folder, row, *, seed=0, epochs=600, last=80.0, data="test set", changed="{}"):
    line = LINE.format(row=row, seed=seed, epochs=epochs, last=last, data=data, changed=changed)
    with (folder / "cifar10.jsonl").open("a") as file:
        file.write(line)


def test_section_has_one_row_per_row_and_epochs(tmp_path):
    for seed in (0, 1):
        store(tmp_path, "resnet20-recu", seed=seed, last=80 + seed)
        store(tmp_path, "resnet20-recu-surge", seed=seed, last=82 + 2 * seed)
    store(tmp_path, "resnet20-recu-surge-tied", epochs=60, seed=2)
    section = pages.cifar10(tmp_path)
    rows = [line for line in section.splitlines() if line.startswith("| resnet20")]
    assert rows[0] == "| resnet20-recu | 600 | 87.4 | 80.50 +- 0.71 | 80.50 +- 0.71 | 2 | - |"
    assert rows[1].startswith("| resnet20-recu-surge | 600 | 88.0 | 83.00 +- 1.41 |")
    assert rows[1].endswith("(2 pairs) |")
    assert rows[2] == "| resnet20-recu-surge-tied | 60 | - | 80.00 | 80.00 | 1 | open |"
    assert len(rows) == 3
    assert "5 stored runs, 2.5 hours on a GPU, torch 2.13, bf16; seeds 0-2." in section


def test_section_leaves_out_held_out_and_changed_runs(tmp_path):
    store(tmp_path, "resnet20-recu", data="held out", changed='{"held_out": true}')
    store(tmp_path, "resnet20-recu-surge", changed='{"eta": 0.1}')
    assert pages.cifar10(tmp_path) == pages.cifar10(tmp_path / "nothing")


@pytest.mark.parametrize(
    "text",
    ["", BEGIN, END + BEGIN, 2 * (BEGIN + END)],
    ids=["none", "open", "reversed", "twice"],
)
def test_missing_markers_are_refused(text, tmp_path):
    with pytest.raises(ConfigError, match="README.md needs one"):
        pages.renewed(text, "README.md", tmp_path)


def python(code):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "imports",
    [
        "import surge",
        "import surge.summary",
        "from surge.summary import Summary; import surge",
        "import surge; surge.summary; import surge.summary",
    ],
)
def test_summary_is_the_function_whatever_was_imported_first(imports):
    code = (
        f"{imports}\nfrom surge import Summary, summary\nimport sys\n"
        "print(surge.summary is summary is sys.modules['surge.summary'].summary, "
        "type(summary).__name__, Summary.__name__, type(sys.modules['surge.summary']).__name__)"
    )
    assert python(code) == "True function Summary module"


def test_import_alone_does_not_load_torch():
    assert python("import sys, surge; print('torch' in sys.modules)") == "False"


def test_public_names_are_listed_and_importable():
    assert set(surge.__all__) <= set(dir(surge))
    assert set(surge._HOMES) == set(surge.__all__)
    for name in surge.__all__:
        assert getattr(surge, name).__name__ == name


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'binarise_'"):
        _ = surge.binarise_


def test_stored_table_shows_the_deciding_metric_of_unchanged_runs(tmp_path):
    shared = {"table": "glue", "overrides": {}, "seed": 0, "epochs": 20, "precision": "tf32"}
    shared |= {"seconds": 9, "hardware": "a GPU", "torch": "2.13", "commit": None, "best": 70.0}
    lines = [
        {"row": "mrpc-bit", "metric": "accuracy", "data": "mrpc, dev set, b", "last": 61.5},
        {"row": "mrpc-bit", "metric": "f1", "data": "mrpc, dev set, b", "last": 62.5},
        {"row": "mrpc-bit", "metric": "accuracy", "data": "mrpc, held out, b", "last": 63.5},
        {"row": "gone", "metric": "accuracy", "data": "mrpc, dev set, b", "last": 64.5},
    ]
    text = "".join(
        json.dumps({**shared, **line, "recipe": f"glue-{line['row']}"}) + "\n" for line in lines
    )
    (tmp_path / "glue.jsonl").write_text(text)
    made = pages.stored_table("glue", tmp_path)
    assert "| mrpc-bit | 20 | - | 61.50 | 70.00 | 1 | - |" in made
    assert made.count("| mrpc-bit") == 1 and "gone" not in made


def test_contributing_says_in_which_order_rooms_import_each_other():
    rule = re.search(r"`(functional <- [^`]*)`", (ROOT / "CONTRIBUTING.md").read_text())[1]
    rooms = re.findall(r"\w+", rule)
    for place, room in enumerate(rooms):
        home = ROOT / "src" / "surge" / room
        for path in home.rglob("*.py") if home.is_dir() else [home.with_suffix(".py")]:
            found = re.findall(r"^\s*from surge\.(\w+)", path.read_text(), re.MULTILINE)
            assert not {*found} & {*rooms[place + 1 :]}, path

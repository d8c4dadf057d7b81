"""The frame of the ``surge`` command: discovery, help, exit codes, one-line errors."""

import ast
import errno
import inspect
import os
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import pytest
import tyro

import surge.cli
from surge.cli import CommandTree, discover, main
from surge.cli._optional import REGISTRY
from surge.cli._parse_errors import one_line
from surge.errors import ConfigError, SurgeError

NEW_COMMAND = '''
from dataclasses import dataclass

@dataclass(frozen=True)
class New:
    """Do something {name}."""
    size: int = 3
    """How large."""
    def run(self, console):
        console.print("size", self.size)

COMMAND = ("{name}", New)
'''


@dataclass(frozen=True)
class Fails:
    """Fail in a chosen way."""

    how: str = "user"
    """Which way."""

    def run(self, console):
        match self.how:
            case "user":
                raise SurgeError("the thing\nis wrong")
            case "interrupt":
                raise KeyboardInterrupt
            case "disguised":
                raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()
            case "disk":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/data/run.bin")
            case "read-only":
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), "/data/run.bin")
            case "path":
                raise NotADirectoryError(errno.ENOTDIR, "Not a directory", "/data/file/run")
            case "bug":
                raise RuntimeError("a bug")
            case "device":
                raise OSError(errno.EIO, "Input/output error")
            case code:
                return int(code)


@pytest.fixture
def failing(monkeypatch):
    tree = CommandTree({"fails": Fails, "bench infer": Fails, "bench train": Fails})
    monkeypatch.setattr(surge.cli, "discover", lambda: tree)


@pytest.fixture
def extra_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(surge.cli, "__path__", [*surge.cli.__path__, str(tmp_path)])
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("surge.cli.extra_")]:
        del sys.modules[name]
        delattr(surge.cli, name.rpartition(".")[2])


def test_main_alone_lists_every_command_with_its_line(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    for name in discover().under(""):
        assert f"  {name} " in out
    assert "Monte Carlo" in out


def test_main_help_equals_no_arguments(capsys):
    main([])
    alone = capsys.readouterr().out
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == alone


@pytest.mark.parametrize("name", sorted(discover().commands))
def test_every_command_teaches_with_an_example(name, capsys):
    assert main([*name.split(), "--help"]) == 0
    out = capsys.readouterr().out
    assert "Example" in out
    assert f"    surge {name}" in out


@pytest.mark.parametrize("name", sorted(discover().commands))
def test_help_names_what_an_option_takes(name, capsys):
    assert main([*name.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert "{None" not in text
    assert "[STR]" not in text and "[PATH]" not in text


@pytest.mark.parametrize("name", sorted(discover().commands))
def test_help_of_an_option_is_one_line_that_tyro_can_wrap(name):
    (tree,) = ast.parse(inspect.getsource(discover().commands[name])).body
    fields = [below for above, below in pairwise(tree.body) if isinstance(above, ast.AnnAssign)]
    texts = [below.value.value for below in fields if isinstance(below, ast.Expr)]
    assert texts and not [text for text in texts if "\n" in text]


def test_an_option_that_may_be_left_out_is_none_or_what_was_given():
    given = tyro.cli(Optionals, args=["--number", "3", "--word", "None"], registry=REGISTRY)
    assert given == Optionals(number=3, word="None")
    assert tyro.cli(Optionals, args=[], registry=REGISTRY) == Optionals()


@dataclass(frozen=True)
class Optionals:
    number: int | None = None
    word: str | None = None
    choice: Literal["a", "b"] | None = "b"


def test_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("surge ")


def test_version_without_an_installed_distribution(capsys, monkeypatch):
    from importlib import metadata

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert main(["--version"]) == 0
    assert "not installed" in capsys.readouterr().out


def test_unknown_command_names_the_near_miss(capsys):
    assert main(["theorm"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith('error: unknown command "theorm". Did you mean "theorem"?')
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_unknown_option_of_the_frame_is_a_user_error(capsys):
    assert main(["--verbos"]) == 2
    assert 'unknown option "--verbos"' in capsys.readouterr().err


UNPARSABLE = [
    (
        ["toy", "--seeds", "abc"],
        "--seeds: invalid literal for int() with base 10: 'abc'. Expected: --seeds INT.",
    ),
    (
        ["toy", "--sedes", "3"],
        "Unrecognized options: --sedes, 3. Perhaps you meant: --seeds INT.",
    ),
    (
        ["train", "--epoch", "4"],
        "--epoch, 4. Perhaps you meant: --epochs INT, --test-epochs INT.",
    ),
    (["train", "--precision", "xx"], "Expected one of ('fp32', 'tf32', 'bf16')."),
    (["evaluate"], "Missing from surge evaluate: RUN."),
]


@pytest.mark.parametrize(("words", "text"), UNPARSABLE)
@pytest.mark.parametrize("width", ["40", "120"])
def test_an_unparsable_command_line_is_one_line(capsys, monkeypatch, words, text, width):
    monkeypatch.setenv("COLUMNS", width)
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1
    assert captured.err.endswith(f"{text} Run `surge {words[0]} --help` for the options.\n")
    assert captured.out == ""


def test_an_unparsable_command_line_is_one_line_without_box_characters():
    box = """
 Value error
 -----------------------------
  Error parsing --seeds: no
  number: 'abc'
  ----------------------------
  Argument helptext:
      --seeds INT
      Starts per arm.
  ----------------------------
  For full helptext, see toy --help
"""
    expected = "--seeds: no number: 'abc'. Expected: --seeds INT. Run `toy --help` for the options."
    assert one_line(box.lstrip("\n"), "toy") == expected


def test_what_is_written_while_a_good_command_line_is_read_is_kept(failing, capsys, monkeypatch):
    def warned(*args, **kwargs):
        sys.stderr.write("beware\n")
        return Fails("0")

    monkeypatch.setattr(tyro, "cli", warned)
    assert main(["fails"]) == 0
    assert capsys.readouterr().err == "beware\n"


@pytest.mark.parametrize(
    ("how", "code", "text"),
    [
        ("user", 2, "error: the thing is wrong"),
        ("interrupt", 130, "error: interrupted"),
        ("disguised", 130, "error: interrupted"),
        ("disk", 2, "error: No space left on device: /data/run.bin"),
        ("read-only", 2, "error: Read-only file system: /data/run.bin"),
        ("path", 2, "error: Not a directory: /data/file/run"),
    ],
)
def test_expected_errors_are_one_line(failing, capsys, how, code, text):
    assert main(["fails", "--how", how]) == code
    assert capsys.readouterr().err == text + "\n"


@pytest.mark.parametrize(
    "words",
    [["--debug", "fails"], ["fails", "--debug"], ["fails", "--debug", "--how", "disk"]],
)
def test_debug_shows_the_traceback_wherever_it_stands(failing, capsys, words):
    assert main(words) == 2
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert err.splitlines()[-1].startswith("error: ")


def test_debug_behind_a_double_dash_is_not_ours():
    assert surge.cli._take_debug(["run", "--", "--debug"]) == (["run", "--", "--debug"], False)


@pytest.mark.parametrize(("how", "kind"), [("bug", RuntimeError), ("device", OSError)])
def test_a_bug_keeps_its_traceback(failing, how, kind):
    with pytest.raises(kind):
        main(["fails", "--how", how])


def test_what_run_returns_is_the_exit_code(failing):
    assert main(["fails", "--how", "7"]) == 7
    assert main(["fails", "--how", "0"]) == 0


def test_nested_commands_run_and_are_listed(failing, capsys):
    assert main(["bench", "infer", "--how", "5"]) == 5
    assert main(["bench"]) == 0
    out = capsys.readouterr().out
    assert "usage: surge bench COMMAND" in out
    assert "infer" in out and "train" in out
    assert main([]) == 0
    assert "Commands: infer, train." in capsys.readouterr().out


def test_nested_near_miss_and_option(failing, capsys):
    assert main(["bench", "inferr"]) == 2
    assert 'Did you mean "infer"? Run `surge bench --help`' in capsys.readouterr().err
    assert main(["bench", "--fast"]) == 2
    assert "`surge bench --help`" in capsys.readouterr().err


def test_discovery_finds_a_new_file_without_any_edit(extra_folder, capsys):
    (extra_folder / "extra_new.py").write_text(NEW_COMMAND.format(name="new"))
    assert main(["new", "--size", "8"]) == 0
    assert capsys.readouterr().out == "size 8\n"
    assert main([]) == 0
    assert "Do something new." in capsys.readouterr().out


def test_discovery_takes_the_line_of_a_group(extra_folder):
    text = NEW_COMMAND.format(name="group one") + 'GROUP = "All about groups."\n'
    (extra_folder / "extra_one.py").write_text(text)
    (extra_folder / "extra_two.py").write_text(NEW_COMMAND.format(name="group two"))
    tree = discover()
    assert tree.under("")["group"] == "All about groups."
    assert list(tree.under("group")) == ["one", "two"]


def test_discovery_refuses_two_commands_of_one_name(extra_folder):
    (extra_folder / "extra_twin.py").write_text(NEW_COMMAND.format(name="theorem"))
    with pytest.raises(ConfigError, match='"theorem"'):
        discover()


def test_every_command_has_a_line_and_a_run_method():
    for name, command in discover().commands.items():
        assert command.__doc__, name
        assert callable(command.run), name


def _python(code, *, stdout=subprocess.PIPE):
    return subprocess.run(
        [sys.executable, "-c", code], stdout=stdout, stderr=subprocess.PIPE, text=True, check=False
    )


def test_help_imports_nothing_heavy_of_its_own():
    code = (
        "import sys, surge.errors; before = set(sys.modules); from surge.cli import main; "
        "main(['--help']); new = {m.split('.')[0] for m in set(sys.modules) - before}; "
        "print(sorted(new & {'torch', 'matplotlib', 'sklearn', 'transformers', 'scipy'}))"
    )
    done = _python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


LISTING = "import sys; from surge.cli import main; sys.exit(main([]))"
RAW_WRITER = """
import os, sys
from dataclasses import dataclass
import surge.cli

@dataclass(frozen=True)
class Writes:
    def run(self, console):
        os.write(1, b"more than the reader wants")

surge.cli.discover = lambda: surge.cli.CommandTree({"writes": Writes})
sys.exit(surge.cli.main(["writes"]))
"""


@pytest.mark.parametrize("code", [LISTING, RAW_WRITER], ids=["rich", "raw"])
def test_a_closed_pipe_is_no_error(code):
    reader, writer = os.pipe()
    os.close(reader)
    done = _python(code, stdout=writer)
    os.close(writer)
    assert done.stderr == ""

"""A run on photographs as one file."""

from surge.cli import main
from tests.train.photo_runs import narrow, train


def test_run_is_packed_with_its_size_and_classes(tmp_path, imagenette_dir, engine, capsys):
    assert train("imagenette-onestage-reactnet-surge", data=imagenette_dir, out=tmp_path) == 0
    words = ["export", tmp_path / "run", "--out", tmp_path / "net.surge", "--data", imagenette_dir]
    with narrow():
        assert main([str(word) for word in [*words, "--measure"]]) == 0
    assert "% in the engine" in capsys.readouterr().out
    content = (tmp_path / "net.surge").read_bytes()
    assert b"French horn" in content and content[8:9] == b"{"

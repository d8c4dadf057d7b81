"""Work in a process of its own: what it says, what it prints, how it ends and is ended."""

import os
import signal
import sys
import threading
import time
from multiprocessing.connection import wait

import pytest

from surge.train.processes import child as apart
from surge.train.processes.child import Apart


def answering(line, words):
    print("printed", words)
    os.system("echo by a library")
    line.say(words)
    return words.upper()


def lingering(line):
    threading.Thread(target=time.sleep, args=(600,)).start()
    return "done"


def failing(line):
    raise KeyError("no such thing")


def dying(line):
    line.say("alive")
    print("something is odd", file=sys.stderr)
    os.kill(os.getpid(), signal.SIGKILL)


def patient(line, ready):
    """Say something, then work until asked to stop."""
    if ready:
        line.say("working")
    until = time.monotonic() + 120
    while not line.stopped() and time.monotonic() < until:
        time.sleep(0.01)
    return line.stopped()


def listened(one):
    """Everything that is said, and the end."""
    said, ended = [], None
    while ended is None:
        wait([one.pipe], 0.1)
        more, ended = one.heard()
        said += more
    return said, ended


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    """Six processes side by side, and what came of each."""
    folder = tmp_path_factory.mktemp("logs")
    kept = Apart(patient, True, log=folder / "kept")
    begun = {
        "answering": Apart(answering, "a b", log=folder / "new" / "answering"),
        "failing": Apart(failing, log=folder / "failing"),
        "dying": Apart(dying, log=folder / "dying"),
        "pickled": Apart(os.getpid, object(), log=folder / "pickled"),
    }
    found = {name: listened(one) for name, one in begun.items()}
    while not (said := kept.heard()[0]):
        time.sleep(0.02)
    kept.ask_to_stop()
    found["kept"] = said, listened(kept)[1]
    left = Apart(patient, True, log=folder / "left")
    while not left.heard()[0]:
        time.sleep(0.02)
    left.pipe.close()  # as after the death of whoever began it
    found["left"] = left
    return folder, found


def test_what_is_said_and_answered_arrives_and_what_is_printed_is_kept(ends):
    folder, found = ends
    said, ended = found["answering"]
    assert (said, ended.answer, ended.error) == (["a b"], "A B", None)
    log = (folder / "new" / "answering").read_text()
    assert "printed a b" in log and "by a library" in log


def test_error_arrives_with_its_name_and_leaves_its_traceback(ends):
    folder, found = ends
    said, ended = found["failing"]
    assert said == [] and ended.kind == "KeyError" and "no such thing" in ended.error
    assert "Traceback" in (folder / "failing").read_text()


def test_process_that_is_killed_has_last_words(ends):
    said, ended = ends[1]["dying"]
    assert said == ["alive"] and not ended.kind
    assert "SIGKILL; memory may be short" in ended.error
    assert "something is odd" in ended.error


def test_asked_to_stop_it_ends_its_work(ends):
    said, ended = ends[1]["kept"]
    assert said == ["working"] and ended.answer is True


def test_wrong_call_is_an_error_of_the_process(ends):
    assert ends[1]["pickled"][1].kind == "TypeError"


def test_before_it_said_anything_it_just_ends(ends, tmp_path):
    one = Apart(patient, False, log=tmp_path / "log")
    while not (tmp_path / "log").exists():
        time.sleep(0.02)
    one.ask_to_stop()
    said, ended = listened(one)
    assert said == [] and "SIGTERM" in ended.error and not one.alive


def test_process_that_does_not_leave_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(apart, "LEAVING", 0.1)
    one = Apart(lingering, log=tmp_path / "log")
    assert listened(one)[1].answer == "done"
    one._process.join(60)
    assert not one.alive


def test_killed_it_is_gone(ends):
    left = ends[1]["left"]
    assert left.alive
    left.kill()
    left._process.join()
    assert not left.alive

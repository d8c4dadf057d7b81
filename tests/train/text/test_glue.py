"""GLUE through the real command and the one loop: stored losses, resume, budget, processes."""

import json
import time
from dataclasses import replace
from functools import partial
from itertools import combinations

import numpy as np
import pytest
import torch
import torch.multiprocessing

from surge.cli import _training, main
from surge.data.glue import get_task
from surge.data.glue_metrics import score
from surge.layers.elastic import elastic_parts
from surge.recipes import get_recipe
from surge.recipes.placing import placed
from surge.recipes.recipe import TrainSpec
from surge.train.build import load_sets
from surge.train.loop import LoopOptions, Trainer
from surge.train.run import RunFolder
from surge.train.schedule import step_rate
from surge.train.scoring import TextTest
from surge.train.text.build import bert_groups, joined_parts
from tests.berts import save_tiny, write_task, write_tasks
from tests.nets import assert_same_tensors
from tests.train import glue_ranks, glue_runs
from tests.train.glue_runs import command, head_of, last_weights, measured, quiet_bert, rows
from tests.train.losses import double_precision

GOLDEN = glue_runs.stored()
TOLERANCE = 1e-6
CPU = torch.device("cpu")
SHORT = ("--epochs", 2, "--limit", 16)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return quiet_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def lively(tmp_path_factory):
    """A tiny BERT with dropout."""
    return save_tiny(tmp_path_factory.mktemp("lively"))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_tasks(tmp_path_factory.mktemp("data"), "mrpc", "stsb", "rte")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory, lively, root):
    out = tmp_path_factory.mktemp("teacher") / "run"
    command("glue-mrpc-teacher", lively, root, out, *SHORT)
    return out


# Stored losses


def assert_stored(found):
    for name, traces in found.items():
        assert traces.keys() == GOLDEN[name].keys()
        for key, values in traces.items():
            assert values == pytest.approx(GOLDEN[name][key], rel=TOLERANCE), (name, key)


@pytest.mark.parametrize("task", glue_runs.TASKS)
def test_first_steps_are_the_stored_ones(tmp_path, glue_dir, bert, task):
    found = measured(task, bert, head_of(glue_dir, tmp_path / "data", task), tmp_path / "runs")
    assert found.keys() == {name for name in GOLDEN if name.startswith(f"{task}-")}
    assert_stored(found)


def test_compiled_first_steps_are_the_stored_ones(tmp_path, glue_dir, bert, monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    here = head_of(glue_dir, tmp_path / "data", "mrpc")
    options = ("--compiled", "True")
    found = measured("mrpc", bert, here, tmp_path / "runs", ("bit-surge",), *options)
    torch._dynamo.reset()
    assert_stored(found)


def test_stored_steps_tell_the_arms_of_surge_apart():
    """Further than the tolerance, so that a broken eta, path or alignment loss is seen."""
    arms = [GOLDEN[f"mrpc-bit-surge{kind}"] for kind in ("", "-align", "-tied")]
    for a, b in combinations(arms, 2):
        apart = [
            abs(x / y - 1) if y else abs(x) for k in a for x, y in zip(a[k], b[k], strict=True)
        ]
        assert max(apart) > 10 * TOLERANCE


def test_arms_of_a_pair_start_with_the_same_loss():
    pairs = [(name, name.partition("-surge")[0]) for name in GOLDEN if "-surge" in name]
    assert len(pairs) > 5
    for surged, plain in pairs:
        assert GOLDEN[surged]["train_loss"][0] == GOLDEN[plain]["train_loss"][0]


# The command


def test_results_have_a_line_per_metric(teacher):
    """The one that decides comes last: where it is, the others are."""
    lines = (teacher.parent / "results" / "glue.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert [line["metric"] for line in found] == ["f1", "accuracy"]
    last = rows(teacher)[-1]
    assert found[0]["last"] == pytest.approx(last["test_f1"], abs=1e-4)
    assert found[1]["last"] == pytest.approx(last["test_accuracy"], abs=1e-4)
    assert found[0]["data"].startswith("mrpc, dev set, lively")


def test_student_starts_from_its_teacher(tmp_path, lively, root, teacher):
    recipe = placed(get_recipe("glue-mrpc-bit"), model=str(lively), teacher=str(teacher))
    student = trainer_of(tmp_path, recipe, root).parts.model.state_dict()
    taught = last_weights(teacher)
    assert_same_tensors({name: student[name] for name in taught}, taught)


def trainer_of(path, recipe, root, **options):
    path.mkdir(parents=True, exist_ok=True)
    return Trainer(
        recipe,
        load_sets(recipe.data, root),
        seed=0,
        device=CPU,
        folder=RunFolder(path),
        options=LoopOptions(save_every=0.0, **options),
    )


def short(name, model, teacher=None, **train):
    recipe = placed(get_recipe(name), model=str(model), teacher=teacher and str(teacher))
    data = replace(recipe.data, length=24)
    return replace(recipe, data=data, train=replace(recipe.train, **train))


def test_resumed_run_equals_an_uninterrupted_one(tmp_path, lively, root, teacher):
    recipe = short("glue-mrpc-bit-surge", lively, teacher, epochs=3, batch=16, test_every=3)
    whole = trainer_of(tmp_path / "whole", recipe, root)
    expected = []
    whole.run(expected.append)
    first = trainer_of(tmp_path / "parts", recipe, root, deadline=time.monotonic())
    found = []
    assert not first.run(found.append).finished
    second = trainer_of(tmp_path / "parts", recipe, root)
    second.resume()
    outcome = second.run(found.append)
    assert outcome.finished and len(found) == 3
    assert_same_tensors(second.parts.model.state_dict(), whole.parts.model.state_dict())
    for row, other in zip(found, expected, strict=True):
        assert {**row, "seconds": 0} == {**other, "seconds": 0}
    assert (second.best, second.best_scores) == (whole.best, whole.best_scores)


def test_resume_through_the_command_needs_the_folder_alone(tmp_path, lively, root, teacher):
    out = tmp_path / "run"
    words = ["train", "glue-mrpc-bit", "--model", str(lively), "--teacher", str(teacher)]
    words += ["--out", str(out), "--data", str(root), "--results", str(tmp_path / "results")]
    with pytest.MonkeyPatch.context() as patch:
        # The first epoch is done, the second never begins.
        patch.setattr(Trainer, "_run", stop_after_one(Trainer._run))
        assert main([*words, "--device", "cpu", "--epochs", "2", "--limit", "8"]) == 0
    assert len(rows(out)) == 1
    again = ["train", "--resume", str(out), "--data", str(root), "--device", "cpu"]
    assert main([*again, "--results", str(tmp_path / "results")]) == 0
    assert len(rows(out)) == 2


def stop_after_one(run):
    def stopped(self, on_row):
        self.options = replace(self.options, deadline=time.monotonic())
        run(self, on_row)

    return stopped


def test_resume_refuses_other_folders(tmp_path, teacher, capsys):
    assert main(["train", "--resume", str(teacher), "--model", "x"]) == 2
    assert "drop --model" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, text",
    [
        (["glue-mrpc-bit"], "needs a pretrained BERT"),
        (["glue-mprc-bit"], 'Did you mean "glue-mrpc-bit"'),
        (["digits-cnn-bnn", "--model", "x"], "takes no --model"),
        (["glue-mrpc-teacher", "--model", "nowhere"], "no config.json"),
    ],
)
def test_mistakes_are_answered_by_a_sentence(capsys, words, text):
    assert main(["train", *words, "--device", "cpu"]) == 2
    assert text in " ".join(capsys.readouterr().err.split())


def test_teacher_of_another_task_is_refused(tmp_path, lively, root, teacher, capsys):
    words = ["train", "glue-rte-bit", "--model", str(lively), "--teacher", str(teacher)]
    words += ["--out", str(tmp_path / "x"), "--data", str(root), "--device", "cpu"]
    assert main(words) == 2
    assert "no float teacher for rte" in " ".join(capsys.readouterr().err.split())


def test_quirk_of_scores_both_ways(tmp_path, bert, root):
    """By default the classifier of STS-B only shrinks by its decay; with ``mse`` it learns."""
    teacher, name = tmp_path / "teacher", "classifier.classifier.weight"
    command("glue-stsb-teacher", bert, root, teacher, *SHORT)
    start = last_weights(teacher)[name]
    found = {}
    for kind, options in (("quirk", ()), ("mse", ("--scores", "mse"))):
        out, given = tmp_path / kind, ("--teacher", teacher, *SHORT, *options)
        command("glue-stsb-bit", bert, root, out, *given)
        found[kind] = last_weights(out)[name]
    rates = [step_rate(get_recipe("glue-stsb-bit").train, step, 4) for step in range(4)]
    shrunk = start
    for rate in rates:
        shrunk = shrunk * (1 - 0.01 * rate)
    torch.testing.assert_close(found["quirk"], shrunk)
    assert (found["mse"] - shrunk).abs().max() > 1e-4


def test_scores_are_not_counted_as_right_or_wrong(tmp_path, bert, root, capsys):
    (row, *_) = command("glue-stsb-teacher", bert, root, tmp_path / "run", *SHORT)
    assert "train_accuracy" not in row and "train_loss" in row


def test_evaluate_prints_every_metric(teacher, root, capsys):
    assert main(["evaluate", str(teacher), "--data", str(root), "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    last = rows(teacher)[-1]
    for name in ("accuracy", "f1"):
        assert name in out and f"{last[f'test_{name}']:.2f}" in out


def test_reproduce_trains_teachers_first(tmp_path, monkeypatch, bert, root, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["reproduce", "glue", "--model", str(bert), "--rows", "mrpc-bit", "mrpc-bit-surge"]
    words += ["--seeds", "0", "--epochs", "1", "--data", str(root), "--device", "cpu"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "3 of 3 runs are missing" in out
    lines = (tmp_path / "results" / "glue.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert [r["row"] for r in found if r["metric"] == "accuracy"] == [
        "mrpc-teacher",
        "mrpc-bit",
        "mrpc-bit-surge",
    ]
    assert {r["epochs"] for r in found if r["row"] == "mrpc-teacher"} == {6}
    assert "(1 pair)" in out
    kept = [path.parent.name for path in (tmp_path / "runs").glob("*/predictions.npz")]
    assert len(kept) == 3
    assert main(words) == 0
    assert "0 of 3 runs are missing" in capsys.readouterr().out
    assert main(["reproduce", "glue", "--table-only"]) == 0
    table = capsys.readouterr().out
    rows = [line for line in table.splitlines() if line.startswith("| mrpc-bit-surge |")]
    assert ["| f1 |" in row for row in rows] == [False, True] and "mrpc-teacher" in table


def test_reproduce_leaves_out_tasks_without_files(tmp_path, monkeypatch, bert, root, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["reproduce", "glue", "--model", str(bert), "--seeds", "0", "--data", str(root)]
    words += ["--device", "cpu", "--epochs", "1"]
    assert main([*words, "--rows", "qnli-teacher", "rte-teacher"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "left out: GLUE's QNLI has no train.tsv" in out and "1 of 1 runs" in out
    assert "| rte-teacher | " in out
    assert main([*words, "--rows", "qnli-bit"]) == 2
    assert "QNLI has no train.tsv" in capsys.readouterr().err


def test_reproduce_says_which_teacher_is_gone(tmp_path, monkeypatch, bert, root, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["reproduce", "glue", "--model", str(bert), "--seeds", "0", "--data", str(root)]
    words += ["--device", "cpu", "--epochs", "1", "--rows"]
    assert main([*words, "rte-bit"]) == 0
    for path in (tmp_path / "runs").glob("glue-rte-teacher*/checkpoints/*"):
        path.unlink()
    capsys.readouterr()
    assert main([*words, "rte-bit", "rte-bit-surge"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "glue-rte-bit-surge, seed 0 builds on" in out
    assert "surge train glue-rte-teacher --seed 0" in out


def test_binarybert_splits_its_ternary_stage(tmp_path, lively, root, teacher, capsys):
    first, second = tmp_path / "ternary", tmp_path / "binary"
    taught = ("--teacher", teacher)
    stage = command("glue-mrpc-ternary", lively, root, first, *SHORT, *taught)
    words = ["train", "glue-mrpc-binarybert", "--model", str(lively), "--teacher", str(teacher)]
    assert main([*words, "--device", "cpu"]) == 2
    assert "surge train glue-mrpc-ternary" in " ".join(capsys.readouterr().err.split())
    options = (*SHORT, *taught, "--start", first)
    split = command("glue-mrpc-binarybert-surge", lively, root, second, *options)
    assert len(stage) == len(split) == 2 and split[-1]["scale"] > 0
    recipe = RunFolder.open(second)[1]
    trainer = trainer_of(tmp_path / "fresh", recipe, root)
    # The network that the second stage starts from is the one that the first stage ended with.
    value, loss = trainer.evaluate()
    assert value == pytest.approx(stage[-1]["test_accuracy"])
    assert loss == pytest.approx(stage[-1]["test_loss"], rel=1e-4)


# The loop


def test_learning_rate_moves_at_every_step(tmp_path, bert, root):
    recipe = short("glue-mrpc-teacher", bert, epochs=2, batch=16, test_every=None)
    trainer = trainer_of(tmp_path, recipe, root)
    seen, real = [], trainer.step

    def step(part, weight):
        seen.append([group["lr"] for group in trainer.parts.optimizer.param_groups])
        real(part, weight)

    trainer.step = step
    trainer.run()
    expected = [step_rate(recipe.train, number, 8) for number in range(8)]
    assert [rates[0] for rates in seen] == pytest.approx(expected)
    assert expected[0] == 0.0 and max(expected) == pytest.approx(recipe.train.lr, rel=0.1)


def test_steps_end_a_run_inside_an_epoch(tmp_path, bert, root):
    recipe = short("glue-mrpc-teacher", bert, epochs=2, batch=16, steps=6, test_every=None)
    trainer, done = trainer_of(tmp_path, recipe, root), []
    real = trainer.step
    trainer.step = lambda *arguments: (done.append(1), real(*arguments))
    assert trainer.run().finished and len(done) == 6


def test_tests_inside_an_epoch_find_the_best(tmp_path, bert, root):
    recipe = short("glue-mrpc-teacher", bert, epochs=1, batch=16, test_every=1)
    trainer = trainer_of(tmp_path, recipe, root)
    scores = iter([50.0, 80.0, 60.0, 70.0])
    modes = []

    def evaluate():
        trainer.parts.model.eval()
        trainer.scores = {"f1": 1.0}
        return next(scores), 0.5

    trainer.evaluate = evaluate
    real = trainer.step
    trainer.step = lambda *a: (modes.append(trainer.parts.model.training), real(*a))
    outcome = trainer.run()
    assert (outcome.best, outcome.last, outcome.best_epoch) == (80.0, 70.0, 0)
    assert modes == [True] * 4


def test_budget_fits_the_schedule(tmp_path, bert, root, capsys):
    out = tmp_path / "run"
    command("glue-mrpc-teacher", bert, root, out, "--budget", "2", "--limit", 32)
    _, recipe, environment = RunFolder.open(out)
    assert environment["overrides"]["budget"] == "2s"
    spec = recipe.train
    assert spec.steps >= 1 and spec.epochs == -(-spec.steps // 1)
    taken = sum(row["seconds"] for row in rows(out))
    assert taken < 8  # a busy machine may have been quick in the trial
    assert rows(out)[-1]["lr"] == pytest.approx(step_rate(spec, spec.steps - 1, spec.steps))


def test_restarted_run_keeps_the_steps_it_was_fitted_with(tmp_path, bert, root, monkeypatch):
    out, steps = tmp_path / "run", iter((3, 9))

    def fitted(recipe, *_, **__):
        count = next(steps)
        return replace(recipe, train=replace(recipe.train, steps=count, epochs=count))

    monkeypatch.setattr(_training, "fitted", fitted)
    words = ("glue-mrpc-teacher", bert, root, out, "--budget", "9s", "--limit", 32)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_run", stop_after_one(Trainer._run))
        assert len(command(*words)) == 1
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert len(command(*words)) == 3 and next(steps) == 9


def test_groups_are_those_of_bit(tmp_path, bert, root, teacher, lively):
    recipe = short("glue-mrpc-bit-surge", lively, teacher)
    model = trainer_of(tmp_path, recipe, root).parts.model
    decayed, plain, levels = bert_groups(model, recipe.train)
    names = {id(p): name for name, p in model.named_parameters()}
    assert (decayed["weight_decay"], plain["weight_decay"], levels["weight_decay"]) == (0.01, 0, 0)
    assert levels["lr_factor"] * recipe.train.lr == pytest.approx(1e-4)
    assert len(levels["params"]) == len(list(elastic_parts(model))) == 21
    undecayed = [names[id(p)] for p in plain["params"]]
    assert all("bias" in n or "LayerNorm" in n or n.endswith("shift") for n in undecayed)
    own = [names[id(p)] for p in decayed["params"]]
    assert sum(n.endswith("auxiliary.weight") for n in own) == 13
    assert not any("bias" in n or "LayerNorm" in n for n in own)


def test_levels_are_initialised_before_the_first_step(tmp_path, lively, root, teacher):
    recipe = short("glue-mrpc-bit", lively, teacher)
    parts = dict(elastic_parts(trainer_of(tmp_path, recipe, root).parts.model))
    assert all(part.initialized for part in parts.values())
    assert len({part.level.item() for part in parts.values()}) > 10


def test_matched_and_mismatched_parts_are_scored_apart(bert, root):
    recipe = short("glue-mrpc-teacher", bert)
    _, dev = load_sets(recipe.data, root)
    both = joined_parts([dev, dev.subset(torch.arange(4))], ("dev_matched", "dev_mismatched"))
    assert both.sections == (("dev_matched", 16), ("dev_mismatched", 4))
    task = replace(get_task("mnli"), labels=("0", "1"))
    loader = type("Loader", (), {"device": CPU})()
    test = TextTest(torch.nn.Identity(), loader, TrainSpec(precision="fp32"), task, both)
    test.logits.copy_(torch.nn.functional.one_hot(both.labels, 2))
    test.logits[18:] = test.logits[18:].flip(1)
    assert test.scores() == {"accuracy": 100.0, "accuracy-mm": 50.0}


def test_held_out_scores_are_split_by_their_whole_number(bert, root):
    recipe = short("glue-stsb-teacher", bert)
    train, held = load_sets(replace(recipe.data, held_out=True), root)
    assert (len(train), len(held)) == (58, 6)
    assert held.labels.unique().numel() == 2


def test_64_sentences_are_learnt_by_heart(tmp_path, glue_dir, monkeypatch):
    """First by a float BERT, then by its binary student."""
    monkeypatch.setattr(glue_runs, "KEPT", 70)
    here = head_of(glue_dir, tmp_path / "data", "sst2")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    model = save_tiny(tmp_path / "bert", **glue_runs.NO_DROPOUT, **sizes)
    last, teacher = {}, None
    for kind, epochs in (("teacher", 30), ("bit", 30)):
        recipe = short(f"glue-sst2-{kind}", model, teacher, epochs=epochs, batch=32, lr=2e-3)
        recipe = replace(recipe, data=replace(recipe.data, limit=64))
        folder = RunFolder.create(tmp_path / kind, recipe, {"seed": 0})
        trainer = trainer_of(folder.path, recipe, here)
        trainer.options = replace(trainer.options, save_every=1e9)
        found = []
        trainer.run(found.append)
        last[kind], teacher = found[-1]["train_accuracy"], folder.path
        assert found[0]["train_accuracy"] < 65
    assert last["teacher"] > 95
    assert last["bit"] > 75


# Processes


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Two processes, and one alone, on the same sentences."""
    folder = tmp_path_factory.mktemp("ranks")
    write_task(folder / "data", "rte", {"train": 30, "dev": 15})
    bert = quiet_bert(folder / "bert")
    with double_precision():
        command("glue-rte-teacher", bert, folder / "data", folder / "teacher", "--epochs", 1)
        alone = {kind: glue_ranks.finished(kind, folder) for kind in glue_ranks.KINDS}
    spawned = torch.multiprocessing.spawn(
        glue_ranks.work, args=(folder,), nprocs=glue_ranks.WORLD, join=False
    )
    deadline = time.monotonic() + 120
    while not spawned.join(timeout=1):
        if time.monotonic() > deadline:
            for process in spawned.processes:
                process.kill()
            pytest.fail("the ranks did not finish")
    return alone, [torch.load(folder / f"{rank}.pt") for rank in range(glue_ranks.WORLD)]


@pytest.mark.parametrize("kind", glue_ranks.KINDS)
def test_first_rank_alone_keeps_the_answers_of_all(ranks, kind):
    _, (first, second) = ranks
    assert second[kind]["kept"] is None
    held = {name: np.array(values) for name, values in first[kind]["kept"].items()}
    assert held["logits"].shape == (15, 2) and held["logits"].any(axis=1).all()
    found = score("accuracy", held["logits"], held["labels"])
    assert found == pytest.approx(first[kind]["rows"][-1]["test_accuracy"])


@pytest.mark.parametrize("kind", glue_ranks.KINDS)
def test_ranks_end_with_the_same_weights(ranks, kind):
    _, (first, second) = ranks
    assert_same_tensors(second[kind]["weights"], first[kind]["weights"])
    assert second[kind]["scales"] == first[kind]["scales"]
    assert [r["test_accuracy"] for r in second[kind]["rows"]] == [
        r["test_accuracy"] for r in first[kind]["rows"]
    ]


def test_two_processes_equal_one_without_elastic_levels(ranks):
    """A level's gradient counts the elements of one process, so that BiT is left out here."""
    alone, (both, _) = (side for side in ranks)
    alone, both = alone["bnn-surge"], both["bnn-surge"]
    for key in ("train_loss", "test_loss", "test_accuracy"):
        found, expected = ([row[key] for row in side["rows"]] for side in (both, alone))
        assert found == pytest.approx(expected, rel=1e-4), key
    # Sums of another order turn a few signs, and with them a little of the last gradient.
    assert both["scales"] == pytest.approx(alone["scales"], rel=0.03)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["bit", "bit-surge", "bibert"])
def test_captured_steps_equal_eager_ones(tmp_path, bert, root, kind):
    device = torch.device("cuda")
    teacher = tmp_path / "teacher"
    command("glue-mrpc-teacher", bert, root, teacher, *SHORT)
    recipe = short(f"glue-mrpc-{kind}", bert, teacher, epochs=2, batch=16, test_every=2, lr=1e-5)
    found = []
    for path in (False, True):
        trainer = Trainer(
            recipe,
            load_sets(recipe.data, root),
            seed=0,
            device=device,
            folder=RunFolder(tmp_path / str(path)),
            options=LoopOptions(compiled=path, captured=path, save_every=1e9),
        )
        trainer.folder.path.mkdir(parents=True, exist_ok=True)
        seen = []
        trainer.run(seen.append)
        found.append([row["train_loss"] for row in seen])
    assert found[1] == pytest.approx(found[0], rel=1e-2)

"""Files of tokens: hostile ones are errors, every tier agrees, and so does ARM."""

import numpy as np
import pytest

from surge.export import pack
from tests.export.berts import binary_bert, some_tokens
from tests.runtime.building import BUILD
from tests.runtime.test_c_example import on_arm as on_arm
from tests.runtime.test_damage import count_refused, fuzz, under_sanitizers
from tests.runtime.token_seeds import KINDS, token_batch, write_token_seeds


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_token_seeds(tmp_path_factory.mktemp("tokens"))


def test_every_tier_and_thread_gives_the_same(engine, files):
    for file in files:
        wanted = engine.load(file, tier="scalar").run(token_batch(7))
        for tier in engine.tiers():
            for threads in (1, 2):
                loaded = engine.load(file, tier=tier, threads=threads)
                assert loaded.run(token_batch(7)).tobytes() == wanted.tobytes(), (file, tier)


@pytest.mark.parametrize("method", KINDS)
def test_parts_of_long_rows_are_the_whole(engine, tmp_path, method):
    model, tokens = binary_bert(method, 2, 64, 149, layers=1), some_tokens(2, 149)
    pack(model, tokens[:1], tmp_path / "m.surge")
    batch = tokens.float().numpy()
    for tier in engine.tiers():
        wanted = engine.load(tmp_path / "m.surge", tier=tier).run(batch)
        for threads in (2, 3, 8):
            loaded = engine.load(tmp_path / "m.surge", tier=tier, threads=threads)
            assert loaded.run(batch).tobytes() == wanted.tobytes(), (tier, threads)


def test_tokens_on_arm_equal_this_machine(engine, on_arm, files, tmp_path):
    batch = token_batch()
    batch.tofile(tmp_path / "x.f32")
    for file in files:
        wanted = engine.load(file, tier="scalar").run(batch)[0]
        for tier in ("neon", "scalar"):
            assert np.array_equal(on_arm(file, tmp_path / "x.f32", tier), wanted), (file, tier)


def test_damaged_file_of_tokens_is_always_refused(engine, files):
    library = BUILD / "runtime" / "libsurge_runtime.so"
    refused, tried = count_refused("flips 2000", files[0], library)
    assert refused == tried == 2000


@pytest.mark.parametrize("index", range(len(KINDS)))
def test_hostile_graph_of_tokens_is_refused_or_runs_under_sanitizers(sanitized, files, index):
    refused, tried = under_sanitizers(sanitized, "graphs 400", files[index])
    assert tried > refused > tried // 2


def test_fuzzer_finds_nothing_in_tokens_in_a_few_seconds(sanitized, files):
    tried, ran = fuzz(sanitized, files, 5, 0)
    assert tried > ran > 0


@pytest.mark.slow
def test_fuzzer_finds_nothing_in_tokens_in_ten_minutes(sanitized, files):
    tried, ran = fuzz(sanitized, files, 600, 1)
    assert tried > 10_000 and ran > 100

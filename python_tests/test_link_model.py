"""What a measured sweep of buckets says about a link, and what is picked without one."""

import json

import pytest

from hybridengine.collective import link_model

pytestmark = pytest.mark.python

MIB = 1 << 20


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    link_model.forget()
    yield
    link_model.forget()


def times_of(alpha_us: float, rates: dict[int, float], num_bytes: int) -> dict[int, float]:
    return {b: -(-num_bytes // b) * alpha_us + num_bytes / rate for b, rate in rates.items()}


def test_without_a_measurement_the_default():
    assert link_model.load() is None
    for num_bytes in (None, 0, 1, 64 * MIB):
        assert link_model.pick_bucket("shm", 2, num_bytes) == 4 * MIB


def test_a_kept_link_is_read_and_others_stay():
    one = link_model.fit(64 * MIB, {MIB: 900.0, 4 * MIB: 700.0, 64 * MIB: 1000.0})
    other = link_model.fit(64 * MIB, {MIB: 500.0, 4 * MIB: 700.0})
    link_model.save("shm", 2, one)
    assert link_model.pick_bucket("shm", 2, 64 * MIB) == 4 * MIB
    link_model.save("tcp", 4, other)
    assert link_model.pick_bucket("shm", 2, 64 * MIB) == 4 * MIB
    assert link_model.pick_bucket("tcp", 4, 64 * MIB) == MIB
    assert link_model.pick_bucket("tcp", 2, 64 * MIB) == link_model.DEFAULT_BUCKET_BYTES
    assert link_model.pick_bucket("tcp", 4) == MIB
    assert set(link_model.load()["links"]) == {"shm/2", "tcp/4"}
    assert list(link_model.path().parent.iterdir()) == [link_model.path()]


def test_the_file_is_read_once_in_a_process():
    assert link_model.pick_bucket("shm", 2, MIB) == 4 * MIB
    link_model.path().parent.mkdir(parents=True)
    link_model.path().write_text(file_with(rates={str(MIB): 5000.0}))
    assert link_model.pick_bucket("shm", 2, MIB) == 4 * MIB
    link_model.forget()
    assert link_model.pick_bucket("shm", 2, MIB) == MIB


def test_alpha_and_one_rate_are_found_again():
    rates = dict.fromkeys((MIB // 4, MIB, 4 * MIB, 16 * MIB), 5000.0)
    model = link_model.fit(64 * MIB, times_of(12.5, rates, 64 * MIB))
    assert model.alpha_us == pytest.approx(12.5)
    assert model.rates == pytest.approx(rates)


def test_a_model_gives_the_measured_times_and_picks_their_least():
    times = {MIB // 4: 9000.0, MIB: 5000.0, 4 * MIB: 4000.0, 16 * MIB: 6000.0, 64 * MIB: 8000.0}
    model = link_model.fit(64 * MIB, times)
    assert {b: model.time_us(64 * MIB, b) for b in times} == pytest.approx(times)
    assert model.best_bucket(64 * MIB) == 4 * MIB


def test_a_small_array_takes_the_smallest_of_the_fastest():
    model = link_model.LinkModel(64 * MIB, 10.0, {64 * MIB: 5000.0, MIB: 5000.0, 4 * MIB: 5000.0})
    assert model.best_bucket(64 * MIB) == 64 * MIB
    assert model.best_bucket(3 * MIB) == 4 * MIB
    assert model.best_bucket(100) == MIB
    assert model.best_bucket(0) == MIB


@pytest.mark.parametrize("times", [{MIB: 5.0}, {MIB: 1.0, 2 * MIB: 9.0}, {MIB: 9.0, 2 * MIB: 0.1}])
def test_odd_measurements_leave_a_usable_model(times):
    model = link_model.fit(64 * MIB, times)
    assert model.alpha_us >= 0
    assert all(rate > 0 for rate in model.rates.values())
    assert model.best_bucket(64 * MIB) == min(times, key=times.get)


LINK = {"array_bytes": 8, "alpha_us": 1.0, "rates": {"4": 1.0}}


def file_with(**changes) -> str:
    return json.dumps({"schema_version": 1, "links": {"shm/2": LINK | changes}})


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        "[]",
        "{}",
        file_with().replace("1,", "2,", 1),
        file_with(rates=None),
        file_with(array_bytes=0),
        file_with(alpha_us=-1),
        file_with(rates={"4": 0}),
        file_with(rates={"x": 1}),
        file_with(rates={}),
    ],
)
def test_a_damaged_file_is_warned_about_and_not_used(capfd, text):
    link_model.path().parent.mkdir(parents=True)
    link_model.path().write_text(text)
    assert link_model.load() is None
    assert f"{link_model.path()} is not used" in capfd.readouterr().err
    assert link_model.pick_bucket("shm", 2, MIB) == link_model.DEFAULT_BUCKET_BYTES
    link_model.save("shm", 2, link_model.fit(MIB, {MIB: 1.0}))
    assert link_model.pick_bucket("shm", 2, MIB) == MIB


def test_a_kept_density_is_read_and_links_stay():
    link_model.save("shm", 2, link_model.fit(64 * MIB, {MIB: 900.0, 4 * MIB: 700.0}))
    assert link_model.wire_density("shm", 2, "row") == link_model.DEFAULT_WIRE_DENSITIES["row"]
    link_model.save_wire_density("shm", 2, "row", 0.3)
    link_model.save_wire_density("tcp", 4, "element", 1.0)
    assert link_model.wire_density("shm", 2, "row") == 0.3
    assert link_model.wire_density("tcp", 4, "element") == 1.0
    assert link_model.wire_density("tcp", 4, "row") == link_model.DEFAULT_WIRE_DENSITIES["row"]
    assert link_model.pick_bucket("shm", 2, 64 * MIB) == 4 * MIB


def test_an_impossible_density_is_not_used(capfd):
    link_model.save_wire_density("shm", 2, "row", 0.3)
    link_model.path().write_text(link_model.path().read_text().replace("0.3", "1.5"))
    link_model.forget()
    assert link_model.wire_density("shm", 2, "row") == link_model.DEFAULT_WIRE_DENSITIES["row"]
    assert "impossible density" in capfd.readouterr().err

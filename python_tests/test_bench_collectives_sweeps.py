"""Sweeps of buckets and densities, weak scaling, their pictures, and what is learnt of a link."""

import json
import sys

import pytest
from matplotlib.figure import Figure

from hybridengine import _core
from hybridengine._bench import bucket_sweep, density_sweep, plot, results, scaling
from hybridengine._bench.flags import Options
from hybridengine._bench.scaling import Model, Point
from hybridengine.collective import link_model

pytestmark = pytest.mark.python

QUICK = ["-n", "1", "-m", "2"]
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def bench(bench, monkeypatch, tmp_path):
    """With a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    link_model.forget()
    yield bench
    link_model.forget()


def test_a_bucket_sweep_draws_picks_and_is_remembered(bench, tmp_path):
    picture, path = tmp_path / "b.png", tmp_path / "b.json"
    assert link_model.pick_bucket("shm", 2, 1 << 20) == link_model.DEFAULT_BUCKET_BYTES
    line = ["all_reduce", "--sweep", "bucket", "-e", "1M", "--transport", "shm", *QUICK]
    code, out, err = bench(*line, "--png", str(picture), "--json", str(path))
    assert (code, err) == (0, "")
    assert picture.read_bytes().startswith(PNG)
    ours = [row for row in json.loads(path.read_text()) if row["rival"] is None]
    assert [row["bucket_bytes"] for row in ours] == [256 << 10, 512 << 10, 1 << 20]
    assert {row["size"] for row in ours} == {1 << 20}
    times = {row["bucket_bytes"]: row["in_place"]["wall_us"] for row in ours}
    best = min(times, key=times.get)
    assert " minBytes 1048576 maxBytes 1048576 step: 0(bytes) " in out
    assert "Avg bus bandwidth" not in out  # over buckets a mean says nothing
    assert f"# picks {bucket_sweep.size_text(best)} for 1M over shm between 2 ranks" in out
    assert link_model.pick_bucket("shm", 2, 1 << 20) == best
    assert link_model.pick_bucket("shm", 3, 1 << 20) == link_model.DEFAULT_BUCKET_BYTES


def test_wrong_values_are_not_learnt_from(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    row = {"rival": None, "nwrong": 1, "setting": 1 << 20, "in_place": {"wall_us": 1.0}}
    picture = tmp_path / "x.png"
    drawn = plot.Picture(str(picture), "by hand")
    lines = bucket_sweep.BUCKET_SWEEP.conclude(Options(), [row], drawn)
    assert lines == ["values were wrong: nothing is drawn or kept"]
    assert link_model.load() is None and not picture.exists()


def test_buckets_go_from_256_kib_to_the_array():
    cases = bucket_sweep.BUCKET_SWEEP.cases(Options(sweep="bucket", max_bytes=3 << 20))
    assert [case.setting >> 10 for case in cases] == [256, 512, 1024, 2048]
    assert {case.size_bytes for case in cases} == {3 << 20}
    largest = bucket_sweep.array_bytes(Options(sweep="bucket"))
    assert largest <= 1 << 30
    assert bucket_sweep.array_bytes(Options(sweep="bucket", ranks=64, max_bytes=1 << 40)) < largest


def test_a_density_sweep_draws_time_and_bytes(bench, tmp_path):
    picture, path = tmp_path / "d.png", tmp_path / "d.json"
    line = ["masked_all_reduce", "--sweep", "density", "-e", "64K", "--granularity", "element"]
    code, out, err = bench(*line, *QUICK, "--png", str(picture), "--json", str(path))
    assert (code, err) == (0, "")
    assert picture.read_bytes().startswith(PNG)
    ours = [row for row in json.loads(path.read_text()) if row["rival"] is None]
    for row in ours:
        assert row["kept_percent"] == pytest.approx(100 * row["setting"], abs=2)
        assert row["nwrong"] == 0 and row["out_of_place"] is None
    assert [ours[0]["kept_percent"], ours[-1]["kept_percent"]] == [0.0, 100.0]
    assert "# masked was faster than dense at densities: " in out


def test_densities_where_masking_pays():
    def row(rival, density, time):
        half = {"wall_us": time}
        facts = {"wire_bytes": 1, "dense_bytes": 2, "size": 8, "num_ranks": 2, "transport": "shm"}
        return {"rival": rival, "setting": density, "in_place": half, **facts}

    rows = [row(None, 0.1, 5.0), row("dense", 0.1, 9.0), row(None, 0.5, 9.5)]
    rows += [row("dense", 0.5, 9.0), row("memcpy", 0.5, 1.0)]
    charts = []

    def keep(picture, title, drawn):
        charts.extend(drawn)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plot, "draw", keep)
        lines = density_sweep.DENSITY_SWEEP.conclude(
            Options(), rows, plot.Picture("x.png", "by hand")
        )
    assert lines[0] == "masked was faster than dense at densities: 0.1"
    time, sent = charts
    assert [curve.y for curve in time.curves] == [[0.005, 0.0095], [0.009, 0.009]]
    assert [curve.label for curve in sent.curves] == ["masked", "dense"]


@pytest.mark.parametrize(
    "line",
    [
        ["all_reduce", "--sweep", "bucket"],
        ["masked_all_reduce", "--sweep", "density"],
        ["scaling"],
    ],
    ids=" ".join,
)
def test_a_missing_matplotlib_is_said_before_anything_runs(bench, monkeypatch, line):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, out, err = bench(*line)
    assert (code, out) == (2, "")
    assert "pip install 'hybridengine[bench]'" in err


def test_what_is_modelled_is_dashed_and_without_points():
    axes = Figure().subplots()
    measured = plot.Curve("seen", [1.0, 2.0], [3.0, 4.0], 0)
    modelled = plot.Curve("thought", [2.0, 4.0], [4.0, 5.0], 0, modelled=True)
    plot.draw_chart(axes, plot.Chart("ranks", "ms", [measured, modelled], log_x=True))
    seen, thought = axes.get_lines()
    assert (seen.get_linestyle(), seen.get_marker()) == ("-", "o")
    assert (thought.get_linestyle(), thought.get_marker()) == ("--", "")
    assert seen.get_color() == thought.get_color()
    assert axes.get_xscale() == "log" and axes.get_yscale() == "linear"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "2", "4"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["seen", "thought"]


def test_points_under_other_circumstances_are_hollow():
    axes = Figure().subplots()
    curve = plot.Curve("seen", [1.0, 2.0, 4.0], [3.0, 4.0, 9.0], 0, hollow=(4.0,))
    plot.draw_chart(axes, plot.Chart("ranks", "ms", [curve]))
    seen, rims = axes.get_lines()
    assert (list(rims.get_xdata()), list(rims.get_ydata())) == ([4.0], [9.0])
    assert rims.get_markerfacecolor() == "white" and rims.get_color() == seen.get_color()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["seen"]


def test_a_picture_says_where_it_comes_from(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    line = ["-e", "16M", *["--rival", "all"] * 12]
    origin = plot.origin(results.provenance("all_reduce", line))
    chart = plot.Chart("ranks", "ms", [plot.Curve("seen", [1.0], [2.0], 0)])
    plot.draw(plot.Picture(str(tmp_path / "x.png"), origin), "title", [chart])
    (figure,) = figures
    text = figure.get_supxlabel()
    assert " ".join(text.split()) == " ".join(origin.split())
    assert text.startswith("hybridengine bench all_reduce -e 16M")
    assert f"commit {_core.build_facts()['commit']}, " in text and text.endswith(" cores")
    figure.canvas.draw()
    (label,) = [each for each in figure.texts if each.get_text() == text]
    box = label.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0


def test_scaling_says_where_ranks_share_cores(bench, tmp_path, monkeypatch):
    curves = []
    monkeypatch.setattr(scaling, "num_cores", lambda: 1)
    monkeypatch.setattr(
        plot, "draw", lambda picture, title, charts: curves.extend(charts[0].curves)
    )
    code, out, _ = bench(
        "scaling", "-b", "128K", "-g", "2", *QUICK, "--png", str(tmp_path / "x.png")
    )
    assert code == 0
    assert "# More ranks than 1 core: rows that say so, hollow in the picture\n" in out
    marked = [line.split() for line in out.splitlines() if line.endswith("  # 2 ranks on 1 core")]
    assert [(words[0], words[4]) for words in marked] == [("2", "measured")] * 4
    by_label = {curve.label: curve.hollow for curve in curves}
    assert by_label["reshard, measured (hollow: ranks share 1 core)"] == (2.0,)
    assert by_label["reshard, modelled"] == ()


def test_scaling_tells_measured_from_modelled(bench, tmp_path):
    picture, path = tmp_path / "s.png", tmp_path / "s.json"
    line = ["scaling", "-b", "128K", "-g", "2", *QUICK]
    code, out, err = bench(*line, "--png", str(picture), "--json", str(path))
    assert (code, err) == (0, "")
    assert picture.read_bytes().startswith(PNG)
    rows = json.loads(path.read_text())
    for job in ("all_reduce", "reshard"):
        mine = [row for row in rows if row["job"] == job]
        measured = [row for row in mine if row["kind"] == "measured"]
        assert [(row["ranks"], row["rank_bytes"] >> 10) for row in measured] == [
            *((1, 64), (1, 128), (2, 64), (2, 128))
        ]
        assert all(row["nwrong"] == 0 for row in measured)
        modelled = [row["ranks"] for row in mine if row["kind"] == "modelled"]
        assert modelled == [2, 4, 8, 16, 32, 64, 128, 256, 512]
    kinds = [line.split()[-2] for line in out.splitlines() if not line.startswith("#")]
    assert kinds == [row["kind"] for row in rows]


@pytest.mark.parametrize("model", [Model(2, 7.0, 20.0, 3e-4), Model(1, 0.5, 0.0, 1e-3)])
def test_the_model_of_scaling_is_found_again(model):
    points = [Point("x", 1, 1 << 16, model.call_us, "measured")]
    points += [
        Point("x", ranks, size, model.time_us(ranks, size), "measured")
        for ranks in (2, 4)
        for size in (1 << 16, 1 << 24)
    ]
    found = scaling.fit(model.passes, points)
    assert found.call_us == model.call_us
    assert found.alpha_us == pytest.approx(model.alpha_us, rel=1e-3, abs=1e-3)
    assert found.us_per_byte == pytest.approx(model.us_per_byte, rel=1e-3)


def test_a_model_of_scaling_has_no_negative_terms():
    points = [Point("x", 1, 1 << 16, 5.0, "measured"), Point("x", 2, 1 << 16, 90.0, "measured")]
    points += [Point("x", 2, 1 << 24, 80.0, "measured"), Point("x", 4, 1 << 24, 9000.0, "measured")]
    model = scaling.fit(1, points)
    assert model.alpha_us >= 0 and model.us_per_byte >= 0
    assert model.time_us(512, 1 << 20) > model.call_us

import json
import re

import pytest

from jigsaw_jax.store import page
from jigsaw_jax.store.files import StoreError
from jigsaw_jax.store.run_dir import RunDir
from tests.store.make_run import HOSTILE, make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return RunDir(make_run(tmp_path_factory.mktemp("run") / "demo", rounds=4))


def _data(text):
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert found is not None
    return json.loads(found[1])


def test_the_page_is_one_file_that_fetches_nothing(run):
    page.write(run)
    text = run.report.read_text()
    ours = re.sub(r'id="data">.*?</script>', "", text)
    # The name space of SVG is an identifier, never fetched.
    assert "://" not in ours.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"<(link|img|iframe)\b|\bsrc=|@import|url\(|fetch\(", ours)
    assert "default-src 'none'" in text
    assert "%%" not in ours
    assert len(text) < 5_000_000


def test_what_a_model_wrote_cannot_end_the_script_and_comes_back_whole(run):
    page.write(run)
    text = run.report.read_text()
    assert text.count("</script>") == 2
    assert "onerror=alert" not in text.replace("onerror=alert(1)\\u003e", "")
    members = [m for g in _data(text)["rollouts"]["groups"] for m in g["members"]]
    assert HOSTILE in [member["text"] for member in members]


def test_markers_inside_the_data_are_left_alone():
    data = {"text": "%%STYLE%% %%DATA%%"}
    text = page.html(data)
    assert _data(text) == data


def test_scripts_write_text_and_never_markup(run):
    page.write(run)
    text = run.report.read_text()
    for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write"):
        assert name not in text


def test_numbers_are_those_of_the_run(run):
    data = page.page_data(run)
    assert data["name"] == "demo"
    assert data["metrics"]["update"] == list(range(8))
    assert len(data["timeline"]["rounds"]) == 4
    assert data["rollouts"]["updates"] == list(range(8))
    assert data["evaluations"][0] == {
        "updates": 0,
        "eval/accuracy": 0.21,
        "eval/pass@4": 0.5,
    }
    assert data["summary"]["updates"] == 8
    assert data["left_out"] == []


def test_an_unfinished_run_with_torn_lines_has_a_page(tmp_path):
    run = RunDir(make_run(tmp_path / "run", rounds=2, is_finished=False))
    for log in (run.metrics, run.events, run.evaluations):
        with log.open("a") as file:
            file.write('{"upd')
    page.write(run)
    data = _data(run.report.read_text())
    assert data["summary"] is None
    assert data["metrics"]["update"] == [0, 1, 2, 3]


def test_a_run_that_has_only_begun_has_a_page(tmp_path):
    (tmp_path / "events.jsonl").write_text("")
    page.write(RunDir(tmp_path))
    assert _data((tmp_path / "report.html").read_text())["updates_total"] == 0


def test_what_is_left_out_is_said(run, monkeypatch):
    monkeypatch.setattr(page, "POINTS_MAX", 3)
    monkeypatch.setattr(page, "ROLLOUT_BYTES_MAX", 10_000)
    said = page.page_data(run)["left_out"]
    assert said[0] == "Curves show 3 of 8 updates, evenly spaced."
    assert said[1].startswith("Rollouts are of 8 of 8 updates, without 24 of their")


def test_a_directory_without_a_run_is_refused(tmp_path):
    with pytest.raises(StoreError, match="must be a run directory"):
        page.write(RunDir(tmp_path))
    assert list(tmp_path.iterdir()) == []

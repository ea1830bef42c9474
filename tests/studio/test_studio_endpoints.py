"""The endpoints of the studio, requested over HTTP from a server in this process."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bytewright.account import TrainingSetup, find_device, find_preset, training_costs
from bytewright.experiments.listing import make_row
from bytewright.studio.app import read_static
from bytewright.studio.context import MAX_STREAMS
from bytewright.tokenizer import Tokenizer
from bytewright.tokenizer.inspect import show_token
from bytewright.train.metrics_log import MetricsLog
from bytewright.train.run_files import RunWriter
from studios import (
    HANG_SECONDS,
    OpenStudio,
    append_records,
    evaluated,
    make_record,
    open_studio,
    write_floor,
    write_run,
    write_tokenizer,
)

MAX_PAGE_BYTES = 300_000
KEY = "correct horse"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs, tokenizers, reports, and what a hostile folder may contain."""
    folder = tmp_path_factory.mktemp("studio")
    tokenizer = write_tokenizer(folder / "tokenizers" / "small", 290)
    write_tokenizer(folder / "tokenizers" / "large", 320)
    write_run(folder / "sweep" / "first", tokenizer=tokenizer)
    write_run(folder / "sweep" / "second", lr=3e-3, end=40)
    write_floor(folder / "sweep", 0.4)
    write_run(folder / "followed", end=30)
    damaged = write_run(folder / "damaged", end=30) / "metrics.jsonl"
    damaged.write_bytes(damaged.read_bytes().replace(b'"step": 20', b'"step": 21'))
    (write_run(folder / "not-json") / "config.json").write_text("{" * 5000)
    (write_run(folder / "strange") / "config.json").write_text('{"budget": {"steps": "many"}}')
    (folder / "<img src=x>").mkdir()
    write_run(folder / "<img src=x>" / "run")
    os.symlink(folder / "sweep" / "first", folder / "linked")
    (folder / "sweep" / "report.html").write_text("<style>p{}</style><script>alert(1)</script><p>Report</p>")
    os.symlink("/etc/passwd", folder / "sweep" / "passwd.html")
    return folder


@pytest.fixture(scope="module")
def studio(folder: Path) -> Iterator[OpenStudio]:
    with open_studio(folder) as studio:
        yield studio


def list_runs(studio: OpenStudio) -> dict[str, dict[str, Any]]:
    return {run["name"]: run for run in studio.get("/api/runs").json()["runs"]}


def test_all_files_of_the_page_are_served_and_small(studio: OpenStudio) -> None:
    files = read_static()
    assert sum(len(content) for content, _ in files.values()) < MAX_PAGE_BYTES
    for name, (content, content_type) in files.items():
        response = studio.get(f"/static/{name}")
        assert (response.content, response.headers["content-type"]) == (content, content_type)
        for used in re.findall(rb'(?:from|src=|href=|import\() ?"(/static/[^"]*)"', content):
            assert used.decode().removeprefix("/static/") in files
    assert studio.get("/").content == files["index.html"][0]


@pytest.mark.parametrize("path", ["/", "/static/style.css", "/api/runs", "/api/nothing", "/reports/x"])
def test_every_response_forbids_foreign_content(studio: OpenStudio, path: str) -> None:
    headers = studio.get(path).headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_no_script_inserts_markup() -> None:
    for name, (content, _) in read_static().items():
        for word in (b"innerHTML", b"outerHTML", b"insertAdjacentHTML", b"document.write", b"eval("):
            is_comment = name == "views.js" and word == b"innerHTML"  # the contract of views mentions it
            assert word not in content or is_comment, name


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static//etc/passwd",
        "/api/runs/..%2f..%2fetc/settings",
        "/api/runs/sweep/settings",
        "/reports/%2fetc%2fpasswd",
        "/reports/sweep%2freport.html",
    ],
)
def test_a_path_in_a_request_reaches_no_file(studio: OpenStudio, path: str) -> None:
    assert studio.get(path).status_code == 404


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Host": "localhost:8100", "Origin": "http://localhost:8100"}, 200),
    ],
)
def test_requests_from_other_sites_are_rejected(
    studio: OpenStudio, headers: dict[str, str], status: int
) -> None:
    assert studio.get("/api/runs", headers=headers).status_code == status


def test_an_error_names_a_file_by_its_path_below_the_folder(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "damaged", 270)
    (tmp_path / "damaged" / "vocabulary.json").write_text("{")
    with open_studio(tmp_path) as studio:
        (found,) = studio.get("/api/tokenizer").json()["tokenizers"]
        response = studio.post("/api/tokenizer/encode", {"tokenizer": found["id"], "text": "a"})
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("damaged/")


def test_a_broken_run_is_shown_as_broken_and_hides_no_other(studio: OpenStudio) -> None:
    runs = list_runs(studio)
    states = {name: run["state"] for name, run in runs.items()}
    assert states == {
        "sweep/first": "complete",
        "sweep/second": "stopped",
        "followed": "stopped",
        "damaged": "broken",
        "not-json": "broken",
        "strange": "broken",
        "<img src=x>/run": "complete",
    }
    assert "line 2" in runs["damaged"]["detail"]
    for run in runs.values():
        assert studio.get(f"/api/runs/{run['id']}/settings").status_code == 200


def test_a_summary_has_the_last_figures_and_the_floor(studio: OpenStudio) -> None:
    run = list_runs(studio)["sweep/first"]
    assert (run["step"], run["num_steps"], run["ending"]) == (100, 100, "steps")
    assert run["floor"] == 0.4
    assert run["floor_nats"] == pytest.approx(0.8)  # two nats per bit per byte in these records
    assert run["validation_loss"] == pytest.approx(2 * run["bits_per_byte"])


FIGURES = ("step", "tokens", "loss", "validation_loss", "bits_per_byte", "seconds", "tokens_per_second")


def test_a_summary_has_the_figures_of_the_command_runs(tmp_path: Path) -> None:
    speeds = {30: 900.0, 40: 100.0}
    for name in ("complete", "diverged"):
        path = write_run(tmp_path / name, steps=50, end=20)
        log = MetricsLog(path / "metrics.jsonl", (path / "metrics.jsonl").stat().st_size)
        for step, speed in speeds.items():
            log.write(make_record(step, tokens_per_second=speed, **evaluated(step)))
        if name == "complete":
            log.write(make_record(50, tokens_per_second=200.0, mfu=0.25))
            log.write({"event": "ended", "ending": "steps", "step": 50, "limit": 50})
        else:
            for step in range(41, 51):
                log.write({"event": "refused_step", "step": step})
            log.write({"event": "ended", "ending": "diverged", "step": 50})
        log.close()
    with open_studio(tmp_path) as studio:
        runs = list_runs(studio)
    for name, run in runs.items():
        row = make_row(tmp_path / name)
        assert run["state"] == row["status"] == name
        assert {key: run[key] for key in FIGURES} == {key: row[key] for key in FIGURES}
        assert run["has_curve"]
    assert runs["complete"]["tokens_per_second"] == 640  # the median of 640, 640, 900, 100 and 200
    assert runs["complete"]["mfu"] == 0.25
    assert (runs["diverged"]["step"], runs["diverged"]["validation_loss"]) == (40, None)


def test_a_run_has_settings_records_and_samples(studio: OpenStudio) -> None:
    ids = studio.run_ids()
    assert studio.get(f"/api/runs/{ids['sweep/second']}/settings").json()["settings"]["optimizer.lr"] == 3e-3
    with studio.stream(f"/api/runs/events?follow={ids['sweep/first']}") as events:
        assert next(events)[0] == "runs"
        name, records = next(events)
        assert name == "records"
        assert [row[records["columns"].index("step")] for row in records["rows"]] == [*range(10, 101, 10)]
        name, found = next(events)
        assert name == "samples"
        assert found["samples"] == [{"step": 50, "text": "the cat sat <b>on</b> the mat"}]


def test_a_stream_sends_new_records_of_a_run_that_trains(studio: OpenStudio, folder: Path) -> None:
    run = folder / "followed"
    id = studio.run_ids()["followed"]
    with RunWriter.open(run), studio.stream(f"/api/runs/events?follow={id}") as events:
        name, data = next(events)
        assert (name, len(data["ids"])) == ("runs", 7)
        name, data = next(events)
        assert (name, data["restart"], [row[0] for row in data["rows"]]) == ("records", True, [10, 20, 30])
        assert next(events)[0] == "samples"
        append_records(run, range(40, 61, 10))
        steps: list[int] = []
        while 60 not in steps:  # the server may see some of the records earlier than others
            name, data = next(events)
            if name == "runs":
                (summary,) = data["runs"]
            elif name == "records":
                assert not data["restart"]
                steps += [row[0] for row in data["rows"]]
        assert steps == [40, 50, 60]
        assert (summary["state"], summary["step"]) == ("running", 60)
        assert summary["seconds_left"] == pytest.approx(4)


def wait_for_no_streams(studio: OpenStudio) -> None:
    """Wait until the server has noticed that all clients have left."""
    for _ in range(HANG_SECONDS * 20):
        if not studio.server.studio.num_streams:
            return
        time.sleep(0.05)
    raise AssertionError("streams are left")


def test_streams_are_bounded_and_free_their_place(studio: OpenStudio) -> None:
    wait_for_no_streams(studio)
    with contextlib.ExitStack() as open_streams:
        # The iterators are kept: a response is closed with its iterator.
        streams = [open_streams.enter_context(studio.stream("/api/runs/events")) for _ in range(MAX_STREAMS)]
        assert [next(events)[0] for events in streams] == ["runs"] * MAX_STREAMS
        with studio.client.stream("GET", "/api/runs/events") as rejected:
            assert rejected.status_code == 503
        assert studio.get("/api/runs").status_code == 200
    wait_for_no_streams(studio)
    with studio.stream("/api/runs/events") as events:
        assert next(events)[0] == "runs"


def test_a_report_is_served_without_scripts_or_origin(studio: OpenStudio) -> None:
    (report,) = list_runs(studio)["sweep/first"]["reports"]
    assert report["name"] == "sweep/report.html"  # the link to /etc/passwd is not among them
    response = studio.get(f"/reports/{report['id']}")
    assert "<p>Report</p>" in response.text
    policy = response.headers["content-security-policy"]
    assert "sandbox" in policy
    assert "script-src" not in policy


def test_tokens_are_the_text_and_merges_build_them(studio: OpenStudio, folder: Path) -> None:
    names = {each["name"]: each["id"] for each in studio.get("/api/tokenizer").json()["tokenizers"]}
    assert set(names) == {"tokenizers/small", "tokenizers/large", "sweep/first/tokenizer"}
    tokenizer, id = Tokenizer.load(folder / "tokenizers" / "large"), names["tokenizers/large"]
    text = "the other cat, naïve <|endoftext|>\n🐈"
    found = studio.post("/api/tokenizer/encode", {"tokenizer": id, "text": text}).json()
    assert [token["id"] for token in found["tokens"]] == tokenizer.encode(text)
    assert bytes.fromhex("".join(token["bytes"] for token in found["tokens"])).decode() == text
    assert [token["text"] for token in found["tokens"] if token["special"]] == ["<|endoftext|>"]
    for token in found["tokens"]:
        built = studio.post("/api/tokenizer/token", {"tokenizer": id, "token": token["id"]}).json()
        numbers = [merge["number"] for merge in built["merges"]]
        assert numbers == sorted(set(numbers))
        made = {merge["result"] for merge in built["merges"]}
        is_byte = built["num_bytes"] == 1 or built["special"]
        assert (built["shown"] in made) != is_byte
        for merge in built["merges"]:
            left, right = tokenizer.vocabulary.merges[merge["number"] - 1]
            assert merge["result"] == show_token(left + right)
            assert (merge["left"], merge["right"]) == (show_token(left), show_token(right))


def test_the_first_tokenizer_that_can_be_read_is_used(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write_tokenizer(tmp_path / name, 270)
    (tmp_path / "a" / "vocabulary.json").write_text("{")
    with open_studio(tmp_path) as studio:
        ids = [each["id"] for each in studio.get("/api/tokenizer").json()["tokenizers"]]
        found = studio.post("/api/tokenizer/encode", {"tokenizer": ["gone", *ids], "text": "cat"})
        assert found.json()["tokenizer"] == ids[1]
        damaged = studio.post("/api/tokenizer/encode", {"tokenizer": [ids[0], "gone"], "text": "cat"})
        assert damaged.status_code == 400
        assert damaged.json()["error"]["message"].startswith("a/vocabulary.json")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/api/tokenizer/encode", {"tokenizer": "nothing", "text": "a"}, 404),
        ("/api/tokenizer/encode", {"tokenizer": "SMALL", "text": 7}, 400),
        ("/api/tokenizer/encode", {"tokenizer": "SMALL", "text": "\ud800"}, 400),
        ("/api/tokenizer/encode", {"tokenizer": "SMALL", "text": "a" * 500_001}, 400),
        ("/api/tokenizer/encode", {"tokenizer": "SMALL", "text": "a" * 2**20}, 413),
        ("/api/tokenizer/encode", {"tokenizer": "SMALL", "text": "a", "path": "/etc"}, 400),
        ("/api/tokenizer/encode", {"tokenizer": ["a", "b"], "text": "a"}, 404),
        ("/api/tokenizer/encode", {"tokenizer": [], "text": "a"}, 400),
        ("/api/tokenizer/encode", {"tokenizer": ["a"] * 17, "text": "a"}, 400),
        ("/api/tokenizer/token", {"tokenizer": "SMALL", "token": 10**9}, 404),
        ("/api/tokenizer/token", {"tokenizer": "SMALL", "token": -1}, 404),
        ("/api/calculator/propose", {"parameters": 10}, 400),
        ("/api/calculator/propose", {"parameters": "many"}, 400),
    ],
)
def test_a_wrong_request_is_answered_with_one_sentence(
    studio: OpenStudio, path: str, body: dict[str, Any], status: int
) -> None:
    names = {each["name"]: each["id"] for each in studio.get("/api/tokenizer").json()["tokenizers"]}
    if body.get("tokenizer") == "SMALL":
        body = body | {"tokenizer": names["tokenizers/small"]}
    response = studio.client.post(path, content=json.dumps(body))  # as ASCII, also lone surrogates
    assert response.status_code == status
    assert "\n" not in response.json()["error"]["message"]


def model_of(name: str) -> dict[str, Any]:
    config = find_preset(name)
    names = ("vocab_size", "context_length", "d_model", "num_layers", "num_heads", "d_ff")
    return {name: getattr(config, name) for name in names}


REQUEST = {"batch_size": 16, "optimizer": "adamw", "precision": "bf16", "device": "h100"}


def test_the_calculator_shows_what_the_accountant_predicts(studio: OpenStudio) -> None:
    request = REQUEST | {"model": model_of("gpt2-small"), "accumulate": 2, "num_tokens": 1e9}
    found = studio.post("/api/calculator/predict", request).json()
    setup = TrainingSetup(
        batch_size=8,
        accumulate=2,
        num_tokens=10**9,
        precision="bf16",
        compiled=True,
        device=find_device("h100"),
    )
    costs = training_costs(find_preset("gpt2-small"), setup)
    assert found["costs"] == costs.to_dict()
    assert sum(found["parameters"].values()) == costs.parameters
    assert 3 * sum(found["flops_per_token"].values()) == pytest.approx(found["training_flops_per_token"])


@pytest.mark.parametrize(
    "change",
    [
        {"device": "h1000"},
        {"precision": "fp8"},
        {"optimizer": "sgdm"},
        {"batch_size": 0},
        {"batch_size": 2**40},
        {"accumulate": 3},
        {"num_tokens": -1},
        {"num_tokens": 1e300},
        {"surprise": 1},
        {"model": {}},
        {"model": model_of("base") | {"num_heads": 7}},
        {"model": model_of("base") | {"d_model": 10**9}},
        {"model": model_of("base") | {"num_layers": 1.5}},
    ],
)
def test_a_wrong_model_or_setup_is_rejected(studio: OpenStudio, change: dict[str, Any]) -> None:
    request = REQUEST | {"model": model_of("base")} | change
    assert studio.post("/api/calculator/predict", request).status_code == 400


def test_presets_and_proposals_can_be_predicted(studio: OpenStudio) -> None:
    choices = studio.get("/api/calculator").json()
    shapes = [
        *choices["presets"].values(),
        studio.post("/api/calculator/propose", {"parameters": 1e9}).json(),
    ]
    for shape in shapes:
        found = studio.post("/api/calculator/predict", REQUEST | {"model": shape})
        assert found.status_code == 200, found.text
    assert found.json()["costs"]["parameters"] == pytest.approx(1e9, rel=0.02)
    assert "muon" in choices["optimizers"]


def test_a_key_opens_the_studio_in_a_header_or_as_a_cookie(folder: Path) -> None:
    with open_studio(folder, api_key=KEY) as studio:
        assert studio.get("/").status_code == 200  # the page asks for the key
        assert studio.get("/static/studio.js").status_code == 200
        for path in ("/api/studio", "/api/runs", "/api/runs/events", "/reports/x", "/api/calculator"):
            assert studio.get(path).status_code == 401
        assert studio.get("/api/runs", headers={"Authorization": f"Bearer {KEY}"}).status_code == 200
        assert studio.post("/login", {"key": "wrong"}).status_code == 401
        answer = studio.post("/login", {"key": KEY})
        cookie = answer.headers["set-cookie"]
        studio.client.cookies.clear()
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert KEY not in cookie
        assert studio.get("/api/runs", headers={"Cookie": cookie.split(";")[0]}).status_code == 200
        assert studio.get("/api/runs", headers={"Cookie": "bytewright_studio=x"}).status_code == 401


def test_an_empty_folder_has_no_runs(tmp_path: Path) -> None:
    with open_studio(tmp_path) as studio, studio.stream("/api/runs/events") as events:
        assert studio.get("/api/runs").json() == {"runs": []}
        assert studio.get("/api/tokenizer").json() == {"tokenizers": []}
        assert next(events) == ("runs", {"ids": [], "runs": []})
        write_run(tmp_path / "new")
        name, data = next(events)
        assert (name, [run["name"] for run in data["runs"]]) == ("runs", ["new"])

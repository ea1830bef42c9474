"""metrics.jsonl: lines are appended, truncated exactly and checked; evaluations and displays use them."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor

from bytewright.errors import FormatError, UsageError
from bytewright.experiments.groups import group_runs
from bytewright.experiments.results import SweepInfo
from bytewright.report.tables import table_of_groups
from bytewright.train.evaluate import Evaluation, EvaluationSet
from bytewright.train.metrics import METRICS
from bytewright.train.metrics_log import MetricsLog, MetricsReader, dump_line, read_metrics
from bytewright.train.outcome import exit_code_of
from bytewright.train.session.console import LiveDisplay, PlainDisplay, TensorBoard, draw_curve, make_display
from example_records import make_record
from rejection import rejects


def test_lines_after_the_position_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.write({"step": 1, "loss": 2.5})
    position = log.sync()
    log.write({"step": 2})
    log.close()
    with path.open("ab") as file:
        file.write(b'{"step": 3, "lo')
    assert [record["step"] for record in read_metrics(path)] == [1, 2]
    log = MetricsLog(path, position)
    assert log.position == position
    log.write({"step": 2, "loss": math.nan})
    log.close()
    assert list(read_metrics(path)) == [{"step": 1, "loss": 2.5}, {"step": 2, "loss": None}]


def test_a_log_shorter_than_its_checkpoint_recorded_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    with rejects(FormatError, path=tmp_path / "metrics.jsonl", expected=100, found=12):
        MetricsLog(tmp_path / "metrics.jsonl", 100)


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step"\n{"step": 3}\n')
    with rejects(FormatError, path=tmp_path / "metrics.jsonl", key="line 2"):
        list(read_metrics(tmp_path / "metrics.jsonl"))


def test_a_reader_names_a_damaged_line_by_the_same_number_each_time(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(dump_line({"step": 1}) + b"{\n" + dump_line({"step": 3}))
    reader = MetricsReader(path)
    for _ in range(3):
        with rejects(FormatError, key="line 2"):
            reader.update()
    assert reader.records == [{"step": 1}]


def test_a_log_with_a_changed_bit_is_rejected_or_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for step in (1, 2, 3):
        log.write({"step": step, "loss": 2.5 / step, "norms": {"a": math.inf}})
    log.close()
    sound, records = path.read_bytes(), list(read_metrics(path))
    assert len(records) == 3
    for place in range(len(sound)):
        for bit in range(8):
            path.write_bytes(sound[:place] + bytes([sound[place] ^ 1 << bit]) + sound[place + 1 :])
            with contextlib.suppress(FormatError):
                assert list(read_metrics(path)) == records, path.read_bytes()


def test_a_log_of_an_earlier_version_is_read_and_continued(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 2.5}\n')
    log = MetricsLog(path, path.stat().st_size)
    log.write({"step": 2})
    log.close()
    assert [record["step"] for record in read_metrics(path)] == [1, 2]
    path.write_text(path.read_text() + '{"step": 3}\n')
    with rejects(FormatError, path=path, key="line 3"):
        list(read_metrics(path))


def test_a_line_that_was_cut_off_anywhere_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.write({"step": 1})
    position = log.position
    log.write({"step": 2})
    log.close()
    sound = path.read_bytes()
    for length in range(position, len(sound)):
        path.write_bytes(sound[:length])
        assert [record["step"] for record in read_metrics(path)] == [1]


def test_tensorboard_that_is_not_installed_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with rejects(UsageError, key="tensorboard"):
        TensorBoard(tmp_path, 0)


def test_tensorboard_gets_the_numbers_of_every_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[str, float, int]] = []

    class Writer:
        def __init__(self, folder: str, purge_step: int) -> None:
            assert purge_step == 5

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, value, step))

        def close(self) -> None:
            written.append(("closed", 0, 0))

    module = type(sys)("torch.utils.tensorboard")
    module.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    board = TensorBoard(tmp_path, 5)
    board.write({"step": 6, "loss": 1.5, "event": "x", "weight_rms": {"a": 1}})
    board.close()
    assert written == [("loss", 1.5, 6), ("closed", 0, 0)]


def test_an_evaluation_weighs_every_token_alike() -> None:
    tokens = np.arange(50, dtype=np.uint16)
    evaluation_set = EvaluationSet(tokens, "cpu", context_length=7, batch_size=4)
    seen: list[int] = []

    def measure(ids: Tensor, targets: Tensor) -> Tensor:
        seen.extend(targets.flatten().tolist())
        return targets.float().mean()

    evaluation = evaluation_set.evaluate(measure)
    assert sorted(seen) == list(range(1, 50))
    assert evaluation.loss == pytest.approx(25.0)
    assert evaluation.num_tokens == 49


def test_bits_per_byte_count_the_bytes_of_predicted_tokens() -> None:
    lengths = np.array([3, 1, 0])
    tokens = np.array([0, 0, 1, 2, 0], dtype=np.uint16)
    evaluation_set = EvaluationSet(tokens, "cpu", context_length=2, batch_size=1, token_bytes=lengths)
    evaluation = evaluation_set.evaluate(lambda ids, targets: torch.tensor(math.log(2.0)))
    assert evaluation.num_bytes == 3 + 1 + 0 + 3
    assert evaluation.bits_per_byte == pytest.approx(4 / 7)  # one bit for each of four tokens
    assert evaluation.perplexity == pytest.approx(2.0)


@pytest.mark.parametrize(("num_tokens", "num_windows"), [(10_000, 96), (51, 5), (600, 56)])
def test_a_limited_evaluation_is_the_same_for_every_batch_and_cut_evenly(
    num_tokens: int, num_windows: int
) -> None:
    tokens = np.zeros(num_tokens, dtype=np.uint16)
    for batch_size in (1, 7, 8, 48, 1000):
        limited = EvaluationSet(tokens, "cpu", context_length=10, batch_size=batch_size, max_tokens=1000)
        assert len(limited.starts) == num_windows
        assert num_tokens - limited.starts[-1] <= 10 + 2 * num_tokens / num_windows  # to the end of the file
        assert limited.batch_size <= batch_size
        assert num_windows % limited.batch_size == 0


def test_a_huge_loss_has_an_infinite_perplexity_and_zero_bytes_have_no_bits() -> None:
    assert Evaluation(1000.0, 1, None).perplexity == math.inf
    assert Evaluation(1000.0, 1, None).bits_per_byte is None


RECORD: dict[str, Any] = {
    "step": 20,
    "loss": 3.25,
    "validation_loss": 3.5,
    "bits_per_byte": 1.25,
    "lr": 1e-3,
    "gradient_norm": 0.5,
    "tokens_per_second": 1000.0,
    "mfu": 0.4,
}


def test_a_pipe_gets_plain_lines() -> None:
    out = io.StringIO()
    display = make_display(Console(file=out), "run: 5 parameters")
    assert isinstance(display, PlainDisplay)
    display.record(RECORD, 100)
    display.record({"step": 21, "event": "refused_step", "cause": "loss", "loss": None}, None)
    display.record(RECORD | {"step": 30, "seconds": 10.0}, 100)
    display.record(RECORD | {"step": 40, "seconds": 15.0}, 100)
    display.close()
    assert out.getvalue().splitlines() == [
        "run: 5 parameters",
        "step 20/100  loss 3.2500  validation 3.5000  bits/byte 1.2500  lr 1.00e-03  1,000 tokens/s",
        "step 21  refused: the loss is not finite",
        "step 30/100  loss 3.2500  validation 3.5000  bits/byte 1.2500  lr 1.00e-03  1,000 tokens/s",
        "step 40/100  loss 3.2500  validation 3.5000  bits/byte 1.2500  lr 1.00e-03  1,000 tokens/s"
        "  about 30 s left",
    ]


def test_a_terminal_gets_a_panel_with_a_curve() -> None:
    out = io.StringIO()
    display = make_display(Console(file=out, force_terminal=True, width=100), "run")
    assert isinstance(display, LiveDisplay)
    for step in range(1, 50):
        display.record(RECORD | {"step": step, "loss": 5 - step / 20, "seconds": step / 2}, 100)
    display.record({"step": 50, "event": "refused_step", "cause": "loss", "loss": None}, 100)
    display.close()
    text = out.getvalue()
    assert "3.5000 (step 49)" in text
    assert "49 of 100, about 26 s left" in text
    assert "MFU 40.0%" in text
    assert "step 50/100  refused: the loss is not finite" in text
    assert any(0x2801 <= ord(letter) <= 0x28FF for letter in text)


def test_a_curve_has_its_size_whatever_the_values() -> None:
    for values in ([], [1.0], [1.0] * 500, [math.nan, 1.0], [float(i % 7) for i in range(10_000)]):
        assert [len(line) for line in draw_curve(values, 10, 3)] == [10] * 3
    falling = draw_curve([float(-i) for i in range(20)], 10, 1)[0]
    assert falling[0] < falling[-1]  # dots at the top have lower code points than dots at the bottom


def test_exit_codes_are_the_shell_s() -> None:
    import signal

    assert (exit_code_of(None), exit_code_of(signal.SIGINT), exit_code_of(signal.SIGTERM)) == (0, 130, 143)


def test_a_metric_that_is_reported_becomes_a_column_of_the_sweep_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups = group_runs([make_record("a")])
    columns = table_of_groups(groups, METRICS["validation_loss"], SweepInfo(name="s"), None).columns
    reported = dataclasses.replace(METRICS["gradient_norm"], is_reported=True)
    monkeypatch.setitem(METRICS, "gradient_norm", reported)
    table = table_of_groups(groups, METRICS["validation_loss"], SweepInfo(name="s"), None)
    assert [column for column in table.columns if column not in columns] == ["gradient norm"]
    assert "0.500" in table.rows[0]

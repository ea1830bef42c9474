"""Training against its floor, on a terminal and in a pipe."""

from __future__ import annotations

from rich.console import Console

from bytewright.demo.display import FloorDisplay


def test_on_a_terminal_the_curve_is_drawn_above_its_floor() -> None:
    console = Console(width=100, force_terminal=True, record=True)
    display = FloorDisplay(console, "run", floor=0.4, bytes_per_token=4.0)
    for step in range(1, 30):
        record = {"step": step, "loss": 6 / step, "seconds": float(step), "tokens_per_second": 1000.0}
        display.record(record | ({"story_bits_per_byte": 0.5} if step == 29 else {}), 30)
    display.record({"step": 29, "event": "refused"}, 30)
    display.close()
    shown = console.export_text()
    assert "0.500, 0.100 above the floor" in shown
    assert "floor 0.400" in shown
    assert "step 29: refused" in shown


def test_in_a_pipe_a_line_comes_every_ten_seconds_and_with_every_measurement() -> None:
    console = Console(width=100, record=True)
    display = FloorDisplay(console, "run", floor=0.4, bytes_per_token=4.0)
    for step in range(1, 30):
        record = {"step": step, "loss": 4.0, "seconds": float(step), "tokens_per_second": 1000.0}
        display.record(record | ({"story_bits_per_byte": 0.5} if step == 14 else {}), 30)
    lines = console.export_text().splitlines()
    assert [line.split()[1] for line in lines[1:]] == ["10/30", "14/30", "24/30"]
    assert "training 1.4427 bits per byte" in lines[1]
    assert "validation stories 0.5000 bits per byte, 0.1000 above the floor of 0.4000" in lines[2]

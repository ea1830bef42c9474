"""Compute the figures and the picture of schedule.md."""

from __future__ import annotations

from bytewright.report.charts import Axis, Chart, Series
from bytewright.report.draw import draw_chart
from bytewright.train import constant_schedule, cosine_schedule, linear_schedule, wsd_schedule

WARMUP, END, DECAY = 10, 100, 40
SCHEDULES = {
    "cosine to a tenth": lambda t: cosine_schedule(t, 1.0, 0.1, WARMUP, END),
    "linear to zero": lambda t: linear_schedule(t, 1.0, 0.0, WARMUP, END),
    f"WSD, last {DECAY}": lambda t: wsd_schedule(t, 1.0, 0.0, WARMUP, END, DECAY),
    "constant": lambda t: constant_schedule(t, 1.0, WARMUP),
}


def schedule_rows():
    steps = (1, 5, 10, 11, 30, 55, 60, 80, 100, 120)
    rows = [(t, *(f"{rate(t):.3f}" for rate in SCHEDULES.values())) for t in steps]
    return [("update", *SCHEDULES), *rows]


PICTURES = {
    "schedule.svg": draw_chart(
        Chart(
            title="Four schedules",
            x=Axis("update"),
            y=Axis("share of the highest rate"),
            series=[
                Series(name, [(t, rate(t)) for t in range(0, 121, 2)]) for name, rate in SCHEDULES.items()
            ],
        )
    )
}
FIGURES = [
    f"a warm-up of {WARMUP} updates, {END} updates in",
    schedule_rows(),
    f"At update {(WARMUP + END) // 2}",
]

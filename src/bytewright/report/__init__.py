"""Reports about runs and sweeps: one self-contained page of charts, tables and samples.

Read `compose` first: it selects the content of a report. `compare` finds which runs are comparable and by
which metric. `figures` and `tables` compute charts and tables from runs. `charts`, `draw` and `svg` draw
charts; `page` and `markdown` render the page. Depends on `experiments`; the drawing and rendering modules
depend on neither runs nor training.
"""

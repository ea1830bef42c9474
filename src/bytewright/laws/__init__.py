"""Scaling laws: fit L = E + A/N^a + B/D^b to runs, with intervals, and compare it with what is known.

N is the number of parameters of a model, D the number of training tokens, and L the loss. On a generated
corpus E, the entropy of the text, is known exactly (the *floor* of the runs). So the usual procedures can be
judged by the E that they find.

Read `analysis` first: it applies everything below to the points of a sweep. `recovery` compares procedures by
their E. `points` reads the points. `power` fits sums of power laws by variable projection, with the
algorithms of `minimisers`, and `law` fits the law of two terms. `bootstrap` resamples seeds. `isoflop` fits a
parabola to each level of compute. `inference` has the statistics that all sweeps use: Student's t
distribution, paired differences, and Holm's correction.
"""

NUM_RESAMPLES = 1000
"""Resamples for the intervals of a fit, unless a caller states another number."""

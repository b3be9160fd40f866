# SPDX-License-Identifier: Apache-2.0
"""`commensal profile`: runs a job alone and says what a neighbour could take.

`conduct` runs it; `clocks`, `job_page` and `touched` read what the job does from outside, at no
cost to it; `analysis` turns the samples into figures, `report` into sentences, `picture` draws.
Nothing here imports PyTorch; only `picture` imports matplotlib.
"""

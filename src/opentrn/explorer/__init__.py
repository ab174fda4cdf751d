"""Reads what a run recorded and says it on one page: in the terminal, as HTML, as JSON.

`summary` computes every figure with how it is known (measured, simulated, modelled, assumed); `terminal`,
`html` and `--json` only lay them out. Nothing here looks at the device.
"""

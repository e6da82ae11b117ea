"""Traffic as it comes: written to files (`kwire record`), decoded for a while (`kwire analyze -i`), looked at while it
happens (`kwire watch`).

In: an interface, or a stream or folder that grows. Out: captures, a dataset, a screen or lines of JSON.
"""

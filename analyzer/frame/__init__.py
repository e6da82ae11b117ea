"""Columns of many rows as NumPy arrays: reading, grouping, spilling to disk, and conversion to Arrow."""

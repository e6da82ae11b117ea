"""Datasets: the tables (the contract), Parquet files, manifest and locks."""

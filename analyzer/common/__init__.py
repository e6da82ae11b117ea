"""Small helpers that every package above `captures` may use: errors, times, terminal escapes, output files."""

"""A capture file read in chunks, by processes that know nothing of one another (`README.md` of `captures` says how)."""

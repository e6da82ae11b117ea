"""A capture of the same shape without its content (`kwire scrub`)."""

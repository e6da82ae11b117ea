"""Read capture points from end to end: options, the loop over windows, and the tables it fills."""

"""`kwire compare`: two captures of the same job, before and after a change, and what differs on the wire."""

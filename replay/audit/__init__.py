"""Whether a target has what it acknowledged in a replay. Needs a RUN and the target, nothing of the replayer."""

"""What the target has in place of the capture's values, learned from its answers. Pure."""

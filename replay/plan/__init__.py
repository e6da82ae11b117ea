"""Plans a replay: captured sessions and a target's versions in, a plan out. Pure."""

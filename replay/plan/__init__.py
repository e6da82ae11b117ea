"""What is decided before anything is sent: captured sessions and a target's versions in, a plan out. Pure."""

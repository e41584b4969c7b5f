"""How unusual an event is and why, online, without labels: parts that are p-values, one score, a reason in words."""

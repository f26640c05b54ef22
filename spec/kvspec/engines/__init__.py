"""The engines: ways of choosing the next operation. All share one session, and one judge."""

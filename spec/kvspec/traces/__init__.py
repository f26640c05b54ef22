"""Traces: runs as data. Recorded by every engine, replayed, reduced, shown and exported."""

"""The suite: the check of one allocator, and the report of it."""

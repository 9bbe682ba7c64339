"""The coordinator: ranks, readiness, barriers, health."""

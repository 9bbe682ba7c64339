"""Requests as checked facts: judged before any effect."""

"""Sorted rows of several files made to one, in bounded memory."""

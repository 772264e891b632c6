"""Helpers that several test folders share. Not collected by pytest."""

"""Checks of machine and configuration, and explanations of logs."""

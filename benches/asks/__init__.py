"""Asking a model: tasks with exact answers, who works on them, and what is counted."""

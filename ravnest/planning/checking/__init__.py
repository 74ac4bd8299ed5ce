"""The model as it was beside the stages as they were written."""

"""The library that the work of these cases needs."""

MODEL_SHA256 = "c8bc65201daee536718d281c9162731d495d96481142992508a1d8b64c15a075"

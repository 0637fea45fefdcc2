"""Readers of records, one module a format; `apood.encoders.inputs` chooses among them."""
